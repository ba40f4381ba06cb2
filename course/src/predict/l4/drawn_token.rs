//! Which token a number picks.

use serde_json::json;

use super::drawn::{Table, ids, parts};
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "drawn-token",
    about: "the token that a random number picks",
    chapter: "l4-sampler/draw.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(4, 5);
    let ids = ids(draw, n, 60);
    // Eighths are exact in binary: there a number may be just a sum, and one sees who gets it.
    let (total, u) = match draw.one_in(2) {
        true => (8, draw.below(8) * 125),
        false => (10, draw.below(10) * 100 + draw.between(1, 9) * 10),
    };
    let parts = parts(draw, n, total);
    // Filters find tokens from the likeliest down, or in any other order: shown like that.
    let mut shown: Vec<usize> = (0..n).collect();
    shown.sort_by_key(|i| (std::cmp::Reverse(parts[*i]), *i));

    let right = first_above(&parts, 0..n, u, total);
    let table = Table::new()
        .row("token", &shown.iter().map(|i| ids[*i]).collect::<Vec<_>>())
        .row("share", &shown.iter().map(|i| format!("{}/{total}", parts[*i])).collect::<Vec<_>>());
    let number = u as f64 / 1000.0;
    let text = format!(
        "The filters left these tokens, shown from the likeliest down:\n\n{table}\n\n\
         The random number is {number}. Which token is drawn?"
    );
    let mut explanation = "In the order of their ids, each token has the numbers\n".to_string();
    let mut sum = 0;
    for (id, part) in ids.iter().zip(&parts) {
        let (low, high) = (sum as f64 / total as f64, (sum + part) as f64 / total as f64);
        explanation += &format!("token {id:>2}: from {low}, below {high}\n");
        sum += part;
    }
    explanation += &format!("{number} lies in those of token {}.", ids[right]);
    let whole = |i: usize| Answer::Whole(ids[i] as i64);
    let reached = |order: &[usize]| {
        let mut sum = 0;
        let reaches = |i: &&usize| {
            sum += parts[**i];
            1000 * sum >= u * total
        };
        order.iter().find(reaches).copied().unwrap_or(right)
    };
    let in_order: Vec<usize> = (0..n).collect();
    let largest = shown[0];
    let facts = json!({ "ids": ids, "parts": parts, "u": number });
    let mut question = Question::new(text, whole(right), explanation, facts)
        .mistake(
            whole(first_above(&parts, shown.iter().copied(), u, total)),
            "the order is that of the ids, however the filters found the tokens",
        )
        .mistake(
            whole(reached(&in_order)),
            "the sum must exceed the number: one that is equal is the next token's first",
        )
        .mistake(whole(largest), "that is the likeliest; a number above its share picks another")
        .mistake(
            whole(first_above(&parts, (0..n).rev(), u, total)),
            "the sums begin at the lowest id",
        );
    for i in in_order {
        question = question.mistake(
            whole(i),
            format!("sum the shares up to it: {number} is not among its numbers"),
        );
    }
    question
}

/// The first of an order at which the summed share exceeds the number (thousandths).
fn first_above(
    parts: &[usize],
    order: impl Iterator<Item = usize> + Clone,
    u: usize,
    total: usize,
) -> usize {
    let mut sum = 0;
    let mut last = 0;
    for i in order {
        sum += parts[i];
        last = i;
        if 1000 * sum > u * total {
            break;
        }
    }
    last
}
