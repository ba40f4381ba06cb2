//! How many pieces of memory a warp's read touches.

use serde_json::json;

use crate::predict::answer::Answer;
use crate::predict::draw::Draw;
use crate::predict::kind::{Kind, Question};

pub const KIND: Kind = Kind {
    name: "warp-pieces",
    about: "pieces of memory that a read moves",
    chapter: "l0-kernels/cache.md",
    draw,
};

const LANES: usize = 32;
const PIECE: usize = 32;

/// Pieces touched when lane `i` reads `size` bytes at `first + i * stride`.
fn pieces(first: usize, stride: usize, size: usize) -> usize {
    let mut touched: Vec<usize> = (0..LANES)
        .flat_map(|lane| {
            let at = first + lane * stride;
            at / PIECE..=(at + size - 1) / PIECE
        })
        .collect();
    touched.sort_unstable();
    touched.dedup();
    touched.len()
}

fn draw(draw: &mut Draw) -> Question {
    let size = draw.pick(&[2, 4, 8, 16]);
    let apart = draw.pick(&[1, 1, 2, 4, 16, 64]);
    let stride = size * apart;
    let first = if draw.one_in(3) { size * draw.between(1, 3) } else { 0 };
    let text = format!(
        "Lane i of a warp reads {size} bytes at address {first} + {stride} i. Memory moves in\n\
         pieces of {PIECE} bytes, which begin at multiples of {PIECE}.\n\n\
         How many pieces does this read move?"
    );
    let count = pieces(first, stride, size);
    let wanted = LANES * size;
    let explanation = format!(
        "The lanes' bytes lie between {first} and {}, {} of them wanted.\n\
         {count} pieces are {} bytes: {:.0}% of what is moved is used.",
        first + (LANES - 1) * stride + size,
        wanted,
        count * PIECE,
        100.0 * wanted as f64 / (count * PIECE) as f64
    );
    let whole = |n: usize| Answer::Whole(n as i64);
    let facts = json!({ "first": first, "stride": stride, "size": size });
    Question::new(text, whole(count), explanation, facts)
        .mistake(
            whole(pieces(0, stride, size)),
            "the first address is not at the beginning of a piece",
        )
        .mistake(whole(wanted.div_ceil(PIECE)), "the lanes' bytes do not lie behind each other")
        .mistake(whole(LANES), "lanes whose bytes lie in one piece share it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_pieces_and_strangers_do_not() {
        assert_eq!(pieces(0, 4, 4), 4);
        assert_eq!(pieces(4, 4, 4), 5, "the same bytes, begun in the middle of a piece");
        assert_eq!(pieces(0, 16, 16), 16);
        assert_eq!(pieces(0, 256, 4), 32);
        assert_eq!(pieces(0, 16, 2), 16, "two lanes to a piece");
    }
}
