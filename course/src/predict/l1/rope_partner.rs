//! Which element turns together with which.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "rope-partner",
    about: "which element another one turns with",
    chapter: "l1-tensors/rope.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let d = draw.pick(&[8, 12, 16, 20, 24, 32, 48, 64, 80, 96, 128]);
    let rotary = if draw.one_in(2) { d / 2 } else { d };
    let element = draw.below(rotary);

    let half = rotary / 2;
    let partner = (element + half) % rotary;
    let part = if rotary == d {
        "all of which turn".into()
    } else {
        format!("of which the first {rotary} turn (rotary_dim = {rotary})")
    };
    let text = format!(
        "A head of D = {d} elements, {part};\n\
         weights as transformers stores them.\nTogether with which element does rope turn element {element}?"
    );
    let explanation = format!(
        "The pairs are halves: i with i + h, h = rotary_dim / 2 = {rotary} / 2 = {half}.\n\
         {element} is in the {} half, so its partner is {element} {} {half} = {partner}.",
        if element < half { "first" } else { "second" },
        if element < half { "+" } else { "-" },
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "d": d, "rotary_dim": rotary, "element": element });
    Question::new(text, whole(partner), explanation, facts)
        .mistake(
            whole(element ^ 1),
            "those are neighbours, as the original Llama code and GGUF files have it; here it is halves",
        )
        .mistake(
            whole((element + d / 2) % d),
            "half of what turns, not half of the head: the rest stands still",
        )
        .mistake(whole(rotary - 1 - element), "the second half is not mirrored: i goes with i + h")
}
