//! Which blocks are handed out next.

use serde_json::{Value, json};

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, joined};

pub const KIND: Kind = Kind {
    name: "evicted-next",
    about: "the blocks that are handed out next",
    chapter: "l3-paged-kv/pool.md",
    draw,
};

const LAST: usize = 12;

/// What goes to which end of the free list when a request ends, and in which order.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Blocks with a hash to the back, those without to the front, tail first.
    Right,
    /// Everything to the back, tail first.
    AllBack,
    /// Both groups head first.
    HeadFirst,
    /// Everything to the front: a stack.
    AllFront,
}

/// A request: its table, and how many of its blocks are full.
struct Request {
    table: Vec<usize>,
    full: usize,
}

fn draw(draw: &mut Draw) -> Question {
    let requests = draw.between(2, 3);
    let mut lens = Vec::new();
    let mut next = 1;
    let mut all = Vec::new();
    for _ in 0..requests {
        let full = draw.between(1, 3);
        let partial = usize::from(draw.one_in(2));
        all.push(Request { table: (next..next + full + partial).collect(), full });
        lens.push(full + partial);
        next += full + partial;
    }
    // They end in some order; the last one may run on.
    let mut ending: Vec<usize> = (0..requests).collect();
    for i in (1..requests).rev() {
        ending.swap(i, draw.below(i + 1));
    }
    if requests == 3 && draw.one_in(2) {
        ending.pop();
    }
    // Then one of those that ended comes back, and finds its beginning in the cache.
    let back = draw.one_in(2).then(|| ending[draw.below(ending.len())]);
    let asked = draw.between(2, 4);
    // Few blocks were never used, so that the question reaches the others.
    let unused = draw.between(0, 2).min(LAST + 1 - next);
    let last = next - 1 + unused;

    let list = |order: Order, touches: bool| {
        let mut free: Vec<usize> = (next..=last).collect();
        for r in &ending {
            end(&mut free, &all[*r], order);
        }
        if let (Some(r), true) = (back, touches) {
            free.retain(|block| !all[r].table[..1].contains(block));
        }
        free
    };
    let right = list(Order::Right, true);
    let asked = asked.min(right.len());
    let (mut lines, mut explanation) = (String::new(), String::new());
    for (r, request) in all.iter().enumerate() {
        let partial =
            if request.table.len() > request.full { ", the last one not full" } else { "" };
        lines += &format!("request {r} has blocks {}{partial}\n", commas(&request.table));
    }
    let mut free: Vec<usize> = (next..=last).collect();
    for r in &ending {
        lines += &format!("request {r} ends\n");
        end(&mut free, &all[*r], Order::Right);
        explanation += &format!("request {r} ends: {}\n", joined(&free));
    }
    if let Some(r) = back {
        let first = all[r].table[0];
        lines += &format!("a new request hits block {first} and uses no other yet\n");
        explanation += &format!("block {first} is hit and leaves the list: {}\n", joined(&right));
    }
    let unused = match unused {
        0 => String::new(),
        _ => format!("; {} never used", joined_range(next, last)),
    };
    let text = format!(
        "Blocks 1 to {last}{unused}; every full block has a hash.\n\n{lines}\n\
         Which blocks do the next {asked} allocations get, in this order?"
    );
    let explanation = format!(
        "The free list; its first block is handed out next. What has no hash goes to\n\
         the front, what has one to the back, the tail of a table before its head.\n{explanation}\
         The first {asked} are {}.",
        joined(&right[..asked])
    );
    let firsts = |list: Vec<usize>| {
        Answer::List(list.iter().take(asked).map(|block| *block as i64).collect())
    };
    let facts = json!({
        "last": last,
        "requests": all.iter().map(|r| json!({ "full": r.full, "blocks": r.table.len() }))
            .collect::<Vec<Value>>(),
        "ending": ending, "back": back, "asked": asked,
    });
    let mut sorted = right.clone();
    sorted.sort_unstable();
    let mut reversed = right.clone();
    reversed.reverse();
    Question::new(text, firsts(right), explanation, facts)
        .mistake(
            firsts(list(Order::AllBack, true)),
            "a block without a hash cannot be hit: it goes to the front",
        )
        .mistake(
            firsts(list(Order::HeadFirst, true)),
            "the tail goes before the head: a beginning is of use to more requests",
        )
        .mistake(firsts(list(Order::AllFront, true)), "what has a hash goes to the back")
        .mistake(firsts(list(Order::Right, false)), "a block that is hit leaves the free list")
        .mistake(firsts(sorted), "the list is not sorted; it remembers who was freed when")
        .mistake(firsts(reversed), "that is the end of the list; allocation takes the front")
}

fn end(free: &mut Vec<usize>, request: &Request, order: Order) {
    let (hashed, rest) = request.table.split_at(request.full);
    let tail_first = |blocks: &[usize]| -> Vec<usize> { blocks.iter().rev().copied().collect() };
    match order {
        Order::Right => {
            free.splice(0..0, tail_first(rest));
            free.extend(tail_first(hashed));
        }
        Order::AllBack => free.extend(tail_first(&request.table)),
        Order::HeadFirst => {
            free.splice(0..0, rest.to_vec());
            free.extend(hashed);
        }
        Order::AllFront => {
            free.splice(0..0, tail_first(&request.table));
        }
    }
}

fn joined_range(first: usize, last: usize) -> String {
    if first == last { format!("{first} was") } else { format!("{first} and {last} were") }
}
