//! How long the query, the key and the value of a token are.

use serde_json::json;

use super::kv_heads;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "qkv-numbers",
    about: "how many numbers q, k and v of a token have",
    chapter: "one-token.md#station-3-query-key-value",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let kv = draw.pick(&[1, 1, 2, 3, 4, 8]);
    let group = draw.pick(&[1, 2, 2, 3, 4, 8]);
    let dim = draw.pick(&[2, 4, 8, 16, 32, 64]);
    let query = kv * group;
    let (q, k) = (query * dim, kv * dim);
    // The residual stream is often as long as a query, but it need not be.
    let hidden = if draw.one_in(2) { q } else { draw.pick(&[q / 2, 2 * q]) };

    let text = format!(
        "The residual stream of a model has {hidden} numbers for each token. A layer has\n\
         {query} query heads and {}; the head size is {dim}.\n\
         How many numbers do the query, the key and the value of one token have, all\n\
         heads together?",
        kv_heads(kv)
    );
    let explanation = format!(
        "query: query heads * head size = {query} * {dim} = {q}\n\
         key: key and value heads * head size = {kv} * {dim} = {k}\n\
         value: as many as the key: {k}\n\
         The matrices take rows of {hidden} numbers, and make rows of these lengths."
    );
    let list = |q: usize, k: usize, v: usize| Answer::List([q, k, v].map(|n| n as i64).to_vec());
    let facts = json!({
        "hidden": hidden, "query_heads": query, "kv_heads": kv, "head_dim": dim,
    });
    Question::new(text, list(q, k, k), explanation, facts)
        .mistake(list(q, q, q), "there are fewer key and value heads than query heads")
        .mistake(
            list(hidden, hidden, hidden),
            "that is the residual stream; heads and their size decide what the matrices make of it",
        )
        .mistake(
            list(query, kv, kv),
            "those are heads; each has as many numbers as the head size says",
        )
        .mistake(list(dim, dim, dim), "that is one head; all heads are asked for")
        .mistake(list(q, k, q), "a value is as long as its key")
        .mistake(list(hidden, k, k), "the query need not be as long as the residual stream")
        .mistake(list(k, q, q), "it is the query that has more heads")
}
