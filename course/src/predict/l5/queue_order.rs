//! In which order waiting requests will be asked.

use serde_json::json;

use super::drawn::{listed, names, table};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::joined;

pub const KIND: Kind = Kind {
    name: "queue-order",
    about: "the order of the waiting queue",
    chapter: "l5-scheduler/queue.md",
    draw,
};

/// A request: its name, when it came, its priority.
type Request = (usize, usize, usize);

fn draw(draw: &mut Draw) -> Question {
    let priority = draw.one_in(2);
    let n = draw.between(4, 5);
    let mut at = 0;
    let requests: Vec<Request> = names(draw, n)
        .into_iter()
        .map(|name| {
            at += draw.below(3);
            (name, at, draw.below(3))
        })
        .collect();
    // The first of them ran already when the others came.
    let ran = draw.between(1, 2);

    let by = |key: &dyn Fn(usize, &Request) -> (i64, i64, i64)| -> Vec<usize> {
        let mut order: Vec<(usize, &Request)> = requests.iter().enumerate().collect();
        order.sort_by_key(|(i, request)| key(*i, request));
        order.iter().map(|(_, (name, ..))| *name).collect()
    };
    let place = |i: usize| i as i64;
    let came = by(&|i, _| (0, 0, place(i)));
    let urgent = by(&|_, (name, at, p)| (*p as i64, *at as i64, *name as i64));
    let right = if priority { &urgent } else { &came };

    let rows: Vec<Vec<usize>> = requests.iter().map(|(name, at, p)| vec![*name, *at, *p]).collect();
    let mut first: Vec<usize> = came[..ran].to_vec();
    first.reverse();
    let policy = if priority { "priority" } else { "fcfs" };
    let text = format!(
        "The policy is {policy}. Requests, in the order in which they were added:\n\n{}\n\n\
         Only the first {} ran; now all that ran {} preempted, the last one first.\n\
         In which order do the {n} wait?",
        table(&["request", "came at (s)", "priority"], &rows),
        if ran == 1 { "one".into() } else { ran.to_string() },
        if ran == 1 { "is" } else { "are" },
    );
    let explanation = if priority {
        format!(
            "By priority, lower first; then by arrival; then by name. Having run\n\
             before does not matter.\n{}",
            joined(right)
        )
    } else {
        format!(
            "In the order in which they were added; who was preempted goes to the front:\n\
             {}, each before all others, so that in the end they are in their order.\n{}",
            listed(&first),
            joined(right)
        )
    };
    let list = |order: &[usize]| Answer::List(order.iter().map(|name| *name as i64).collect());
    let behind: Vec<usize> = [&came[ran..], &came[..ran]].concat();
    let reversed: Vec<usize> = first.iter().chain(&came[ran..]).copied().collect();
    let bonus = by(&|i, (name, at, p)| {
        if i < ran { (-1, place(i), 0) } else { (*p as i64, *at as i64, *name as i64) }
    });
    let facts = json!({
        "policy": policy, "ran": ran,
        "requests": requests.iter().map(|(name, at, p)| json!([name, at, p])).collect::<Vec<_>>(),
    });
    let question = Question::new(text, list(right), explanation, facts);
    let question = if priority {
        question
            .mistake(list(&came), "under priority it is not enough to have come first")
            .mistake(list(&bonus), "under priority a preempted request gets no better place")
            .mistake(
                list(&by(&|_, (name, at, p)| (-(*p as i64), *at as i64, *name as i64))),
                "a lower number is more urgent",
            )
            .mistake(
                list(&by(&|i, (_, at, p)| (*p as i64, *at as i64, place(i)))),
                "of two that share priority and arrival the lower name goes first",
            )
            .mistake(
                list(&by(&|i, (_, at, p)| (*p as i64, -(*at as i64), -place(i)))),
                "among equals in priority the first to come goes first",
            )
    } else {
        question.mistake(list(&urgent), "fcfs does not look at priorities").mistake(
            list(&reversed),
            "the one preempted later goes before the one preempted earlier",
        )
    };
    question
        .mistake(list(&behind), "a preempted request does not start at the end again")
        .mistake(list(&by(&|_, (name, ..)| (*name as i64, 0, 0))), "names are only names")
}
