//! How many blocks a table lacks.

use serde_json::json;

use super::drawn::counted;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "missing-blocks",
    about: "blocks to append before tokens fit",
    chapter: "l3-paged-kv/tables.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16, 32]);
    let stored = draw.between(1, 6 * block_size);
    // Often the last token that fits, or the first that does not: there the mistakes are.
    let edge = (stored.div_ceil(block_size) + draw.between(0, 4)) * block_size;
    let more = match draw.below(3) {
        0 => (edge - stored).max(1),
        1 => edge - stored + 1,
        _ => draw.between(1, 4 * block_size),
    };

    let (has, len) = (stored.div_ceil(block_size), stored + more);
    let needs = len.div_ceil(block_size);
    let text = format!(
        "Blocks of {block_size} tokens. A sequence has {stored} tokens stored and is to get {more} more.\n\
         How many blocks must be appended to its table first?"
    );
    let explanation = format!(
        "has:    {stored} / {block_size}, rounded up, = {}\n\
         needs:  {stored} + {more} = {len} tokens, {len} / {block_size}, rounded up, = {}\n\
         so {needs} - {has} = {} must be appended",
        counted(has, "block"),
        counted(needs, "block"),
        needs - has
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "block_size": block_size, "stored": stored, "more": more });
    Question::new(text, whole(needs - has), explanation, facts)
        .mistake(whole(more.div_ceil(block_size)), "the last block it has may have room left")
        .mistake(whole(needs), "that is how many it needs in all; it has some")
        .mistake(
            whole(len / block_size - stored / block_size),
            "a block that is begun counts: round up both times",
        )
        .mistake(whole(len / block_size + 1 - has), "a length that fills its blocks needs no more")
        .mistake(whole(more), "those are tokens; a block holds several")
}
