//! What a sequence's keys and values take, in whole tiles.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "sequence-bytes",
    about: "bytes of a sequence's keys and values",
    chapter: "l2-model/state.md",
    draw,
};

const TILE: usize = 16;

fn draw(draw: &mut Draw) -> Question {
    let layers = draw.between(2, 12);
    let kv_heads = draw.between(1, 4);
    let d = draw.pick(&[16, 32, 64]);
    let len = draw.between(1, 12) * TILE + draw.between(1, TILE - 1);

    let token = layers * 2 * kv_heads * d * 2;
    let tiles = len.div_ceil(TILE);
    let total = tiles * TILE * token;
    let text = format!(
        "{layers} layers, H_kv = {kv_heads}, D = {d}, a bf16 cache in tiles of 16 tokens.\n\
         How many bytes are in use for a sequence of {len} tokens?"
    );
    let explanation = format!(
        "a token:  {layers} * 2 * {kv_heads} * {d} * 2 = {} bytes\n\
         tiles:    {len} / 16, rounded up, = {tiles}, which hold {} tokens\n\
         together: {} * {} = {} bytes",
        grouped(token as i64),
        tiles * TILE,
        tiles * TILE,
        grouped(token as i64),
        grouped(total as i64)
    );
    let bytes = |n: usize| Answer::Bytes(n as i64);
    let facts = json!({ "layers": layers, "kv_heads": kv_heads, "head_dim": d, "len": len });
    Question::new(text, bytes(total), explanation, facts)
        .mistake(bytes(len * token), "tiles are taken whole: round up to 16 tokens")
        .mistake(bytes(len / TILE * TILE * token), "the last tile is begun, so it counts")
        .mistake(bytes(total / 2), "a factor of two is missing: keys and values, or bytes of bf16")
        .mistake(bytes(total / layers), "that is one layer")
        .mistake(bytes(total * 8), "those are bits")
        .mistake(bytes(total / 4), "keys and values, and two bytes of bf16: two factors of two")
        .mistake(bytes(tiles * token), "that is one token of each tile")
        .mistake(bytes(token), "that is one token")
}
