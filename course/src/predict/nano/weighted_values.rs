//! The output of an attention head.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::separated;

pub const KIND: Kind = Kind {
    name: "weighted-values",
    about: "the output of a head, a mean of values",
    chapter: "one-token.md#station-4-attention",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(2, 3);
    let whole = draw.pick(&[4, 5, 10]);
    // Weights are parts of a whole, and values are multiples of it, so that the mean is a whole number.
    let mut parts = vec![1; n];
    (n..whole).for_each(|_| parts[draw.below(n)] += 1);
    let size = whole as i64;
    let values: Vec<[i64; 2]> = (0..n)
        .map(|_| [draw.below(6), draw.below(6)].map(|times| size * (times as i64 - 1)))
        .collect();

    let mean = |parts: &[usize]| -> [i64; 2] {
        [0, 1].map(|e| parts.iter().zip(&values).map(|(p, v)| *p as i64 * v[e] / size).sum())
    };
    let right = mean(&parts);
    let sum = [0, 1].map(|e| values.iter().map(|v| v[e]).sum::<i64>());
    let weight = |i: usize| parts[i] as f64 / whole as f64;
    let largest = (0..n).rev().max_by_key(|i| parts[*i]).unwrap_or(0);
    if right == sum || right == values[largest] || values.contains(&[0, 0]) {
        return self::draw(draw);
    }

    let lines: Vec<String> = (0..n)
        .map(|i| {
            let [a, b] = values[i];
            format!("token {i}   weight {:<4}   value [{a}, {b}]", weight(i))
        })
        .collect();
    let text = format!(
        "An attention head of size 2. Softmax has made these weights of its scores:\n\n{}\n\n\
         What is the output of the head? (Two numbers.)",
        separated(&lines, "\n")
    );
    let terms = |e: usize| {
        let terms: Vec<String> =
            (0..n).map(|i| format!("{} * {}", weight(i), values[i][e])).collect();
        format!("{} = {}", separated(&terms, " + "), right[e])
    };
    let explanation = format!(
        "The output is the mean of the values, each with its weight:\n{}\n{}",
        terms(0),
        terms(1)
    );
    let list = |two: [i64; 2]| Answer::List(two.to_vec());
    let reversed: Vec<usize> = parts.iter().rev().copied().collect();
    let facts = json!({ "parts": parts, "values": values });
    let mut question = Question::new(text, list(right), explanation, facts)
        .mistake(
            list(values[largest]),
            "all values count, not only the one with the largest weight",
        )
        .mistake(list(sum), "that is the sum of the values without their weights")
        .mistake(list(mean(&reversed)), "that is the weight of another token: keep their order")
        .mistake(list([right[1], right[0]]), "the two numbers are in the order of the values");
    if sum.iter().all(|s| s % n as i64 == 0) {
        let plain = sum.map(|s| s / n as i64);
        question = question.mistake(list(plain), "that is the plain mean; each value has a weight");
    }
    question
}
