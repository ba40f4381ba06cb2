//! What a token costs in memory.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "kv-bytes",
    about: "bytes of keys and values per token",
    chapter: "l2-model/config.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let layers = draw.pick(&[2, 4, 12, 16, 22, 24, 28, 30, 32, 36]);
    let kv_heads = draw.pick(&[1, 2, 3, 4, 8]);
    let group = draw.pick(&[2, 3, 4, 7, 8]);
    let d = draw.pick(&[32, 64, 80, 96, 128]);
    let (dtype, element) = draw.pick(&[("bf16", 2), ("bf16", 2), ("f32", 4)]);

    let q_heads = kv_heads * group;
    let total = layers * 2 * kv_heads * d * element;
    let text = format!(
        "A config: {layers} layers, H_q = {q_heads}, H_kv = {kv_heads}, D = {d}; the cache is {dtype}.\n\
         How many bytes of keys and values does one token need?"
    );
    let explanation = format!(
        "layers * (k and v) * H_kv * D * bytes\n= {layers} * 2 * {kv_heads} * {d} * {element} = {}",
        grouped(total as i64)
    );
    let bytes = |n: usize| Answer::Bytes(n as i64);
    let facts = json!({
        "layers": layers, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": d,
        "element": element,
    });
    Question::new(text, bytes(total), explanation, facts)
        .mistake(bytes(total / 2), "a factor of two is missing: keys and values")
        .mistake(bytes(total * group), "the cache has KV heads; query heads are not stored")
        .mistake(bytes(total / layers), "that is one layer; each has keys and values of its own")
        .mistake(
            bytes(total / element),
            "that is the number of elements; each takes more than one byte",
        )
        .mistake(bytes(total * 8), "those are bits")
        .mistake(
            bytes(if element == 2 { total * 2 } else { total / 4 * 2 }),
            "bf16 takes two bytes, f32 takes four",
        )
        .mistake(bytes(total * group / 2), "query heads are not stored, and values are")
        .mistake(bytes(total / kv_heads), "that is one KV head")
}
