//! How many scores a layer computes for a prompt.

use serde_json::json;

use super::kv_heads;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "attended-tokens",
    about: "scores of a layer for a whole prompt",
    chapter: "one-token.md#station-4-attention",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = draw.between(3, 12);
    let kv = draw.pick(&[1, 1, 2, 3]);
    let heads = kv * draw.pick(&[2, 2, 3, 4]);

    let pairs = n * (n + 1) / 2;
    let right = heads * pairs;
    let text = format!(
        "A prompt of {n} tokens. A layer has {heads} query heads and {}.\n\
         How many scores does one layer compute for the whole prompt, all heads\n\
         together? (One score: one query with one key.)",
        kv_heads(kv)
    );
    let explanation = format!(
        "A token attends to itself and to all tokens before it: the first token to 1,\n\
         the second to 2, .. the last to {n}. This is the causal mask.\n\
         1 + 2 + .. + {n} = {n} * {} / 2 = {pairs} scores of a query head\n\
         {heads} query heads * {pairs} = {right}",
        n + 1
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "tokens": n, "query_heads": heads, "kv_heads": kv });
    Question::new(text, whole(right), explanation, facts)
        .mistake(whole(heads * n * n), "a token does not attend to the tokens after it")
        .mistake(whole(heads * n * (n - 1) / 2), "a token attends to itself, too")
        .mistake(whole(pairs), "that is one query head; each of them has scores of its own")
        .mistake(whole(kv * pairs), "query heads that share a key still have scores of their own")
        .mistake(whole(heads * n), "those are the scores of the last token only")
        .mistake(
            whole(n * n),
            "a token does not attend to later tokens, and there are several heads",
        )
        .mistake(whole(n), "those are the scores of the last token in one head")
}
