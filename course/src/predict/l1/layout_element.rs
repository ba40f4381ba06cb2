//! Where an element of a view lies in the buffer below.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "layout-element",
    about: "where an element of a view lies",
    chapter: "l1-tensors/layouts.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let (tokens, heads, d) = (draw.between(3, 6), draw.between(2, 4), draw.between(3, 6));
    let (before, after) = (draw.between(1, 2) * d, draw.between(1, 2) * d);
    let (width, row) = (heads * d, before + heads * d + after);
    let (t, h, e) = (draw.between(1, tokens - 1), draw.between(1, heads - 1), draw.below(d));
    let swapped = draw.one_in(2);

    let element = if swapped { [h, t, e] } else { [t, h, e] };
    let place = before + t * row + h * d + e;
    let turn = if swapped { "\n  .transpose(0, 1)" } else { "" };
    let text = format!(
        "A contiguous buffer of shape [{tokens}, {row}], and a view of it:\n\n\
         buffer\n  .narrow(1, {before}, {width})\n  .reshape([{tokens}, {heads}, {d}]){turn}\n\n\
         At which place of the buffer (counted from 0, in elements) does element\n\
         {element:?} of the view lie?"
    );
    let (strides, turned) = if swapped {
        ([d, row, 1], ";\ntransposing has swapped the first two")
    } else {
        ([row, d, 1], "")
    };
    let explanation = format!(
        "narrow moves the offset to {before} and leaves the strides [{row}, 1].\n\
         reshape splits the last dimension: strides [{row}, {d}, 1]{turned}.\n\
         offset + i * strides = {before} + {} * {} + {} * {} + {} * 1 = {place}",
        element[0], strides[0], element[1], strides[1], element[2]
    );
    let other = if swapped { [d, row, 1] } else { [row, d, 1] };
    let dot = |index: [usize; 3], strides: [usize; 3]| -> usize {
        index.iter().zip(strides).map(|(i, s)| i * s).sum()
    };
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({
        "buffer": [tokens, row], "narrow": [1, before, width], "reshape": [tokens, heads, d],
        "transposed": swapped, "element": element,
    });
    Question::new(text, whole(place), explanation, facts)
        .mistake(whole(place - before), "the offset that narrow leaves behind is missing")
        .mistake(
            whole(before + t * width + h * d + e),
            "rows of the view are as far apart as rows of the buffer, not as they are wide",
        )
        .mistake(
            whole(t * width + h * d + e),
            "that is the place in a contiguous copy; the view skips what narrow cut away",
        )
        .mistake(
            whole(before + dot([element[1], element[0], element[2]], other)),
            "the indices and the strides are not in the same order: transpose swaps both",
        )
}
