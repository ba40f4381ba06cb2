//! A softmax weight in a row with masked scores.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, separated};

pub const KIND: Kind = Kind {
    name: "softmax-mask",
    about: "a weight of a row with masked scores",
    chapter: "l1-tensors/softmax.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(3, 5);
    // Scores are logarithms of small numbers, so that their exponentials are those numbers. 0 is
    // the logarithm of a masked one's.
    let mut parts: Vec<usize> = (0..n).map(|_| draw.between(1, 6)).collect();
    parts[draw.below(n)] = 0;
    if draw.one_in(8) {
        parts.fill(0);
    }
    let total: usize = parts.iter().sum();
    let mut i = draw.below(n);
    if parts[i] == 0 && total > 0 && !draw.one_in(8) {
        i = (i + 1) % n;
    }

    let scores: Vec<String> = parts
        .iter()
        .map(|part| match part {
            0 => "-inf".into(),
            1 => "0".into(),
            n => format!("ln {n}"),
        })
        .collect();
    let text = format!(
        "A row of scores, of which -inf is masked:\n\n[{}]\n\n\
         What is weight {i} (counted from 0) of its softmax? A fraction is fine.",
        commas(&scores)
    );
    let value = if total == 0 { 0.0 } else { parts[i] as f64 / total as f64 };
    let explanation = if total == 0 {
        "Everything is masked. The formula says 0/0; in this engine such a row is all\n\
         zeros, so that a row of padding stays harmless."
            .to_string()
    } else {
        let terms = separated(&parts, " + ");
        format!(
            "e^(ln n) = n, e^0 = 1 and e^-inf = 0, so the exponentials are\n[{}],\n\
             their sum is {terms} = {total}, and weight {i} is {}/{total}.",
            commas(&parts),
            parts[i]
        )
    };
    let masked = parts.iter().filter(|p| **p == 0).count();
    let log_of = |part: usize| if part == 0 { 0.0 } else { (part as f64).ln() };
    let logs: f64 = parts.iter().map(|p| log_of(*p)).sum();
    let facts = json!({ "parts": parts, "i": i });
    let mut question = Question::new(text, Answer::Real(value), explanation, facts)
        .mistake(Answer::Real(1.0 / n as f64), "a masked score gets weight 0, not an equal share");
    if total > 0 {
        let as_zero = if parts[i] == 0 { 1 } else { parts[i] };
        question = question
            .mistake(
                Answer::Real(as_zero as f64 / (total + masked) as f64),
                "the masked score was counted as 0: e^0 is 1, but e^-inf is 0",
            )
            .mistake(Answer::Real(parts[i] as f64), "the division by the sum is missing");
        if logs > 0.0 {
            question = question.mistake(
                Answer::Real(log_of(parts[i]) / logs),
                "softmax divides exponentials, not the scores themselves",
            );
        }
    }
    question
}
