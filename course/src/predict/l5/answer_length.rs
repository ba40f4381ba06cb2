//! With which token an answer ends.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::commas;

pub const KIND: Kind = Kind {
    name: "answer-length",
    about: "how many tokens an answer has",
    chapter: "l5-scheduler/resolve.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(9, 11);
    // The model's end and pad tokens, a stop token of the request's, and what it writes.
    let (pad, eos, stop) = (0, draw.between(1, 3), draw.between(4, 6));
    let ignores = draw.one_in(4);
    let mut tokens: Vec<usize> = (0..n).map(|_| draw.between(10, 60)).collect();
    let last = draw.between(4, n - 1);
    for token in [eos, stop, pad] {
        if !draw.one_in(4) {
            tokens[draw.between(1, last)] = token;
        }
    }
    let prompt = draw.between(5, 40);
    let max_tokens = draw.between(4, n);
    let longest = prompt + if draw.one_in(3) { draw.between(3, n) } else { draw.between(n, 60) };

    let first = |token: usize| tokens.iter().position(|t| *t == token).map(|at| at + 1);
    let ends: Vec<(usize, String)> = [
        (if ignores { None } else { first(eos) }, format!("end token {eos}")),
        (first(stop), format!("stop token {stop}")),
        (Some(max_tokens), format!("max_tokens {max_tokens}")),
        (Some(longest - prompt), format!("{prompt} + {} = max_model_len", longest - prompt)),
    ]
    .into_iter()
    .filter_map(|(at, why)| Some((at?, why)))
    .collect();
    let right = ends.iter().map(|(at, _)| *at).min().unwrap_or(n);

    let end = match ignores {
        false => format!("eos is {eos}"),
        true => format!("eos is {eos} and to be ignored"),
    };
    let text = format!(
        "{end}, pad is {pad}, stop_token_ids are [{stop}];\n\
         max_tokens is {max_tokens}, max_model_len {longest}, and the prompt has {prompt} tokens.\n\
         The model writes\n\n{}\n\n\
         as long as it is let. How many tokens has the answer?",
        commas(&tokens)
    );
    let mut explanation = "What comes first ends it, and that token is its last:\n".to_string();
    for (at, why) in &ends {
        explanation += &format!("{why}: after {at}\n");
    }
    explanation += &format!("the answer has {right}");
    let whole = |n: usize| Answer::Whole(n as i64);
    let without = |mut ends: Vec<Option<usize>>| {
        ends.push(Some(n));
        whole(ends.into_iter().flatten().min().unwrap_or(n))
    };
    let (eos_at, stop_at) = (first(eos), first(stop));
    let (by_max, by_len) = (Some(max_tokens), Some(longest - prompt));
    let kept = if ignores { None } else { eos_at };
    let facts = json!({
        "eos": eos, "ignores": ignores, "stop": stop, "tokens": tokens, "prompt": prompt,
        "max_tokens": max_tokens, "max_model_len": longest,
    });
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(right - 1), "the token that ends an answer is one of its tokens")
        .mistake(
            without(vec![kept, stop_at, by_max, by_len, first(pad)]),
            "pad fills holes in batches; it ends nothing",
        )
        .mistake(
            without(vec![eos_at, stop_at, by_max, by_len]),
            "this request ignores the end token",
        )
        .mistake(without(vec![kept, by_max, by_len]), "its own stop tokens end it, too")
        .mistake(without(vec![stop_at, by_max, by_len]), "the end token ends it")
        .mistake(without(vec![kept, stop_at, by_len]), "max_tokens ends it before")
        .mistake(
            without(vec![kept, stop_at, by_max]),
            "prompt and answer together have at most max_model_len tokens",
        )
        .mistake(whole(right + 1), "nothing comes behind the token that ends an answer")
}
