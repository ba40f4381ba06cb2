//! Writing keys and values in eight bits.
//!
//! The layout is that of bf16 with a byte for each element. Beside the codes a tile has a scale for
//! each of its sixteen keys and sixteen values: a power of two, one biased exponent in a byte (the
//! E8M0 of the OCP microscaling formats; there a scale serves 32 elements, here a token's head).
//! The largest magnitude of a token's head then lies in (224, 448], the upper octave of E4M3.

use super::TILE;
use super::places::Geometry;
use crate::cpu::lanes::dispatch;
use crate::e4m3::{scale_of, scaled_code};

dispatch! {
    /// Stores a token as `store_token` does for the wider types. `scales` are those of the tile,
    /// keys first.
    pub(super) fn store_token<const FMA: bool>(
        geometry: Geometry,
        span: usize,
        k_tile: &mut [u8],
        v_tile: &mut [u8],
        scales: &mut [u8],
        i: usize,
        k: &[f32],
        v: &[f32],
    ) {
        if i.is_multiple_of(span) {
            geometry.clear_keys(k_tile, i..i + span);
            geometry.clear_values(v_tile, i..i + span);
        }
        let (k_scale, v_scale) = (scale_of(k), scale_of(v));
        scales[i] = k_scale;
        scales[TILE + i] = v_scale;
        for (part, k) in k.chunks(16).enumerate() {
            let mut codes = [0u8; 16];
            for (code, x) in codes.iter_mut().zip(k) {
                *code = scaled_code(*x, k_scale);
            }
            for (w, pair) in codes.as_chunks::<2>().0.iter().enumerate() {
                k_tile[((part * 8 + w) * TILE + i) * 2..][..2].copy_from_slice(pair);
            }
        }
        let row = &mut v_tile[i / 2 * geometry.padded() * 2..];
        for (pair, x) in row.as_chunks_mut::<2>().0.iter_mut().zip(v) {
            pair[i % 2] = scaled_code(*x, v_scale);
        }
    }
}
