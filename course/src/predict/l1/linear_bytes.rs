//! What a decoded token reads.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "linear-bytes",
    about: "bytes of weights that a layer reads",
    chapter: "l1-tensors/limits.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let d = draw.pick(&[32, 64]);
    let kv_heads = draw.between(1, 3);
    let group = draw.between(2, 4);
    let q_heads = kv_heads * group;
    let h = q_heads * d;
    let i = h * draw.between(2, 4);
    let rows = draw.pick(&[1, 1, 4, 8]);

    let (q, kv) = (q_heads * d, kv_heads * d);
    let parts = [(q + 2 * kv) * h, h * q, 2 * i * h, h * i];
    let weights: usize = parts.iter().sum();
    let text = format!(
        "A layer with H = {h}, H_q = {q_heads}, H_kv = {kv_heads}, D = {d}, I = {i}; weights are bf16.\n\
         How many bytes of matrix weights does a step of {rows} token{} read in this layer?",
        if rows == 1 { "" } else { "s" }
    );
    let said = parts.map(|n| grouped(n as i64));
    let explanation = format!(
        "q, k, v:      [{}, {h}]  {}\no:            [{h}, {q}]  {}\n\
         gate and up:  [{}, {h}]  {}\ndown:         [{h}, {i}]  {}\n\
         together {} weights of 2 bytes: {} bytes,\n\
         however many rows ride along.",
        q + 2 * kv,
        said[0],
        said[1],
        2 * i,
        said[2],
        said[3],
        grouped(weights as i64),
        grouped(2 * weights as i64)
    );
    let bytes = |weights: usize| Answer::Bytes(2 * weights as i64);
    let facts = json!({ "shapes": [[q + 2 * kv, h], [h, q], [2 * i, h], [h, i]], "rows": rows });
    Question::new(text, bytes(weights), explanation, facts)
        .mistake(bytes(weights * rows), "each weight is read once for all rows of a step")
        .mistake(
            Answer::Bytes(weights as i64),
            "that is the number of weights; each takes two bytes",
        )
        .mistake(Answer::Bytes(16 * weights as i64), "those are bits")
        .mistake(bytes(2 * weights), "bf16 takes two bytes, not four")
        .mistake(
            bytes(3 * q * h + h * q + 3 * i * h),
            "k and v have H_kv heads, fewer than the queries",
        )
        .mistake(bytes(weights - i * h), "gate, up and down: the MLP has three matrices")
        .mistake(bytes(weights - h * q), "the o projection is missing")
        .mistake(bytes(weights - kv * h), "k and v are two matrices")
}
