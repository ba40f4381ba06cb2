//! Writing keys and values of f32 and bf16 into tiles, and clearing them.
//!
//! `words` of a tile are u32: one f32, or two bf16, the even one in the low half.

use std::ops::Range;

use super::TILE;
use crate::cpu::lanes::{dispatch, round_bf16};

/// Clears some positions of one head's tiles; the others keep all their bits. `padded` is the
/// number of words in a row of values, `per_word` the number of values in a word.
#[inline(always)]
pub(super) fn clear_places(
    k_tile: &mut [u32],
    v_tile: &mut [u32],
    padded: usize,
    per_word: usize,
    places: Range<usize>,
) {
    // exercise l1.kv_cache
    for keys in k_tile.chunks_exact_mut(TILE) {
        keys[places.clone()].fill(0);
    }
    for i in places {
        // What of a word belongs to the other token of its row.
        let others: u32 = match (per_word, i % 2) {
            (1, _) => 0,
            (_, 0) => 0xffff_0000,
            _ => 0x0000_ffff,
        };
        for word in &mut v_tile[i / per_word * padded..][..padded] {
            *word &= others;
        }
    }
    // end of exercise
}

dispatch! {
    /// Writes one token's key and value of one head to position `i` of its tile. The first token of
    /// a block, or of a tile when blocks are longer than that, clears the `span` positions that
    /// begin there.
    pub(super) fn store_token<const FMA: bool>(
        bf16: bool,
        span: usize,
        k_tile: &mut [u32],
        v_tile: &mut [u32],
        i: usize,
        k: &[f32],
        v: &[f32],
    ) {
        // exercise l1.kv_cache
        let padded = k.len().next_multiple_of(16);
        if i.is_multiple_of(span) {
            clear_places(k_tile, v_tile, padded, if bf16 { 2 } else { 1 }, i..i + span);
        }
        if !bf16 {
            for (w, x) in k.iter().enumerate() {
                k_tile[w * TILE + i] = x.to_bits();
            }
            for (word, x) in v_tile[i * padded..].iter_mut().zip(v) {
                *word = x.to_bits();
            }
            return;
        }
        // Round sixteen at a time, then scatter: the rounding is a vector, the scatter cannot be.
        for (part, k) in k.chunks(16).enumerate() {
            let mut bits = [0u32; 16];
            for (b, x) in bits.iter_mut().zip(k) {
                *b = u32::from(round_bf16(*x).to_bits());
            }
            for (w, pair) in bits.as_chunks::<2>().0.iter().enumerate().take(k.len().div_ceil(2)) {
                k_tile[(part * 8 + w) * TILE + i] = pair[0] | pair[1] << 16;
            }
        }
        let shift = 16 * (i % 2) as u32;
        for (word, x) in v_tile[(i / 2) * padded..].iter_mut().zip(v) {
            *word = *word & !(0xffff << shift) | u32::from(round_bf16(*x).to_bits()) << shift;
        }
        // end of exercise
    }
}
