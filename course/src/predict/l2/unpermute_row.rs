//! Where a row of q lies in a GGUF file of a llama.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "unpermute-row",
    about: "where a GGUF file keeps a row of q",
    chapter: "l2-model/checkpoints.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let d = draw.pick(&[8, 12, 16, 32, 64]);
    let heads = draw.between(2, 6);
    let row = draw.between(1, heads * d - 1);

    let (head, within) = (row / d, row % d);
    let stored = |within: usize| 2 * (within % (d / 2)) + within / (d / 2);
    let place = head * d + stored(within);
    let text = format!(
        "A GGUF file of architecture `llama`, {heads} query heads, D = {d}.\n\
         The loader wants row {row} of q_proj in the order of transformers (halves).\n\
         Which row of the stored matrix (counted from 0) is it?"
    );
    let half = within / (d / 2);
    let explanation = format!(
        "Row {row} is row {within} of head {head}: {row} = {head} * {d} + {within}.\n\
         {within} = h * D/2 + i with h = {half}, i = {}; the converter moved it to\n\
         2 i + h = {}. With the head in front: {head} * {d} + {} = {place}.",
        within % (d / 2),
        stored(within),
        stored(within)
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let inverse = within / 2 + within % 2 * (d / 2);
    let facts = json!({ "head_dim": d, "heads": heads, "row": row });
    Question::new(text, whole(place), explanation, facts)
        .mistake(
            whole(head * d + inverse),
            "the other direction: that is the row of transformers which the file keeps there",
        )
        .mistake(whole(row), "files of architecture `llama` have the rows of q and k permuted")
        .mistake(whole(stored(within)), "the head in front is missing")
        .mistake(
            whole(head * d + (within + d / 2) % d),
            "that is the row it turns with; asked is where it lies",
        )
        .mistake(
            whole(2 * (row % (heads * d / 2)) + row / (heads * d / 2)),
            "the rows are permuted within each head, not over all of them",
        )
}
