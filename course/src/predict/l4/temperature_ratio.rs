//! What a temperature does to two probabilities.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{significant, wrapped};

pub const KIND: Kind = Kind {
    name: "temperature-ratio",
    about: "how much likelier at another temperature",
    chapter: "l4-sampler/filters.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    // Temperatures whose quotients are powers that one takes in the head.
    let (from, to) = draw.pick(&[
        (1.0, 0.5),
        (1.0, 0.5),
        (1.0, 2.0),
        (1.0, 0.25),
        (0.5, 1.0),
        (2.0, 1.0),
        (0.5, 0.25),
        (0.5, 2.0),
        (2.0, 0.5),
    ]);
    let power: f64 = from / to;
    let ratio = match power {
        p if p < 1.0 => draw.pick(&[4.0, 9.0, 16.0, 25.0, 81.0]),
        p if p > 2.0 => draw.pick(&[2.0, 3.0, 1.5]),
        _ => draw.pick(&[2.0, 3.0, 4.0, 5.0, 1.5, 10.0]),
    };
    // Another token of the row; the quotient of the two does not depend on it.
    let other = draw.between(2, 9);
    let right = f64::powf(ratio, power);

    let text = wrapped(&format!(
        "At temperature {from} token A is {ratio} times as likely as token B, and token C is \
         {other} times as likely as B. How many times as likely as B is A at temperature {to}?"
    ));
    let cancels = wrapped(
        "At temperature T a probability is e^(logit / T), divided by a sum that all tokens \
         share: in the quotient of two it cancels, and C with it. Left is e^((a - b) / T).",
    );
    let explanation = format!(
        "{cancels}\n\
         From {from} to {to}, (a - b) / T is multiplied by {from} / {to} = {power},\n\
         so the quotient is raised to the power {power}: {ratio}^{power} = {}.",
        significant(right)
    );
    let facts = json!({ "ratio": ratio, "other": other, "from": from, "to": to });
    Question::new(text, Answer::Real(right), explanation, facts)
        .mistake(
            Answer::Real(f64::powf(ratio, 1.0 / power)),
            "the wrong way: cooler makes the likely likelier, hotter makes all more alike",
        )
        .mistake(
            Answer::Real(ratio * power),
            "the logits are divided by the temperature, so the quotient gets a power, not a factor",
        )
        .mistake(Answer::Real(ratio / power), "it is a power, and of the other direction")
        .mistake(Answer::Real(ratio), "a temperature does move quotients: only the order stays")
        .mistake(
            Answer::Real(f64::powf(ratio, 1.0 / to)),
            "it already has a temperature: what counts is the quotient of the two",
        )
}
