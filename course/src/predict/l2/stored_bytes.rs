//! How many bytes a quantised matrix takes in a file.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::grouped;

pub const KIND: Kind = Kind {
    name: "stored-bytes",
    about: "bytes of a quantised matrix in a file",
    chapter: "l2-model/quant.md",
    draw,
};

fn draw(draw: &mut Draw) -> Question {
    // Bits of a code, and how many f16 numbers a block shares.
    let (format, bits, shared, has) = draw.pick(&[
        ("Q4_0", 4, 1, "4-bit codes and an f16 scale"),
        ("Q4_1", 4, 2, "4-bit codes, an f16 scale and an f16 minimum"),
        ("Q5_0", 5, 1, "5-bit codes and an f16 scale"),
        ("Q5_1", 5, 2, "5-bit codes, an f16 scale and an f16 minimum"),
        ("Q8_0", 8, 1, "8-bit codes and an f16 scale"),
    ]);
    let (n, k) = (8 * draw.between(2, 40), 32 * draw.between(1, 20));

    let weights = n * k;
    let blocks = weights / 32;
    let block = 4 * bits + 2 * shared;
    let total = blocks * block;
    let text = format!(
        "A matrix [{n}, {k}] is stored as {format}: blocks of 32 weights, each with\n{has}.\n\
         How many bytes does it take in the file?"
    );
    let explanation = format!(
        "a block: 32 * {bits} / 8 + {shared} * 2 = {block} bytes\n\
         blocks:  {n} * {k} / 32 = {}\n{} * {block} = {} bytes, {} bits a weight",
        grouped(blocks as i64),
        grouped(blocks as i64),
        grouped(total as i64),
        block as f64 / 4.0
    );
    let bytes = |n: usize| Answer::Bytes(n as i64);
    Question::new(text, bytes(total), explanation, json!({ "format": format, "n": n, "k": k }))
        .mistake(bytes(blocks * 4 * bits), "the scales of the blocks take bytes, too")
        .mistake(bytes(blocks * (4 * bits + 2)), "a block has a minimum besides its scale")
        .mistake(bytes(blocks * (4 * bits + 4 * shared)), "f16 takes two bytes, not four")
        .mistake(bytes(total * 8), "those are bits")
        .mistake(
            bytes(blocks * (32 * bits + 2 * shared)),
            "the codes were counted in bits, the rest in bytes",
        )
        .mistake(bytes(weights), "that is the number of weights")
        .mistake(bytes(weights * 2), "that is bf16")
}
