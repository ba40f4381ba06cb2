//! How many blocks a decode over a cut context launches.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};
use crate::predict::show::commas;

/// Keys that a block meets at a time.
const ROUND: usize = 64;

/// A part has no fewer keys, if there are as many.
const SHORTEST: usize = 128;

pub const KIND: Kind = Kind {
    name: "split-blocks",
    about: "blocks of a cut decode that have work",
    chapter: "l0-kernels/split.md",
    draw,
};

/// Keys of a part when a context of `len` is dealt to `parts`.
fn share(len: usize, parts: usize) -> usize {
    (len.div_ceil(parts).div_ceil(ROUND) * ROUND).max(SHORTEST)
}

fn draw(draw: &mut Draw) -> Question {
    let parts = draw.pick(&[2, 4, 8]);
    let (kv_heads, group) = draw.pick(&[(8, 4), (8, 2), (4, 8), (2, 7)]);
    let n = draw.between(2, 3);
    let lens: Vec<usize> = (0..n)
        .map(|_| match draw.below(3) {
            0 => draw.between(1, SHORTEST),
            1 => SHORTEST * draw.between(1, parts),
            _ => draw.between(SHORTEST, 400 * parts),
        })
        .collect();
    let text = format!(
        "A step decodes {n} sequences with {} keys,\n\
         {} query heads over {kv_heads} KV heads. Each context is dealt to {parts} parts: a share\n\
         is its length divided by {parts}, rounded up to a multiple of {ROUND}, and {SHORTEST}\n\
         keys at least. A block has one part of one sequence for one KV head and all\n\
         of its query heads.\n\n\
         How many blocks have any work?",
        commas(&lens),
        kv_heads * group
    );
    let used: Vec<usize> = lens.iter().map(|len| len.div_ceil(share(*len, parts))).collect();
    let shares: Vec<usize> = lens.iter().map(|len| share(*len, parts)).collect();
    let all: usize = used.iter().sum();
    let count = all * kv_heads;
    let explanation = format!(
        "Shares of {} keys: {} parts, together {all};\n\
         times {kv_heads} KV heads: {count}.",
        commas(&shares),
        commas(&used),
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let plain = |len: &usize| len.div_ceil(len.div_ceil(parts).max(SHORTEST));
    let facts = json!({ "lens": lens, "parts": parts, "kv_heads": kv_heads });
    Question::new(text, whole(count), explanation, facts)
        .mistake(whole(count * group), "a block has all query heads of its KV head")
        .mistake(whole(parts * n * kv_heads), "that is the grid: a short context fills fewer parts")
        .mistake(whole(all), "each KV head has blocks of its own")
        .mistake(
            whole(lens.iter().map(plain).sum::<usize>() * kv_heads),
            "a share is a whole number of rounds, so fewer parts may do",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_dealt_in_whole_rounds_and_never_too_thin() {
        assert_eq!(share(100, 8), 128);
        assert_eq!(share(1000, 8), 128);
        assert_eq!(share(5000, 8), 640);
        for (len, parts) in [(1, 2), (1023, 8), (4097, 4)] {
            assert!(share(len, parts) * parts >= len, "{len} in {parts}");
        }
    }
}
