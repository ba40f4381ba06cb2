//! The softmax of three scores.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{commas, separated};

pub const KIND: Kind = Kind {
    name: "softmax-share",
    about: "the weight of a token, from three scores",
    chapter: "one-token.md#station-4-attention",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    // Scores are logarithms of numbers whose sum makes an even share of each.
    let total = draw.pick(&[4, 5, 8, 8, 10, 10]);
    let first = draw.between(1, total - 2);
    let second = draw.between(1, total - first - 1);
    let parts = [first, second, total - first - second];
    let i = draw.below(3);

    let scores = parts.map(|part| if part == 1 { "0".into() } else { format!("ln {part}") });
    let text = format!(
        "The scores of a query with the keys of three tokens:\n\n[{}]\n\n\
         Which weight does softmax give to token {i} (counted from 0)?\n\
         A fraction is fine.",
        commas(&scores)
    );
    let value = parts[i] as f64 / total as f64;
    let explanation = format!(
        "e^(ln n) = n and e^0 = 1, so the exponentials are [{}].\n\
         Their sum is {} = {total}, and the weight of token {i} is {}/{total} = {value}.",
        commas(&parts),
        separated(&parts, " + "),
        parts[i]
    );
    let logs = parts.map(|part| (part as f64).ln());
    let largest = parts.iter().max().map_or(1.0, |max| *max as f64);
    let others: Vec<usize> = (0..3).filter(|j| *j != i).collect();
    let facts = json!({ "parts": parts, "i": i });
    let real = Answer::Real;
    let mut question = Question::new(text, real(value), explanation, facts)
        .mistake(
            real(parts[i] as f64),
            "that is the exponential; divide it by the sum of all three",
        )
        .mistake(
            real(logs[i] / logs.iter().sum::<f64>()),
            "softmax divides exponentials, not the scores themselves",
        )
        .mistake(real(logs[i]), "that is the score itself; softmax makes a share of it")
        .mistake(real(parts[i] as f64 / largest), "divide by the sum, not by the largest one")
        .mistake(real(1.0 / 3.0), "the weights are equal only if the scores are");
    for j in others {
        let other = format!("that is the weight of token {j}: tokens are counted from 0");
        question = question.mistake(real(parts[j] as f64 / total as f64), other);
    }
    question
}
