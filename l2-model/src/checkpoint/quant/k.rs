//! Blocks of 256 weights, the "K" formats: Q4_K, Q5_K, Q6_K.
//!
//! One f16 scale for 256 weights would be too coarse, one for every 32 costs half a bit per
//! weight. The K formats quantise the scales too: each sub-block has a small integer scale, and
//! one f16 turns those integers into numbers.
//!
//! ```text
//! Q4_K | d: f16 | dmin: f16 | scales: 12 bytes |                | q: 128 bytes |  144 bytes
//! Q5_K | d: f16 | dmin: f16 | scales: 12 bytes | h: 32 bytes    | q: 128 bytes |  176 bytes
//! Q6_K | q: 128 bytes | h: 64 bytes | scales: 16 x i8 | d: f16  |                 210 bytes
//! ```

use super::float::f16_to_f32;

/// Weights per block.
pub(super) const LEN: usize = 256;
pub(super) const Q4_K_BYTES: usize = 2 + 2 + 12 + 128;
pub(super) const Q5_K_BYTES: usize = 2 + 2 + 12 + 32 + 128;
pub(super) const Q6_K_BYTES: usize = 128 + 64 + 16 + 2;

#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// The eight (scale, minimum) pairs of Q4_K and Q5_K, 6 bits each, out of 12 bytes.
///
/// ```text
/// bytes 0..4    high 2 bits of scale 4..8   | scale 0..4 (6 bits)
/// bytes 4..8    high 2 bits of min 4..8     | min 0..4   (6 bits)
/// bytes 8..12   low 4 bits of min 4..8      | low 4 bits of scale 4..8
/// ```
fn scales_and_mins(packed: &[u8]) -> [(u8, u8); 8] {
    // exercise l2.k_blocks
    let mut pairs = [(0, 0); 8];
    for j in 0..4 {
        let (s, m, low) = (packed[j], packed[j + 4], packed[j + 8]);
        pairs[j] = (s & 63, m & 63);
        pairs[j + 4] = ((low & 15) | (s >> 6) << 4, (low >> 4) | (m >> 6) << 4);
    }
    pairs
    // end of exercise
}

/// `weight = (d * scale_s) * q - (dmin * min_s)`, where s is the sub-block of 32.
///
/// The 128 bytes of codes are four runs of 32; run c holds sub-block 2c in its low nibbles and
/// sub-block 2c + 1 in its high ones.
pub(super) fn q4_k(bytes: &[u8], out: &mut [f32]) {
    // exercise l2.k_blocks
    let blocks = bytes.as_chunks::<Q4_K_BYTES>().0;
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<LEN>().0) {
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        let pairs = scales_and_mins(&block[4..16]);
        for (s, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(pairs[s].0), dmin * f32::from(pairs[s].1));
            let run = &block[16 + s / 2 * 32..][..32];
            let shift = s % 2 * 4;
            for (o, q) in out.iter_mut().zip(run) {
                *o = scale * f32::from((q >> shift) & 15) - min;
            }
        }
    }
    // end of exercise
}

/// As Q4_K; bit s of `h[l]` is the fifth bit of weight l of sub-block s.
pub(super) fn q5_k(bytes: &[u8], out: &mut [f32]) {
    // exercise l2.k_blocks
    let blocks = bytes.as_chunks::<Q5_K_BYTES>().0;
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<LEN>().0) {
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        let pairs = scales_and_mins(&block[4..16]);
        let high = &block[16..48];
        for (s, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(pairs[s].0), dmin * f32::from(pairs[s].1));
            let run = &block[48 + s / 2 * 32..][..32];
            let shift = s % 2 * 4;
            for ((o, q), h) in out.iter_mut().zip(run).zip(high) {
                let code = ((q >> shift) & 15) | ((h >> s) & 1) << 4;
                *o = scale * f32::from(code) - min;
            }
        }
    }
    // end of exercise
}

/// `weight = (d * scale_g) * (q - 32)`, where g is the sub-block of 16.
///
/// A block is two halves of 128 weights, each with 64 bytes of `q` and 32 of `h`. Quarter k of a
/// half (32 weights) has its low four bits in bytes `32 * (k % 2)..` of the half's `q`, in the low
/// nibbles for k < 2 and the high ones after; its upper two bits are bits 2k and 2k + 1 of `h`.
pub(super) fn q6_k(bytes: &[u8], out: &mut [f32]) {
    // exercise l2.k_blocks
    let blocks = bytes.as_chunks::<Q6_K_BYTES>().0;
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<LEN>().0) {
        let d = half_at(block, 208);
        for (quarter, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (half, k) = (quarter / 4, quarter % 4);
            let low = &block[half * 64 + k % 2 * 32..][..32];
            let high = &block[128 + half * 32..][..32];
            let (low_shift, high_shift) = (k / 2 * 4, k * 2);
            let scales = &block[192 + quarter * 2..][..2];
            for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = d * f32::from(scales[g] as i8);
                let codes = low[g * 16..][..16].iter().zip(&high[g * 16..][..16]);
                for (o, (l, h)) in out.iter_mut().zip(codes) {
                    let code = ((l >> low_shift) & 15) | ((h >> high_shift) & 3) << 4;
                    *o = scale * f32::from(code as i8 - 32);
                }
            }
        }
    }
    // end of exercise
}
