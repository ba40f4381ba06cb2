//! The token that greedy decoding takes.

use serde_json::json;

use super::WORDS;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::separated;

pub const KIND: Kind = Kind {
    name: "largest-logit",
    about: "the token with the largest logit",
    chapter: "one-token.md#stations-6-and-7-logits-and-a-choice",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let mut logits: Vec<f64> = WORDS.map(|_| (draw.below(26) as f64 - 20.0) / 2.0).to_vec();
    let top = 3.0 + draw.below(8) as f64 / 2.0;
    let first = draw.below(WORDS.len() - 1);
    logits[first] = top;
    let tie = !draw.one_in(3);
    let second = draw.between(first + 1, WORDS.len() - 1);
    logits[second] = if tie { top } else { top - 0.5 };

    let lines: Vec<String> = WORDS
        .iter()
        .zip(&logits)
        .enumerate()
        .map(|(token, (word, logit))| format!("{token}  {word:<4}  {logit:>5.1}"))
        .collect();
    let text = format!(
        "The logits behind a prompt, one for each token of the vocabulary:\n\n{}\n\n\
         Decoding is greedy. Which token comes next (its id)?",
        separated(&lines, "\n")
    );
    let explanation = if tie {
        format!(
            "The largest logit is {top}, and tokens {first} and {second} have it. The first one is taken,\n\
             so that the output is the same in every run: {first}, `{}`.",
            WORDS[first]
        )
    } else {
        format!(
            "The largest logit is {top}, that of token {first}, `{}`.\n\
             Softmax would make probabilities of all, in the same order.",
            WORDS[first]
        )
    };
    let whole = |n: usize| Answer::Whole(n as i64);
    let by = |key: &dyn Fn(f64) -> f64| {
        let all = (0..logits.len()).rev();
        all.max_by(|a, b| key(logits[*a]).total_cmp(&key(logits[*b]))).unwrap_or(0)
    };
    let other = if tie {
        "of equal logits the first one is taken"
    } else {
        "that is the second largest logit"
    };
    let facts = json!({ "logits": logits });
    Question::new(text, whole(first), explanation, facts)
        .mistake(whole(second), other)
        .mistake(whole(by(&f64::abs)), "the sign counts: a negative logit is a small one")
        .mistake(whole(by(&|x: f64| -x)), "that is the smallest logit")
        .mistake(whole(first + 1), "tokens are counted from 0")
}
