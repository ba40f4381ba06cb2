//! How much arithmetic a matmul does for each byte it reads, and which limit rules it.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::{grouped, significant};

pub const KIND: Kind = Kind {
    name: "linear-intensity",
    about: "operations per byte of a matmul",
    chapter: "l1-tensors/limits.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    let n = 32 * draw.between(2, 20);
    let k = 32 * draw.between(2, 20);
    let rows = draw.between(1, 40);
    // Bits per weight: bf16, f32, Q8_0 and Q4_0 blocks with their scales.
    let (format, bits) = draw.pick(&[
        ("bf16 (2 bytes each)", 16.0),
        ("bf16 (2 bytes each)", 16.0),
        ("f32 (4 bytes each)", 32.0),
        ("Q8_0 (34 bytes for 32 weights)", 8.5),
        ("Q4_0 (18 bytes for 32 weights)", 4.5),
    ]);

    let weights = n * k;
    let bytes = weights as f64 * bits / 8.0;
    let operations = 2 * weights * rows;
    let intensity = operations as f64 / bytes;
    let text = format!(
        "linear: x [{rows}, {k}] by a weight [{n}, {k}] stored as\n{format}.\n\
         How many operations does it do for each byte of weights that it reads?\n\
         (A multiplication and an addition are two operations; x and y do not count.)"
    );
    let explanation = format!(
        "operations = 2 M N K = 2 * {rows} * {n} * {k} = {}\n\
         bytes = N K * {bits} / 8 = {}\n\
         {} / {} = {}: N and K cancel, 2 * {rows} / {} is left.",
        grouped(operations as i64),
        grouped(bytes as i64),
        grouped(operations as i64),
        grouped(bytes as i64),
        significant(intensity),
        bits / 8.0
    );
    let facts = json!({ "rows": rows, "n": n, "k": k, "bits": bits });
    Question::new(text, Answer::Real(intensity), explanation, facts)
        .mistake(
            Answer::Real(intensity / 2.0),
            "a multiplication and an addition are two operations",
        )
        .mistake(Answer::Real(intensity / 8.0), "divided by bits; bytes are asked for")
        .mistake(
            Answer::Real(intensity / rows as f64),
            "that is one row; each byte is used by all rows of the step",
        )
        .mistake(
            Answer::Real(1.0 / intensity),
            "upside down: operations per byte, not bytes per operation",
        )
        .mistake(
            Answer::Real(2.0 * rows as f64),
            "that is operations per weight; a weight is not one byte",
        )
        .mistake(
            Answer::Real(rows as f64),
            "that would be right for bf16; look at the format again",
        )
}
