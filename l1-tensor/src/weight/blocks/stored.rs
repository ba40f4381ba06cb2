//! Blocks as a GGUF file stores them, taken apart into codes and scales.
//!
//! ```text
//! Q8_0  | d | q: 32 x i8 |                                   34 bytes
//! Q4_0  | d | q: 16 |                                        18
//! Q4_1  | d | m | q: 16 |                                    20
//! Q5_0  | d | h: u32 | q: 16 |                               22
//! Q5_1  | d | m | h: u32 | q: 16 |                           24
//! Q4_K  | d | dmin | scales: 12 | q: 128 |                   144
//! Q5_K  | d | dmin | scales: 12 | h: 32 | q: 128 |           176
//! Q6_K  | q: 128 | h: 64 | scales: 16 x i8 | d |             210
//! ```
//!
//! Byte `j` of 16 bytes of codes has weight `j` in its low half and weight `j + 16` in its high one; of the 128 bytes of
//! a K format, each run of 32 has two groups of 32 so. `h` are upper bits of codes. Source: `ggml-common.h` and
//! `ggml-quants.c` of llama.cpp.
//!
//! The loader's dequantisation (`checkpoint/quant` of l2-model) reads the same bytes on its own, on purpose: tests compare
//! the two.

use super::format::BlockFormat;

/// A block, taken apart.
pub(super) struct Block {
    /// Codes of its weights, as many as the format has.
    pub(super) codes: [u8; 256],
    /// f16 bits.
    pub(super) d: u16,
    /// f16 bits of `m` or `dmin`.
    pub(super) min: u16,
    /// Scale of each group: an integer, in formats with nested scales.
    pub(super) scales: [u8; 16],
    /// Minimum of each group.
    pub(super) mins: [u8; 8],
}

impl Block {
    pub(super) fn new() -> Self {
        Self { codes: [0; 256], d: 0, min: 0, scales: [0; 16], mins: [0; 8] }
    }

    /// Whether `d` and `m` or `dmin` are numbers: no infinity, no NaN.
    pub(super) fn is_finite(&self) -> bool {
        const EXPONENT: u16 = 0x7c00;
        self.d & EXPONENT != EXPONENT && self.min & EXPONENT != EXPONENT
    }

    /// Reads a block, which must have the format's number of bytes.
    pub(super) fn read(&mut self, format: BlockFormat, bytes: &[u8]) {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let high = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        match format {
            BlockFormat::Q8_0 => {
                self.d = half(0);
                self.codes[..32].copy_from_slice(&bytes[2..34]);
            }
            BlockFormat::Q4_0 => {
                self.d = half(0);
                self.nibbles(&bytes[2..18]);
            }
            BlockFormat::Q4_1 => {
                (self.d, self.min) = (half(0), half(2));
                self.nibbles(&bytes[4..20]);
            }
            BlockFormat::Q5_0 => {
                self.d = half(0);
                self.nibbles(&bytes[6..22]);
                self.fifth_bits(high(2));
            }
            BlockFormat::Q5_1 => {
                (self.d, self.min) = (half(0), half(2));
                self.nibbles(&bytes[8..24]);
                self.fifth_bits(high(4));
            }
            BlockFormat::Q4_K => {
                (self.d, self.min) = (half(0), half(2));
                self.six_bit_scales(&bytes[4..16]);
                self.nibble_runs(&bytes[16..144]);
            }
            BlockFormat::Q5_K => {
                (self.d, self.min) = (half(0), half(2));
                self.six_bit_scales(&bytes[4..16]);
                self.nibble_runs(&bytes[48..176]);
                for (group, codes) in self.codes.chunks_exact_mut(32).enumerate() {
                    for (code, h) in codes.iter_mut().zip(&bytes[16..48]) {
                        *code |= (h >> group & 1) << 4;
                    }
                }
            }
            BlockFormat::Q6_K => {
                self.d = half(208);
                self.scales.copy_from_slice(&bytes[192..208]);
                for (quarter, codes) in self.codes.chunks_exact_mut(32).enumerate() {
                    let (part, k) = (quarter / 4, quarter % 4);
                    let low = &bytes[part * 64 + k % 2 * 32..][..32];
                    let high = &bytes[128 + part * 32..][..32];
                    for ((code, l), h) in codes.iter_mut().zip(low).zip(high) {
                        *code = (l >> (k / 2 * 4) & 15) | (h >> (2 * k) & 3) << 4;
                    }
                }
            }
        }
    }

    /// 32 codes in 16 bytes.
    fn nibbles(&mut self, bytes: &[u8]) {
        let (low, high) = self.codes[..32].split_at_mut(16);
        for ((low, high), both) in low.iter_mut().zip(high).zip(bytes) {
            (*low, *high) = (both & 15, both >> 4);
        }
    }

    /// The fifth bit of 32 codes.
    fn fifth_bits(&mut self, high: u32) {
        for (j, code) in self.codes[..32].iter_mut().enumerate() {
            *code |= (high >> j & 1) as u8 * 16;
        }
    }

    /// 256 codes in four runs of 32 bytes, two groups of 32 in each.
    fn nibble_runs(&mut self, bytes: &[u8]) {
        for (codes, run) in self.codes.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
            let (low, high) = codes.split_at_mut(32);
            for ((low, high), both) in low.iter_mut().zip(high).zip(run) {
                (*low, *high) = (both & 15, both >> 4);
            }
        }
    }

    /// Eight scales and eight minima of 6 bits in 12 bytes: the first four of each in the low bits of bytes 0..4 and
    /// 4..8, whose top two bits are those of the last four; the low bits of these are the halves of bytes 8..12.
    fn six_bit_scales(&mut self, bytes: &[u8]) {
        for j in 0..4 {
            let (scale, min, low) = (bytes[j], bytes[4 + j], bytes[8 + j]);
            (self.scales[j], self.mins[j]) = (scale & 63, min & 63);
            self.scales[4 + j] = (low & 15) | scale >> 6 << 4;
            self.mins[4 + j] = low >> 4 | min >> 6 << 4;
        }
    }
}
