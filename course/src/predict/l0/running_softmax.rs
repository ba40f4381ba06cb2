//! The sum of a softmax that has seen some of its scores.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, separated};

pub const KIND: Kind = Kind {
    name: "running-softmax",
    about: "the sum of a softmax so far",
    chapter: "l0-kernels/softmax.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(3, 5);
    // Scores are logarithms of small numbers, so that their exponentials are those numbers.
    let parts: Vec<usize> = (0..n).map(|_| draw.between(1, 9)).collect();
    let seen = draw.between(2, n);
    let so_far = &parts[..seen];
    let (total, largest): (usize, usize) =
        (so_far.iter().sum(), so_far.iter().copied().max().unwrap_or(1));
    let scores: Vec<String> = parts
        .iter()
        .map(|part| if *part == 1 { "0".into() } else { format!("ln {part}") })
        .collect();
    let text = format!(
        "A running softmax keeps m, the largest score so far, and s, the sum of\n\
         e^(score - m). It meets these scores, one after the other:\n\n[{}]\n\n\
         What is s after {seen} of them? A fraction is fine.",
        commas(&scores)
    );
    let value = total as f64 / largest as f64;
    let explanation = format!(
        "m is ln {largest} by then, and e^(ln n - ln {largest}) = n/{largest}:\n\
         s = ({})/{largest} = {total}/{largest}. On the way s was multiplied by\n\
         (old largest)/(new largest) whenever the largest changed.",
        separated(so_far, " + ")
    );
    let first = so_far[0];
    let all: usize = parts.iter().sum();
    let facts = json!({ "parts": parts, "seen": seen });
    Question::new(text, Answer::Real(value), explanation, facts)
        .mistake(Answer::Real(total as f64), "that is the sum of e^score: measure from the largest")
        .mistake(
            Answer::Real(total as f64 / first as f64),
            "that is measured from the first score, not from the largest",
        )
        .mistake(Answer::Real(all as f64 / largest as f64), "not all of them have been seen yet")
        .mistake(
            Answer::Real(without_correction(so_far)),
            "what was added before the largest came must be rescaled",
        )
}

/// The sum if it is never rescaled: each term measured from the maximum of its own moment.
fn without_correction(parts: &[usize]) -> f64 {
    let mut largest = 0;
    let term = |part: &usize| {
        largest = largest.max(*part);
        *part as f64 / largest as f64
    };
    parts.iter().map(term).sum()
}
