//! How many blocks leases hold that share some of them.

use serde_json::json;

use super::drawn::{names, table};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "leased-blocks",
    about: "blocks that leases hold, when one of them has ended",
    chapter: "l5-scheduler/leases.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(3, 4);
    let names = names(draw, n);
    // Blocks at the beginning that all have in common as far as they go, and blocks of its own.
    let leases: Vec<(usize, usize)> =
        (0..n).map(|_| (draw.between(1, 5), draw.between(1, 4))).collect();
    let gone = draw.below(n);

    let left: Vec<(usize, usize)> = (0..n).filter(|i| *i != gone).map(|i| leases[i]).collect();
    let shared = |of: &[(usize, usize)]| of.iter().map(|(shared, _)| *shared).max().unwrap_or(0);
    let own = |of: &[(usize, usize)]| of.iter().map(|(_, own)| *own).sum::<usize>();
    let right = shared(&left) + own(&left);

    let rows: Vec<Vec<usize>> = (0..n).map(|i| vec![names[i], leases[i].0, leases[i].1]).collect();
    let text = format!(
        "All prompts of a program begin with the same text. Requests finish one after\n\
         the other, and a lease holds the blocks of each:\n\n{}\n\n\
         The lease of request {} ends. How many blocks do leases hold now?",
        table(&["request", "blocks of the common text", "blocks of its own"], &rows),
        names[gone]
    );
    let explanation = format!(
        "Of the common text, leases still hold {} blocks: those of the longest part.\n\
         Each counts once. The blocks of their own are {} together. That is {right}.",
        shared(&left),
        own(&left)
    );
    let facts = json!({
        "leases": leases.iter().map(|(shared, own)| json!([shared, own])).collect::<Vec<_>>(),
        "gone": gone,
    });
    let whole = |blocks: usize| Answer::Whole(blocks as i64);
    let sum: usize = left.iter().map(|(shared, own)| shared + own).sum();
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(sum), "a block that several leases hold is one block")
        .mistake(whole(shared(&leases) + own(&leases)), "the lease that has ended holds nothing")
        .mistake(
            whole((shared(&leases) + own(&leases)).saturating_sub(leases[gone].0 + leases[gone].1)),
            "blocks that other leases hold, too, stay with them",
        )
        .mistake(
            whole(shared(&leases) + own(&left)),
            "common blocks that only the ended lease held are free",
        )
        .mistake(whole(own(&left)), "common blocks are held, too")
}
