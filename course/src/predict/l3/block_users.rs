//! How many use each block.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, joined};

pub const KIND: Kind = Kind {
    name: "block-users",
    about: "ref counts after sharing",
    chapter: "l3-paged-kv/reference-counts.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    // The first request computes its blocks; the others begin like an earlier one.
    let first = draw.between(2, 4);
    let mut tables: Vec<Vec<usize>> = vec![(1..=first).collect()];
    let mut hits = vec![0];
    let mut next = first + 1;
    for _ in 0..2 {
        let hit = draw.between(0, first);
        let own = draw.between(1, 2);
        let table = (1..=hit).chain(next..next + own).collect();
        next += own;
        tables.push(table);
        hits.push(hit);
    }
    let ended = draw.one_in(2).then(|| draw.below(3));

    let count = |tables: &[&Vec<usize>]| -> Vec<i64> {
        let users = |block| tables.iter().filter(|t| t.contains(&block)).count() as i64;
        (1..next).map(users).collect()
    };
    let all: Vec<&Vec<usize>> = tables.iter().collect();
    let alive: Vec<&Vec<usize>> =
        tables.iter().enumerate().filter(|(r, _)| Some(*r) != ended).map(|(_, t)| t).collect();
    let counts = count(&alive);
    let mut lines = format!("request 0 computes {}\n", counted(first, "full block"));
    for r in 1..3 {
        let own = tables[r].len() - hits[r];
        lines += &match hits[r] {
            0 => format!("request {r} hits nothing and gets {}\n", counted(own, "new block")),
            n => format!(
                "request {r} hits the first {n} of request 0's and gets {}\n",
                counted(own, "new block")
            ),
        };
    }
    if let Some(r) = ended {
        lines += &format!("request {r} ends\n");
    }
    let text = format!(
        "A new pool; blocks are handed out as 1, 2, 3, ..\n\n{lines}\n\
         What are the ref counts of blocks 1 to {}?",
        next - 1
    );
    let mut explanation = String::new();
    for (r, table) in tables.iter().enumerate() {
        let gone = if Some(r) == ended { ", given back" } else { "" };
        explanation += &format!("request {r}: [{}]{gone}\n", commas(table));
    }
    explanation +=
        &format!("A block's ref count is the number of tables it is in.\n{}", joined(&counts));
    let list = |counts: Vec<i64>| Answer::List(counts);
    let facts = json!({ "first": first, "hits": hits, "lens": tables.iter().map(Vec::len).collect::<Vec<_>>(), "ended": ended });
    let once: Vec<i64> = counts.iter().map(|n| (*n).min(1)).collect();
    let others: Vec<i64> = counts.iter().map(|n| (n - 1).max(0)).collect();
    let ends_all: Vec<i64> = match ended {
        Some(r) => {
            let freed = |(block, n): (usize, &i64)| if tables[r].contains(&block) { 0 } else { *n };
            (1..).zip(&counts).map(freed).collect()
        }
        None => counts.clone(),
    };
    Question::new(text, list(counts), explanation, facts)
        .mistake(list(count(&all)), "a request that ends frees each of its blocks")
        .mistake(list(ends_all), "a block stays in use as long as another request has it")
        .mistake(list(once), "a hit is one more user of the same block")
        .mistake(list(others), "the request that computed a block is a user, too")
}
