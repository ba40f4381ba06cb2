//! What a KV cache saves.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::separated;

pub const KIND: Kind = Kind {
    name: "forward-passes",
    about: "passes without a KV cache and with one",
    chapter: "one-token.md#the-second-token-and-the-work-that-repeats",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(2, 12);
    let m = draw.between(2, 6);

    let growing: Vec<usize> = (n..n + m).collect();
    let (without, with) = (growing.iter().sum::<usize>(), n + m - 1);
    let text = format!(
        "A prompt of {n} tokens, and {m} output tokens; generation ends with the last one.\n\
         How many forward passes of one token does that take without a KV cache, and\n\
         how many with one? (Two numbers: without, with.)"
    );
    let explanation = format!(
        "Without a cache each output token computes all tokens before it again:\n\
         {} = {without}\n\
         With a cache each token is computed once. The last output token is not\n\
         computed, as nothing follows it: {n} + {m} - 1 = {with}",
        separated(&growing, " + ")
    );
    let list = |a: usize, b: usize| Answer::List(vec![a as i64, b as i64]);
    let facts = json!({ "prompt": n, "output": m });
    let behind = without - n + n + m;
    Question::new(text, list(without, with), explanation, facts)
        .mistake(list(without, n + m), "the last output token is not computed: nothing follows it")
        .mistake(
            list(n * m, with),
            "the sequence grows: each output token has one token more before it",
        )
        .mistake(list(behind, with), "the first output token needs the passes of the prompt only")
        .mistake(list(behind, n + m), "the last output token is not computed: nothing follows it")
        .mistake(list(with, without), "the other way round: without a cache it takes more")
        .mistake(list(without, m), "the cache is empty at first: the prompt is computed, too")
        .mistake(list(without, m - 1), "the cache is empty at first: the prompt is computed, too")
        .mistake(list(without, n), "output tokens are computed, too: all but the last one")
}
