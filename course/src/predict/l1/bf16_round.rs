//! Whole numbers are enough to show how bf16 rounds: beyond 256 it has not all of them.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "bf16-round",
    about: "what a whole number becomes in bf16",
    chapter: "l1-tensors/layouts.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let exponent = draw.between(8, 11) as u32;
    let step = 1i64 << (exponent - 7);
    let below = (1i64 << exponent) + step * draw.below(127) as i64;
    let above = below + step;
    // Ties are what people get wrong, so two of three are ties.
    let over = if draw.one_in(3) { draw.between(1, step as usize - 1) as i64 } else { step / 2 };
    let x = below + over;

    let even = if (below / step) % 2 == 0 { below } else { above };
    let (rounded, why) = match (2 * over).cmp(&step) {
        std::cmp::Ordering::Less => (below, format!("{x} is nearer to {below}.")),
        std::cmp::Ordering::Greater => (above, format!("{x} is nearer to {above}.")),
        std::cmp::Ordering::Equal => (
            even,
            format!(
                "{x} is exactly half-way, so the even one wins:\n\
                 {below} = {} * {step}, {above} = {} * {step}, and {} is even.",
                below / step,
                above / step,
                even / step
            ),
        ),
    };
    let text = format!("The f32 number {x}.0 is stored as bf16 and read back. What comes?");
    let explanation = format!(
        "bf16 keeps 8 significant bits, the leading one included. {x} lies between\n\
         2^{exponent} and 2^{}, where neighbours are 2^({exponent} - 7) = {step} apart: {below} and {above}.\n{why}",
        exponent + 1
    );
    Question::new(text, Answer::Whole(rounded), explanation, json!({ "x": x }))
        .mistake(Answer::Whole(x), "bf16 has 8 significant bits, so not all numbers above 256")
        .mistake(
            Answer::Whole(if rounded == below { above } else { below }),
            if 2 * over == step {
                "the right two neighbours, but a tie goes to the one whose last bit is 0"
            } else {
                "the right two neighbours, but the other one is nearer"
            },
        )
        .mistake(
            Answer::Whole((x as f64 / (2 * step) as f64).round() as i64 * 2 * step),
            "one bit too few: 7 bits are stored, and the leading 1 comes on top of them",
        )
}
