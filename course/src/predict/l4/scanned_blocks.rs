//! Which blocks of a row are read twice.

use serde_json::json;

use super::drawn::{Table, ids, listed};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "scanned-blocks",
    about: "blocks that a top-k reads again",
    chapter: "l4-sampler/select.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let blocks = draw.between(6, 9);
    // Different maxima, halves, in no order.
    let mut maxima: Vec<f64> =
        ids(draw, blocks, 30).into_iter().map(|n| n as f64 / 2.0 - 5.0).collect();
    for i in (1..blocks).rev() {
        maxima.swap(i, draw.below(i + 1));
    }
    let k = if draw.one_in(8) { blocks + draw.between(1, 4) } else { draw.between(2, 4) };

    let mut order: Vec<usize> = (0..blocks).collect();
    order.sort_by(|a, b| maxima[*b].total_cmp(&maxima[*a]));
    let first = |n: usize| {
        let mut blocks = order[..n.min(blocks)].to_vec();
        blocks.sort_unstable();
        blocks
    };
    let right = first(k);
    let all: Vec<usize> = (0..blocks).collect();
    let table = Table::new().row("block", &all).row("largest", &maxima);
    let text = format!(
        "A row of logits was read once, for the largest of each block of 64:\n\n{table}\n\n\
         With top_k {k}, which blocks must be read again to find the likeliest tokens?\n\
         In ascending order."
    );
    let explanation = if k > blocks {
        wrapped(&format!(
            "Each of the {blocks} blocks has one large token for certain, which makes {blocks}, and {k} \
             are wanted: the others may be anywhere, so all blocks are read."
        ))
    } else {
        let largest: Vec<f64> = order[..k].iter().map(|i| maxima[*i]).collect();
        wrapped(&format!(
            "The {k} largest of these are {}: there are {k} tokens of at least {}. So each of the {k} \
             likeliest has at least that, and no block whose largest is below it can hold one. \
             Left are blocks {}. Each of them must be read: its largest is one of the {k} if the \
             blocks hold nothing else.",
            listed(&largest),
            largest[k - 1],
            listed(&right)
        ))
    };
    let rows = |blocks: Vec<usize>| Answer::Rows(blocks.into_iter().map(|b| b as i64).collect());
    let facts = json!({ "maxima": maxima, "k": k });
    Question::new(text, rows(right), explanation, facts)
        .mistake(
            rows(order[..1].to_vec()),
            "it may hold all of them, but it need not: another block's largest may be the second",
        )
        .mistake(rows(first(k - 1)), "the block with the k-th largest may hold the k-th token")
        .mistake(
            rows(first(k + 1)),
            "one too many: k tokens are at least as large as the k-th largest of these",
        )
        .mistake(rows(all), "k of these largest make a bar that the k likeliest tokens reach")
        .mistake(rows((0..k.min(blocks)).collect()), "by their largest, not by their place")
        .mistake(
            rows(order[..k.min(blocks)].to_vec()),
            "those are the blocks; answer in ascending order",
        )
}
