//! Which requests are preempted for an urgent arrival.

use serde_json::json;

use super::drawn::{blocks, counted, listed, names, table};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "strict-room",
    about: "requests preempted under strict-priority",
    chapter: "l5-scheduler/strict.md",
    draw,
};

/// A running request.
#[derive(Clone, Copy)]
struct Running {
    name: usize,
    came: usize,
    priority: usize,
    blocks: usize,
}

/// What the one that comes needs.
#[derive(Clone, Copy)]
struct Need {
    priority: usize,
    blocks: usize,
    free: usize,
    seats: usize,
}

/// Which of `order` are preempted until it fits. None, if all of them are not enough.
fn room(order: &[Running], running: usize, need: Need) -> Vec<usize> {
    let fits = |gone: &[Running]| {
        let back: usize = gone.iter().map(|r| r.blocks).sum();
        need.free + back >= need.blocks && running - gone.len() < need.seats
    };
    let enough = (0..=order.len()).find(|n| fits(&order[..*n]));
    order[..enough.unwrap_or(0)].iter().map(|r| r.name).collect()
}

fn draw(draw: &mut Draw) -> Question {
    const BLOCK: usize = 8;
    let n = draw.between(3, 5);
    let names = names(draw, n + 1);
    let mut all: Vec<Running> = names[..n]
        .iter()
        .enumerate()
        .map(|(i, name)| Running {
            name: *name,
            came: i + 1,
            priority: draw.between(0, 4),
            blocks: draw.between(1, 4),
        })
        .collect();
    // In the order of admission: they came together, so the most urgent was admitted first.
    all.sort_by_key(|r| (r.priority, r.came));
    let full = draw.one_in(3);
    let free = draw.between(0, 3);
    let seats = if full { n } else { n + draw.between(1, 3) };
    let prompt = draw.between(free * BLOCK, (free + 5) * BLOCK).max(1);
    let need =
        Need { priority: draw.between(0, 3), blocks: blocks(prompt + 1, BLOCK), free, seats };
    let pool = free + all.iter().map(|r| r.blocks).sum::<usize>();
    if need.blocks > pool || (need.blocks <= free && !full) {
        return self::draw(draw);
    }

    let order = |key: &dyn Fn(&Running) -> (i64, i64), least: usize| -> Vec<Running> {
        let mut order: Vec<Running> = all.iter().filter(|r| r.priority >= least).copied().collect();
        order.sort_by_key(|r| key(r));
        order
    };
    let worst_first = |r: &Running| (-(r.priority as i64), -(r.came as i64));
    let victims = order(&worst_first, need.priority + 1);
    let right = room(&victims, n, need);

    let rows: Vec<Vec<usize>> =
        all.iter().map(|r| vec![r.name, r.came, r.priority, r.blocks]).collect();
    let comes = names[n];
    let text = format!(
        "The policy is strict-priority. Blocks of {BLOCK} tokens, {free} of them free; {seats} seats.\n\
         These run, each with room in its blocks for its next tokens, nothing shared:\n\n{}\n\n\
         Request {comes} comes with priority {} and a prompt of {}.\n\
         Which requests are preempted for it, and in which order? (0: none)",
        table(&["request", "came at (s)", "priority", "blocks"], &rows),
        need.priority,
        counted(prompt, "token"),
    );
    let mut explanation = format!(
        "it needs ({prompt} + 1) / {BLOCK}, rounded up, = {} and a seat\n\
         {} free, and {} of {seats} seats taken\n",
        counted(need.blocks, "block"),
        if free == 1 { "1 is".into() } else { format!("{free} are") },
        n
    );
    explanation += &match victims.as_slice() {
        [] => "No request is strictly less urgent.".into(),
        some => {
            let each: Vec<String> =
                some.iter().map(|r| format!("{} ({})", r.name, r.blocks)).collect();
            format!("less urgent, the least first (blocks): {}\n", listed(&each))
        }
    };
    if !victims.is_empty() {
        explanation += &match right.as_slice() {
            [] => "Together they do not make it fit: none is preempted, and it waits.".into(),
            some => format!("As many as it takes: {}", listed(some)),
        };
    }
    let rows = |who: &[usize]| match who {
        [] => Answer::Rows(vec![0]),
        who => Answer::Rows(who.iter().map(|name| *name as i64).collect()),
    };
    let of = |victims: &[Running]| rows(&room(victims, n, need));
    let facts = json!({
        "running": all.iter().map(|r| json!([r.name, r.came, r.priority, r.blocks]))
            .collect::<Vec<_>>(),
        "name": comes, "priority": need.priority, "prompt": prompt, "free": free, "seats": seats,
    });
    let every: Vec<usize> = victims.iter().map(|r| r.name).collect();
    let ignoring = |need: Need| rows(&room(&victims, n, need));
    Question::new(text, rows(&right), explanation, facts)
        .mistake(
            rows(&every),
            if right.is_empty() {
                "all or nothing: if they do not make it fit, none is preempted"
            } else {
                "no more are preempted than it takes"
            },
        )
        .mistake(of(&order(&worst_first, need.priority)), "an equal is not preempted")
        .mistake(
            of(&order(&|r| (-(r.priority as i64), r.came as i64), need.priority + 1)),
            "of equals among themselves the one that came last goes first",
        )
        .mistake(
            of(&order(&|r| (r.priority as i64, r.came as i64), need.priority + 1)),
            "the least urgent goes first",
        )
        .mistake(
            of(&order(&|r| (-(r.blocks as i64), 0), need.priority + 1)),
            "not the one with the most blocks: the least urgent goes first",
        )
        .mistake(ignoring(Need { seats: usize::MAX, ..need }), "it needs a seat, too")
        .mistake(
            ignoring(Need { blocks: blocks(prompt, BLOCK), ..need }),
            "it needs room for one token more than its prompt",
        )
        .mistake(
            ignoring(Need { free: free + 1, ..need }),
            "count the blocks again: what is free, and what each gives back",
        )
        .mistake(Answer::Rows(vec![0]), "some are less urgent, and together they have enough")
}
