//! Whose blocks go when a running request cannot have its next one.

use serde_json::json;

use super::drawn::{names, table};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "gives-way",
    about: "who is preempted when blocks run out",
    chapter: "l5-scheduler/queue.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let priority = !draw.one_in(3);
    let n = draw.between(4, 5);
    let names = names(draw, n);
    // In the order of admission, which under priority is not that of arrival.
    let requests: Vec<(usize, usize, usize)> =
        names.iter().map(|name| (*name, draw.between(1, 6), draw.between(0, 2))).collect();
    let needy = draw.below(n);

    let worst = |of: &dyn Fn(usize) -> bool| {
        let all = (0..n).filter(|i| of(*i));
        // Of several equal ones the first: those that come later must be worse to take its place.
        all.rev().max_by_key(|i| (requests[*i].2, requests[*i].1)).unwrap_or(needy)
    };
    let everybody = |_: usize| true;
    let others = |i: usize| i != needy;
    let right = if priority { worst(&everybody) } else { n - 1 };

    let rows: Vec<Vec<usize>> = requests.iter().map(|(name, at, p)| vec![*name, *at, *p]).collect();
    let policy = if priority { "priority" } else { "fcfs" };
    let (asks, goes) = (requests[needy].0, requests[right].0);
    let text = format!(
        "The policy is {policy}. These run, in the order of their admission:\n\n{}\n\n\
         No block is free, and request {asks} needs one. Which request is preempted first?",
        table(&["request", "came at (s)", "priority"], &rows)
    );
    let rule = if priority {
        "The least urgent: the highest number, then who came last; of full equals the\n\
         one admitted first."
    } else {
        "The one admitted last."
    };
    let itself = if right == needy { " It is the one that needs the block." } else { "" };
    let explanation = format!("{rule}\nThat is request {goes}.{itself}");
    let name = |i: usize| Answer::Whole(requests[i].0 as i64);
    let facts = json!({
        "policy": policy, "needy": needy,
        "requests": requests.iter().map(|(name, at, p)| json!([name, at, p])).collect::<Vec<_>>(),
    });
    let question = Question::new(text, name(right), explanation, facts);
    let best = |key: &dyn Fn(usize) -> (i64, i64)| (0..n).max_by_key(|i| key(*i)).unwrap_or(needy);
    let (at, p) = (|i: usize| requests[i].1 as i64, |i: usize| requests[i].2 as i64);
    if priority {
        question
            .mistake(
                name(worst(&others)),
                "the request that needs the block may itself be preempted",
            )
            .mistake(name(best(&|i| (-p(i), at(i)))), "a lower number is more urgent")
            .mistake(
                name(best(&|i| (p(i), -at(i)))),
                "among equals the last one to come is preempted",
            )
            .mistake(
                name(best(&|i| (p(i), at(i)))),
                "of full equals the one that was admitted first is preempted",
            )
            .mistake(name(n - 1), "under priority it does not count who was admitted last")
    } else {
        question
            .mistake(
                name(if needy == n - 1 { n - 2 } else { n - 1 }),
                "the request that needs the block may itself be preempted",
            )
            .mistake(name(0), "the oldest has the most to lose: the last one admitted goes")
            .mistake(name(worst(&everybody)), "fcfs does not look at priorities")
    }
    .mistake(name(needy), "others are preempted before it")
}
