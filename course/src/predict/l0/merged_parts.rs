//! Parts of a context, merged.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::separated;

pub const KIND: Kind = Kind {
    name: "merged-parts",
    about: "the sum of parts that are merged",
    chapter: "l0-kernels/split.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(2, 3);
    // Each part has some keys, all with the same score: ln of a power of two.
    let powers: Vec<usize> = (0..n).map(|_| draw.pick(&[1, 2, 4, 8])).collect();
    let keys: Vec<usize> = (0..n).map(|_| draw.between(1, 6)).collect();
    let largest = powers.iter().copied().max().unwrap_or(1);
    let weighted: usize = powers.iter().zip(&keys).map(|(p, k)| p * k).sum();
    let rows: Vec<String> = powers
        .iter()
        .zip(&keys)
        .enumerate()
        .map(|(i, (p, k))| format!("part {i}: m = ln {p}, s = {k}"))
        .collect();
    let text = format!(
        "One query's context was cut. Each part has its largest score m and its sum s\n\
         of e^(score - m):\n\n\
         {}\n\n\
         What is the sum of the whole, measured from its own largest score?\n\
         A fraction is fine.",
        rows.join("\n")
    );
    let value = weighted as f64 / largest as f64;
    let terms: Vec<String> =
        powers.iter().zip(&keys).map(|(p, k)| format!("{k} x {p}/{largest}")).collect();
    let explanation = format!(
        "The largest is ln {largest}; a part with m = ln p counts s p / {largest}:\n\
         {} = {weighted}/{largest}.",
        separated(&terms, " + ")
    );
    let plain: usize = keys.iter().sum();
    let facts = json!({ "powers": powers, "keys": keys });
    Question::new(text, Answer::Real(value), explanation, facts)
        .mistake(Answer::Real(plain as f64), "the parts' sums are measured from different maxima")
        .mistake(
            Answer::Real(plain as f64 / n as f64),
            "parts are not averaged: each counts what its keys count",
        )
        .mistake(Answer::Real(weighted as f64), "measure from the largest score of the whole")
}
