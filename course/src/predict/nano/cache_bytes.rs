//! What the KV cache of a sequence takes.

use serde_json::json;

use super::kv_heads;
use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "cache-bytes",
    about: "bytes of the KV cache of some tokens",
    chapter: "one-token.md#the-second-token-and-the-work-that-repeats",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let layers = draw.pick(&[2, 3, 4, 10, 20, 30]);
    let kv = draw.pick(&[1, 2, 3, 4]);
    let group = draw.pick(&[2, 3, 4]);
    let dim = draw.pick(&[2, 4, 10, 64]);
    let tokens = draw.pick(&[5, 6, 10, 50, 100]);
    let (dtype, element) = draw.pick(&[("f32", 4), ("f32", 4), ("bf16", 2)]);

    let heads = kv * group;
    let total = 2 * layers * kv * dim * tokens * element;
    let text = format!(
        "A model has {layers} layers, {heads} query heads and {}\n\
         in each, and head size {dim}. A number of the cache is {dtype}: {element} bytes.\n\
         How many bytes does the KV cache of {tokens} tokens take?",
        kv_heads(kv)
    );
    let explanation = format!(
        "2 (a key and a value) * layers * key and value heads * head size * bytes of a\n\
         number * tokens = 2 * {layers} * {kv} * {dim} * {element} * {tokens} = {}",
        grouped(total as i64)
    );
    let bytes = |n: usize| Answer::Bytes(n as i64);
    let facts = json!({
        "layers": layers, "query_heads": heads, "kv_heads": kv, "head_dim": dim,
        "tokens": tokens, "element": element,
    });
    Question::new(text, bytes(total), explanation, facts)
        .mistake(bytes(total / 2), "a factor of two is missing: a key and a value")
        .mistake(bytes(total * group), "queries are not stored: key and value heads count")
        .mistake(bytes(total / layers), "that is one layer; each has keys and values of its own")
        .mistake(bytes(total / tokens), "that is one token")
        .mistake(bytes(total / element), "those are numbers; each takes several bytes")
        .mistake(bytes(total / kv), "that is one key and value head")
        .mistake(bytes(total * group / 2), "queries are not stored, and values are")
        .mistake(bytes(total * 8), "those are bits")
}
