//! Blocks of 32 weights: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.
//!
//! ```text
//! Q8_0  | d: f16 | q: 32 x i8              |                      34 bytes
//! Q4_0  | d: f16 | q: 16 bytes             |                      18 bytes
//! Q4_1  | d: f16 | m: f16 | q: 16 bytes    |                      20 bytes
//! Q5_0  | d: f16 | h: u32 | q: 16 bytes    |                      22 bytes
//! Q5_1  | d: f16 | m: f16 | h: u32 | q: 16 bytes |                24 bytes
//! ```
//!
//! The 16 bytes of `q` hold two 4-bit codes each, but not neighbours: byte j holds weight j in
//! its low nibble and weight j + 16 in its high one, so that one mask and one shift of a whole
//! vector register give two runs of 16 consecutive weights. Bit j of `h` is the fifth bit of
//! weight j.

use super::float::f16_to_f32;

/// Weights per block.
pub(super) const LEN: usize = 32;
pub(super) const Q8_0_BYTES: usize = 2 + 32;
pub(super) const Q4_0_BYTES: usize = 2 + 16;
pub(super) const Q4_1_BYTES: usize = 2 + 2 + 16;
pub(super) const Q5_0_BYTES: usize = 2 + 4 + 16;
pub(super) const Q5_1_BYTES: usize = 2 + 2 + 4 + 16;

/// Walks the blocks of `bytes` beside the runs of 32 outputs they fill.
///
/// Arrays in place of slices: the compiler knows every index is in range and unrolls.
#[inline(always)]
fn for_each_block<const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    expand: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, outs) = (bytes.as_chunks().0, out.as_chunks_mut().0);
    for (block, out) in blocks.iter().zip(outs) {
        expand(block, out);
    }
}

#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

pub(super) fn q8_0(bytes: &[u8], out: &mut [f32]) {
    // exercise l2.blocks
    for_each_block::<Q8_0_BYTES>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        for (o, q) in out.iter_mut().zip(&block[2..]) {
            *o = d * f32::from(*q as i8);
        }
    });
    // end of exercise
}

pub(super) fn q4_0(bytes: &[u8], out: &mut [f32]) {
    // exercise l2.blocks
    for_each_block::<Q4_0_BYTES>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        let (low, high) = out.split_at_mut(16);
        for ((l, h), q) in low.iter_mut().zip(high).zip(&block[2..]) {
            *l = d * f32::from((q & 15) as i8 - 8);
            *h = d * f32::from((q >> 4) as i8 - 8);
        }
    });
    // end of exercise
}

pub(super) fn q4_1(bytes: &[u8], out: &mut [f32]) {
    // exercise l2.blocks
    for_each_block::<Q4_1_BYTES>(bytes, out, |block, out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        let (low, high) = out.split_at_mut(16);
        for ((l, h), q) in low.iter_mut().zip(high).zip(&block[4..]) {
            *l = d * f32::from(q & 15) + m;
            *h = d * f32::from(q >> 4) + m;
        }
    });
    // end of exercise
}

/// The 32 five-bit codes of `h: u32, q: 16 bytes`.
#[inline(always)]
fn five_bit_codes(block: &[u8], at: usize) -> [u8; LEN] {
    // exercise l2.blocks
    let h = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let mut codes = [0; LEN];
    for (j, q) in block[at + 4..at + 20].iter().enumerate() {
        codes[j] = (q & 15) | ((h >> j) as u8 & 1) << 4;
        codes[j + 16] = (q >> 4) | ((h >> (j + 16)) as u8 & 1) << 4;
    }
    codes
    // end of exercise
}

pub(super) fn q5_0(bytes: &[u8], out: &mut [f32]) {
    // exercise l2.blocks
    for_each_block::<Q5_0_BYTES>(bytes, out, |block, out| {
        let d = half_at(block, 0);
        for (o, q) in out.iter_mut().zip(five_bit_codes(block, 2)) {
            *o = d * f32::from(q as i8 - 16);
        }
    });
    // end of exercise
}

pub(super) fn q5_1(bytes: &[u8], out: &mut [f32]) {
    // exercise l2.blocks
    for_each_block::<Q5_1_BYTES>(bytes, out, |block, out| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        for (o, q) in out.iter_mut().zip(five_bit_codes(block, 4)) {
            *o = d * f32::from(q) + m;
        }
    });
    // end of exercise
}
