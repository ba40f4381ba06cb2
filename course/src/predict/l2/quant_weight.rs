//! A weight out of the bytes of a block.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::hex;

pub const KIND: Kind = Kind {
    name: "quant-weight",
    about: "a weight of a block, from its bytes",
    chapter: "l2-model/quant.md",
    draw,
};

/// Scales and minima that are exact in f16, with their bits.
const SCALES: [(u16, f64); 5] =
    [(0x3400, 0.25), (0x3800, 0.5), (0x3c00, 1.0), (0x4000, 2.0), (0x3e00, 1.5)];
const MINIMA: [(u16, f64); 4] = [(0xc000, -2.0), (0xbc00, -1.0), (0xc400, -4.0), (0x4200, 3.0)];

fn draw(draw: &mut Draw) -> Question {
    let format = draw.pick(&["Q4_0", "Q4_1", "Q8_0"]);
    let (d_bits, d) = draw.pick(&SCALES);
    let (m_bits, m) = draw.pick(&MINIMA);
    let i = draw.below(32);

    let mut block = d_bits.to_le_bytes().to_vec();
    let mut said = format!("0x{d_bits:04x} is {d} in f16");
    if format == "Q4_1" {
        block.extend(m_bits.to_le_bytes());
        said += &format!(", 0x{m_bits:04x} is {m}");
    }
    let start = block.len();
    let codes = if format == "Q8_0" { 32 } else { 16 };
    for _ in 0..codes {
        block.push(draw.below(256) as u8);
    }
    let text = format!(
        "A block of {format}, 32 weights:\n\n{}\n\n({said}.)\nWhat is weight {i} (counted from 0)?",
        hex(&block)
    );
    let facts = json!({ "format": format, "block": block, "i": i });
    let real = Answer::Real;
    if format == "Q8_0" {
        let byte = block[start + i];
        let q = f64::from(byte as i8);
        let explanation = format!(
            "Two bytes of scale, then one byte for each weight: byte 2 + {i} is {byte:02x},\n\
             as a signed number {q}. d * q = {d} * {q} = {}",
            d * q
        );
        return Question::new(text, real(d * q), explanation, facts)
            .mistake(real(d * f64::from(byte)), "the codes of Q8_0 are signed")
            .mistake(real(d * f64::from(block[i] as i8)), "the first two bytes are the scale")
            .mistake(real(q), "that is the code; the scale is missing")
            .mistake(real(d * (q - 128.0)), "the codes are signed numbers, without an offset");
    }
    let (low, at) = (i < 16, start + i % 16);
    let nibble = |byte: u8, low: bool| f64::from(if low { byte & 15 } else { byte >> 4 });
    let q = nibble(block[at], low);
    let value = |q: f64| if format == "Q4_0" { d * (q - 8.0) } else { d * q + m };
    let which = if low { "low" } else { "high" };
    let formula = if format == "Q4_0" {
        format!("d * (q - 8) = {d} * ({q} - 8) = {}", value(q))
    } else {
        format!("d * q + m = {d} * {q} + {m} = {}", value(q))
    };
    let explanation = format!(
        "Byte j of the codes holds weight j in its low nibble and weight j + 16 in its\n\
         high one. Weight {i} is the {which} nibble of code byte {} (byte {at} of the block),\n\
         {:02x}: q = {q}.\n{formula}",
        i % 16,
        block[at]
    );
    let question = Question::new(text, real(value(q)), explanation, facts)
        .mistake(
            real(value(nibble(block[start + i / 2], i.is_multiple_of(2)))),
            "the two weights of a byte are not neighbours: j and j + 16",
        )
        .mistake(real(value(nibble(block[at], !low))), "the right byte, and its other nibble")
        .mistake(real(value(nibble(block[i % 16], low))), "the codes come behind the scale")
        .mistake(real(q), "that is the code; scale and offset are missing");
    if format == "Q4_0" {
        question
            .mistake(real(d * q), "codes of Q4_0 stand for -8 to 7: subtract 8")
            .mistake(real(d * q - 8.0), "8 is subtracted from the code, before the scale")
    } else {
        question
            .mistake(real(d * q), "the minimum is missing")
            .mistake(real(d * (q - 8.0) + m), "Q4_1 has a minimum in place of the 8 of Q4_0")
            .mistake(real(d * (q + m)), "the minimum is added behind the scale")
            .mistake(real(m * q + d), "scale first, then minimum")
    }
}
