//! By which angle a pair of elements turns.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::significant;

pub const KIND: Kind = Kind {
    name: "rope-angle",
    about: "by how much a pair turns at a position",
    chapter: "l1-tensors/rope.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    // Bases and widths whose frequencies are roots one can take by hand.
    let (d, theta) =
        draw.pick(&[(8, 10_000), (8, 256), (4, 10_000), (4, 100), (12, 1_000_000), (16, 256)]);
    let pair = draw.between(1, d / 2 - 1);
    let position = draw.between(2, 40);

    let base = f64::from(theta);
    let frequency = |exponent: f64| base.powf(-exponent);
    let exponent = 2.0 * pair as f64 / d as f64;
    let p = position as f64;
    let angle = p * frequency(exponent);

    let text = format!(
        "A head of D = {d} elements, all of which turn, theta = {theta}, no scaling.\n\
         By which angle, in radians, does pair {pair} (counted from 0) turn at\nposition {position}?"
    );
    let explanation = format!(
        "inv_freq[{pair}] = theta^(-2 i / D) = {theta}^(-{}/{d}) = {}\n\
         angle = position * inv_freq = {position} * {} = {} radians",
        2 * pair,
        significant(frequency(exponent)),
        significant(frequency(exponent)),
        significant(angle)
    );
    let facts = json!({ "d": d, "theta": theta, "pair": pair, "position": position });
    Question::new(text, Answer::Real(angle), explanation, facts)
        .mistake(Answer::Real(angle.to_degrees()), "those are degrees; radians are asked for")
        .mistake(
            Answer::Real(angle / std::f64::consts::TAU),
            "those are turns; radians are asked for",
        )
        .mistake(
            Answer::Real(p * frequency(exponent / 2.0)),
            "the exponent is -2 i / D: there are D / 2 pairs, and the 2 is missing",
        )
        .mistake(
            Answer::Real(p * frequency(2.0 * exponent)),
            "the exponent is -2 i / D, with i the number of the pair and not of an element",
        )
        .mistake(
            Answer::Real(p / frequency(exponent)),
            "the exponent is negative: later pairs turn slower",
        )
        .mistake(
            Answer::Real(p * frequency(2.0 * (pair - 1) as f64 / d as f64)),
            "that is the pair before: pairs are counted from 0",
        )
        .mistake(
            Answer::Real(p * frequency(2.0 * (pair + 1) as f64 / d as f64)),
            "that is the pair after: pairs are counted from 0",
        )
        .mistake(
            Answer::Real((p - 1.0) * frequency(exponent)),
            "positions count from 0, and the one in the question is such a number already",
        )
        .mistake(Answer::Real(frequency(exponent)), "that is the angle of one position")
}
