//! Where a token's keys and values lie.

use serde_json::json;

use super::drawn;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::commas;

pub const KIND: Kind = Kind {
    name: "token-slot",
    about: "the slot of a position",
    chapter: "l3-paged-kv/tables.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let n = draw.between(3, 5);
    let table = drawn::blocks(draw, n, 24);
    let position = draw.between(block_size, n * block_size - 1);

    let (nth, offset) = (position / block_size, position % block_size);
    let block = table[nth];
    let slot = drawn::slot(&table, block_size, position);
    let text = format!(
        "Blocks of {block_size} tokens; a sequence's block table is [{}].\n\
         In which slot are the keys and values of its token at position {position}?",
        commas(&table)
    );
    let explanation = format!(
        "{position} / {block_size} = {nth}, remainder {offset}: the token is number {offset} of block table[{nth}] = {block}\n\
         slot = block * block_size + offset = {block} * {block_size} + {offset} = {slot}"
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "block_size": block_size, "table": table, "position": position });
    let mut question = Question::new(text, whole(slot), explanation, facts)
        .mistake(whole(position), "that is the place in the sequence; the table says which block")
        .mistake(whole(block), "that is the block; a slot is one of its places")
        .mistake(whole(block * block_size), "that is where the block begins: add the offset in it")
        .mistake(
            whole((block - 1) * block_size + offset),
            "the null block has slots, too: block b begins at b * block_size",
        )
        .mistake(
            whole(table[nth - 1] * block_size + offset),
            "that is the block before: the table is counted from 0",
        );
    if let Some(next) = table.get(nth + 1) {
        let after = "that is the block behind: round position / block_size down";
        question = question.mistake(whole(next * block_size + offset), after);
    }
    question
}
