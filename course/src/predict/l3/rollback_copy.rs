//! What a rollback has to copy.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::wrapped;

pub const KIND: Kind = Kind {
    name: "rollback-copy",
    about: "tokens that a rollback has to copy",
    chapter: "l3-paged-kv/state.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let block_size = draw.pick(&[4, 8, 16]);
    let full = draw.between(2, 5);
    let len = full * block_size + draw.between(2, block_size - 1);
    // Into a full block mostly, sometimes to its beginning or into the last, unfinished one.
    let to = match draw.below(6) {
        0 => draw.between(1, full) * block_size,
        1 => full * block_size + draw.between(1, len - full * block_size - 1),
        _ => draw.below(full) * block_size + draw.between(1, block_size - 1),
    };

    let (nth, offset) = (to / block_size, to % block_size);
    let hashed = nth < full;
    let copied = if hashed { offset } else { 0 };
    let text = wrapped(&format!(
        "Blocks of {block_size} tokens. A sequence has {len} tokens, all computed, and every full block \
         has a hash. It is rolled back to {to} tokens. How many tokens' keys and values are \
         copied to another block?"
    ));
    let why = match (offset, hashed) {
        (0, _) => "the cut is between two blocks: nothing is left of the one behind it".into(),
        (_, true) => format!(
            "it is full and has a hash: a hit must find what was hashed, so the\n\
             sequence goes on in a block of its own, with a copy of the first {offset}"
        ),
        (_, false) => {
            "it was never full, has no hash and one user: the sequence goes on in it".into()
        }
    };
    let explanation = format!(
        "{to} / {block_size} = {nth}, remainder {offset}: the cut leaves {offset} tokens of block {nth}\n{why}"
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "block_size": block_size, "len": len, "to": to });
    Question::new(text, whole(copied), explanation, facts)
        .mistake(whole(offset), "an unshared block without a hash can be written again")
        .mistake(whole(0), "a hashed block must not be written: others may hit it")
        .mistake(whole(to), "only the block with the cut in it is copied; those before stay")
        .mistake(whole(block_size), "what lies behind the cut is forgotten; it needs no copy")
        .mistake(whole(len - to), "those are forgotten, not copied")
        .mistake(whole(block_size - offset), "those lie behind the cut, and are forgotten")
}
