//! One element of a normalised row.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, separated, significant};

pub const KIND: Kind = Kind {
    name: "rms-norm",
    about: "an element of a normalised row",
    chapter: "l1-tensors/ops.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(2, 4);
    let x: Vec<i64> =
        (0..n).map(|_| draw.between(1, 6) as i64 * if draw.one_in(3) { -1 } else { 1 }).collect();
    let weight: Vec<i64> = (0..n).map(|_| draw.between(2, 5) as i64).collect();
    // Large, so that its place in the formula shows.
    let eps = draw.pick(&[0.5, 1.0, 2.0]);
    let i = draw.below(n);

    let len = n as f64;
    let squares: i64 = x.iter().map(|v| v * v).sum();
    let mean_square = squares as f64 / len;
    let mean = x.iter().sum::<i64>() as f64 / len;
    let variance = x.iter().map(|v| (*v as f64 - mean).powi(2)).sum::<f64>() / len;
    let (xi, wi) = (x[i] as f64, weight[i] as f64);
    let y = xi / (mean_square + eps).sqrt() * wi;

    let text = format!(
        "rms_norm of one row:\n\nx      = [{}]\nweight = [{}]\neps    = {eps}\n\n\
         What is element {i} of the result (counted from 0)?",
        commas(&x),
        commas(&weight)
    );
    let terms: Vec<String> = x.iter().map(|v| format!("{}", v * v)).collect();
    let explanation = format!(
        "mean of the squares = ({}) / {n} = {}\n\
         its root, with eps inside = sqrt({} + {eps}) = {}\n\
         y[{i}] = x[{i}] / root * weight[{i}] = {} / {} * {} = {}",
        separated(&terms, " + "),
        significant(mean_square),
        significant(mean_square),
        significant((mean_square + eps).sqrt()),
        x[i],
        significant((mean_square + eps).sqrt()),
        weight[i],
        significant(y)
    );
    let facts = json!({ "x": x, "weight": weight, "eps": eps, "i": i });
    Question::new(text, Answer::Real(y), explanation, facts)
        .mistake(
            Answer::Real(xi / (mean_square.sqrt() + eps) * wi),
            "eps belongs inside of the root",
        )
        .mistake(
            Answer::Real(xi / mean_square.sqrt() * wi),
            "eps is missing, and here it is not small",
        )
        .mistake(
            Answer::Real(xi / (squares as f64 + eps).sqrt() * wi),
            "it is the mean of the squares, not their sum",
        )
        .mistake(Answer::Real(xi / (mean_square + eps).sqrt()), "the weight is missing")
        .mistake(Answer::Real(xi / (mean_square + eps) * wi), "the root is missing")
        .mistake(
            Answer::Real((xi - mean) / (variance + eps).sqrt() * wi),
            "that is layer norm: rms norm does not subtract the mean",
        )
}
