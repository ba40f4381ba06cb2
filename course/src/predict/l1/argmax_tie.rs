//! The largest element of a row with a tie and a NaN.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::commas;

pub const KIND: Kind = Kind {
    name: "argmax-tie",
    about: "the index greedy decoding takes",
    chapter: "l1-tensors/softmax.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(6, 9);
    let mut row: Vec<Option<f64>> =
        (0..n).map(|_| Some((draw.below(40) as f64 - 30.0) / 2.0)).collect();
    // The largest twice, and a NaN in a place of its own.
    let top = 5.0 + draw.below(8) as f64 / 2.0;
    let first = draw.below(n - 2);
    let second = draw.between(first + 1, n - 1);
    (row[first], row[second]) = (Some(top), Some(top));
    let nan = (second + draw.between(1, n - 1)) % n;
    if nan != first {
        row[nan] = None;
    }

    let shown: Vec<String> =
        row.iter().map(|v| v.map_or("NaN".into(), |v| format!("{v}"))).collect();
    let text = format!(
        "The logits of a tiny vocabulary:\n\n[{}]\n\n\
         Which token (counted from 0) does greedy decoding take?",
        commas(&shown)
    );
    let has_nan = if row.iter().any(Option::is_none) {
        "\nNaN ranks below -inf, so it never wins."
    } else {
        ""
    };
    let explanation = format!(
        "The largest logit is {top}, at {first} and at {second}. Of equal ones the lowest index wins,\n\
         on every run, thread count and processor: {first}.{has_nan}"
    );
    let smallest = row
        .iter()
        .enumerate()
        .filter_map(|(i, v)| v.map(|v| (i, v)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map_or(0, |(i, _)| i);
    let mut question =
        Question::new(text, Answer::Whole(first as i64), explanation, json!({ "row": row }))
            .mistake(Answer::Whole(second as i64), "of two equal logits the first one wins");
    if let Some(nan) = row.iter().position(Option::is_none) {
        question =
            question.mistake(Answer::Whole(nan as i64), "that is the NaN, and it ranks below -inf");
    }
    question
        .mistake(Answer::Whole(first as i64 + 1), "tokens are counted from 0")
        .mistake(Answer::Whole(smallest as i64), "that is the smallest")
}
