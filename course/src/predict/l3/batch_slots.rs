//! Where a mixed batch writes.

use serde_json::json;

use super::drawn;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, joined};

pub const KIND: Kind = Kind {
    name: "batch-slots",
    about: "slot_mapping of a mixed batch",
    chapter: "l3-paged-kv/meta.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 4, 8]);
    // A prompt or a chunk of one, and two that bring little.
    let long = draw.below(3);
    let mut free = drawn::blocks(draw, 12, 12);
    let (mut lines, mut why) = (String::new(), String::new());
    let mut sequences = Vec::new();
    for s in 0..3 {
        let q_len = if s == long { draw.between(3, 5) } else { draw.between(1, 2) };
        let computed = if s == long && draw.one_in(2) { 0 } else { draw.between(1, 10) };
        let n = (computed + q_len).div_ceil(block_size);
        let table: Vec<usize> = free.drain(..n).collect();
        let slots: Vec<usize> =
            (computed..computed + q_len).map(|p| drawn::slot(&table, block_size, p)).collect();
        lines +=
            &format!("sequence {s}: {computed} stored, {q_len} new, table [{}]\n", commas(&table));
        why += &format!(
            "sequence {s}: positions {computed} to {}, slots {}\n",
            computed + q_len - 1,
            joined(&slots)
        );
        sequences.push((computed, q_len, table));
    }

    let text = format!(
        "Blocks of {block_size} tokens. A step runs these sequences, in this order:\n\n{lines}\n\
         What is slot_mapping?"
    );
    let explanation = format!(
        "A new token stands behind those that are stored, and lies in slot\n\
         table[position / {block_size}] * {block_size} + position % {block_size}.\n{}",
        why.trim_end()
    );
    let each = |slot: &dyn Fn(usize, usize, &[usize]) -> usize| {
        let slots = sequences.iter().flat_map(|(computed, q_len, table)| {
            (0..*q_len).map(|i| slot(*computed, i, table) as i64).collect::<Vec<_>>()
        });
        Answer::List(slots.collect())
    };
    let facts = json!({
        "block_size": block_size,
        "sequences": sequences.iter().map(|(computed, q_len, table)| {
            json!({ "computed": computed, "q_len": q_len, "table": table })
        }).collect::<Vec<_>>(),
    });
    let right = each(&|computed, i, table| drawn::slot(table, block_size, computed + i));
    Question::new(text, right, explanation, facts)
        .mistake(each(&|computed, i, _| computed + i), "those are positions; the table says where")
        .mistake(
            each(&|_, i, table| drawn::slot(table, block_size, i)),
            "what is stored stays: new tokens stand behind it",
        )
        .mistake(
            each(&|computed, i, table| drawn::slot(table, block_size, computed) + i),
            "at the end of a block go on in the next one of the table, wherever that is",
        )
        .mistake(
            each(&|computed, i, table| drawn::slot(table, block_size, computed + i) - block_size),
            "block b begins at b * block_size: the null block has slots, too",
        )
        .mistake(
            each(&|computed, i, table| table[(computed + i) / block_size]),
            "those are blocks; a slot is one place in a block",
        )
        .mistake(
            each(&|computed, i, table| table[(computed + i) / block_size] * block_size),
            "that is where the blocks begin: add the offset of each token",
        )
}
