//! What a block costs in memory.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{grouped, wrapped};

pub const KIND: Kind = Kind {
    name: "block-bytes",
    about: "bytes of one block, all layers",
    chapter: "l3-paged-kv/sizing.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let layers = draw.pick(&[4, 12, 16, 22, 24, 28, 30, 32, 36]);
    let kv_heads = draw.pick(&[1, 2, 3, 4, 8]);
    let group = draw.pick(&[2, 3, 4, 7]);
    let d = draw.pick(&[32, 64, 80, 128]);
    let block_size = draw.pick(&[8, 16, 32]);
    let (dtype, element) = draw.pick(&[("bf16", 2), ("bf16", 2), ("f32", 4), ("fp8", 1)]);

    // Eight bits have a scale of one byte for each head's keys and for its values.
    let scale = usize::from(element == 1);
    let head = d * element + scale;
    let token = layers * 2 * kv_heads * head;
    let total = block_size * token;
    let scales = if scale == 1 { " with a scale byte for each head's k and v" } else { "" };
    let text = wrapped(&format!(
        "A model of {layers} layers, H_q = {}, H_kv = {kv_heads}, D = {d}. The cache is {dtype}{scales}, its blocks hold {block_size} tokens. How many bytes does a block take in all layers?",
        kv_heads * group
    ));
    let of_head = match scale {
        1 => format!("({d} * 1 + 1)"),
        _ => format!("{d} * {element}"),
    };
    let explanation = format!(
        "a token:  layers * (k and v) * H_kv * D * bytes\n          = {layers} * 2 * {kv_heads} * {of_head} = {}\n\
         a block:  {block_size} * {} = {}",
        grouped(token as i64),
        grouped(token as i64),
        grouped(total as i64)
    );
    let bytes = |n: usize| Answer::Bytes(n as i64);
    let facts = json!({
        "layers": layers, "q_heads": kv_heads * group, "kv_heads": kv_heads, "head_dim": d,
        "block_size": block_size, "dtype": dtype,
    });
    Question::new(text, bytes(total), explanation, facts)
        .mistake(bytes(total / 2), "a factor of two is missing: keys and values")
        .mistake(bytes(token), "that is one token")
        .mistake(bytes(total / layers), "that is one layer; a block has room in each")
        .mistake(bytes(total * group), "query heads are not stored: count KV heads")
        .mistake(
            bytes(block_size * layers * 2 * kv_heads * d * element),
            "eight bits come with scales, which take memory, too",
        )
        .mistake(
            bytes(block_size * layers * 2 * kv_heads * d),
            "that is the number of elements; each takes more than one byte",
        )
        .mistake(bytes(total * 8), "those are bits")
        .mistake(bytes(total / kv_heads), "that is one KV head")
}
