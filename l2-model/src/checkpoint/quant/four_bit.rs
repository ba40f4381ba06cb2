//! Formats of four bits whose codes are looked up: IQ4_NL, MXFP4 and NVFP4.
//!
//! ```text
//! IQ4_NL  | d: f16 | q: 16 bytes          |       18 bytes, 32 weights
//! MXFP4   | e: u8 (E8M0) | q: 16 bytes    |       17 bytes, 32 weights
//! NVFP4   | s: 4 x u8 (E4M3) | q: 4 x 8 bytes |   36 bytes, 64 weights
//! ```
//!
//! IQ4_NL's sixteen levels lie where weights are frequent. The other two have the levels of E2M1, a float of four bits
//! (OCP *Microscaling Formats*, 2023): sign, two bits of exponent, one of mantissa. MXFP4 scales a block by a power of
//! two, NVFP4 each 16 weights by an E4M3 number.
//!
//! In a GGUF file the low halves of the bytes are the first half of a block (of 16 weights, in NVFP4) and the high
//! halves the second, as in the other formats of blocks. A safetensors file has codes and scales of NVFP4 in tensors
//! of their own ([`crate::checkpoint::nvfp4`]), and there the low half of a byte is the even weight.
//!
//! Source: `ggml-common.h`, `ggml-quants.c` and `gguf-py/gguf/quants.py` of llama.cpp.

use l1_tensor::e4m3;

use super::float::f16_to_f32;

/// Weights per block of IQ4_NL and MXFP4.
pub(super) const LEN: usize = 32;
/// Weights per block of NVFP4.
pub(super) const NVFP4_LEN: usize = 64;
pub(super) const IQ4_NL_BYTES: usize = 2 + 16;
pub(super) const MXFP4_BYTES: usize = 1 + 16;
pub(super) const NVFP4_BYTES: usize = 4 + 32;

/// Levels of IQ4_NL.
const IQ4_NL: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Levels of E2M1. GGUF's decoders have no negative zero.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The float of four bits that is `code`: sign, two bits of exponent (bias 1), one of mantissa. It has a negative zero.
#[inline(always)]
pub(crate) fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Writes the levels of a block's codes times its scale: low halves first, then high ones.
#[inline(always)]
fn halves(levels: &[f32; 16], scale: f32, codes: &[u8], out: &mut [f32]) {
    let (low, high) = out.split_at_mut(codes.len());
    for ((low, high), both) in low.iter_mut().zip(high).zip(codes) {
        *low = scale * levels[usize::from(both & 15)];
        *high = scale * levels[usize::from(both >> 4)];
    }
}

pub(super) fn iq4_nl(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.as_chunks::<IQ4_NL_BYTES>().0.iter().zip(out.as_chunks_mut().0) {
        let out: &mut [f32; LEN] = out;
        halves(&IQ4_NL, f16_to_f32(u16::from_le_bytes([block[0], block[1]])), &block[2..], out);
    }
}

pub(super) fn mxfp4(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.as_chunks::<MXFP4_BYTES>().0.iter().zip(out.as_chunks_mut().0) {
        let out: &mut [f32; LEN] = out;
        // 2^(e - 128), and the levels doubled: so the largest exponent is still a number. The two lowest powers are
        // subnormal.
        let scale = match block[0] {
            e @ 0..2 => f32::from_bits(1 << 21 << e),
            e => f32::from_bits(u32::from(e - 1) << 23),
        };
        halves(&E2M1.map(|level| 2.0 * level), scale, &block[1..], out);
    }
}

/// Scales are magnitudes, and llama.cpp reads the NaN without a sign as zero.
pub(super) fn nvfp4(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.as_chunks::<NVFP4_BYTES>().0.iter().zip(out.as_chunks_mut().0) {
        let out: &mut [f32; NVFP4_LEN] = out;
        let (scales, codes) = block.split_at(4);
        for ((scale, codes), out) in
            scales.iter().zip(codes.chunks_exact(8)).zip(out.chunks_exact_mut(16))
        {
            let scale = match *scale {
                0x7f => 0.0,
                0xff => 480.0,
                scale => e4m3::to_f32(scale & 0x7f),
            };
            halves(&E2M1, scale, codes, out);
        }
    }
}

/// Pairs of E2M1 floats, the even one in the low half of its byte.
pub(super) fn e2m1_pairs(bytes: &[u8], out: &mut [f32]) {
    for (both, out) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = [e2m1(both & 15), e2m1(both >> 4)];
    }
}

pub(super) fn f8_e4m3(bytes: &[u8], out: &mut [f32]) {
    for (byte, out) in bytes.iter().zip(out) {
        *out = e4m3::to_f32(*byte);
    }
}
