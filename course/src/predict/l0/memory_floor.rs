//! What a kernel takes at least, by the bytes it moves.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "memory-floor",
    about: "the time that a kernel's bytes take",
    chapter: "l0-kernels/index.md",
    draw,
};

/// Ops with the bytes that an element of theirs reads and writes.
const OPS: [(&str, usize, usize); 5] = [
    ("RMS norm from f32 to bf16", 4, 2),
    ("x += y in f32", 8, 4),
    ("rope in place, in f32", 4, 4),
    ("silu(gate) * up from f32 to bf16 (for each element that comes out)", 8, 2),
    ("RMS norm from f32 to bf16 that adds to the residual stream first", 8, 6),
];

fn draw(draw: &mut Draw) -> Question {
    let (op, read, written) = draw.pick(&OPS);
    let rows = 1024 * draw.pick(&[1, 2, 4, 8]);
    let width = draw.pick(&[1024, 2048, 4096, 12288]);
    let tb = draw.pick(&[1.0, 2.0, 4.0]);
    let text = format!(
        "{op}:\n{rows} rows of {width} elements. The device moves {tb} TB/s (10^12 bytes a\n\
         second).\n\n\
         How many microseconds does it take at least?"
    );
    let bytes = rows * width * (read + written);
    let micros = |bytes: usize| bytes as f64 / (tb * 1e6);
    let explanation = format!(
        "{} bytes an element ({read} read, {written} written), {rows} x {width} elements:\n\
         {bytes} bytes, which at {tb} TB/s take {:.1} microseconds.\n\
         Whatever is computed hides behind that.",
        read + written,
        micros(bytes)
    );
    let facts = json!({ "rows": rows, "width": width, "read": read, "written": written, "tb": tb });
    Question::new(text, Answer::Real(micros(bytes)), explanation, facts)
        .mistake(Answer::Real(micros(rows * width * read)), "what is written moves, too")
        .mistake(
            Answer::Real(micros(rows * width * 4)),
            "count the bytes of everything read and written",
        )
        .mistake(
            Answer::Real(micros(bytes) * 1e3),
            "a microsecond is a millionth: 10^6 bytes for each TB/s",
        )
        .mistake(Answer::Real(micros(bytes) / 1e3), "those are milliseconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gigabyte_at_a_terabyte_a_second_is_a_millisecond() {
        for seed in 0..50 {
            let question = draw(&mut Draw::new(KIND.name, seed));
            let fact = |name: &str| question.facts[name].as_f64().unwrap();
            let gigabytes = fact("rows") * fact("width") * (fact("read") + fact("written")) / 1e9;
            let Answer::Real(micros) = question.answer else { panic!("a time") };
            let expected = gigabytes / fact("tb") * 1e3;
            assert!((micros - expected).abs() < 1e-6 * expected, "{micros}, not {expected}");
        }
    }
}
