//! Blocks as a file stores them, taken apart into codes and scales.
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
//! IQ4_NL | d | q: 16 |                                       18
//! MXFP4 | e: u8 | q: 16 |                                    17, two blocks in a unit
//! NVFP4 | s: 4 x u8 | q: 4 x 8 |                             36
//! NVFP4 of safetensors: q: 8 in one tensor, s: u8 in another, two blocks in a unit
//! ```
//!
//! Byte `j` of 16 bytes of codes has weight `j` in its low half and weight `j + 16` in its high one; of the 128 bytes of
//! a K format, each run of 32 has two groups of 32 so; of the 8 bytes of NVFP4 the low halves are weights 0 to 7 of a
//! group. In a safetensors file a byte has two neighbours, the even one in its low half. `h` are
//! upper bits of codes. Source: `ggml-common.h` and
//! `ggml-quants.c` of llama.cpp.
//!
//! The loader's dequantisation (`checkpoint/quant` of l2-model) reads the same bytes on its own, on purpose: tests compare
//! the two.

use super::format::{BlockFormat, Scale, Shape};

/// A row as a file stores it.
#[derive(Clone, Copy, Debug)]
pub struct StoredRow<'a> {
    pub(super) blocks: &'a [u8],
    pub(super) scales: &'a [u8],
}

impl<'a> StoredRow<'a> {
    /// A row of [`BlockFormat::NVFP4_SPLIT`]: a byte of codes for two weights, a scale for sixteen.
    pub fn split(codes: &'a [u8], scales: &'a [u8]) -> Self {
        Self { blocks: codes, scales }
    }

    /// Writes codes and scales of a row in NVFP4 as [`split`](Self::split) takes them: `codes` has half a byte for each
    /// weight of the row, `scales` a byte for sixteen.
    ///
    /// An error says what the row is or has, as those of `PackedBlocks::pack`.
    pub(in crate::weight) fn nvfp4(
        self,
        format: BlockFormat,
        codes: &mut [u8],
        scales: &mut [u8],
    ) -> Result<(), String> {
        let k = 2 * codes.len();
        let apart = scales.len() * format.scale_bytes();
        let bytes = k / format.block_len() * format.block_bytes() - apart;
        if (self.blocks.len(), self.scales.len()) != (bytes, apart) {
            let (got, want) = (self.blocks.len() + self.scales.len(), bytes + apart);
            return Err(format!("has {got} bytes; {k} weights in {format} are {want}"));
        }
        if apart > 0 {
            codes.copy_from_slice(self.blocks);
            scales.copy_from_slice(self.scales);
        } else {
            let mut block = Block::new();
            let len = format.block_len();
            let blocks = self.blocks.chunks_exact(format.block_bytes());
            let out = codes.chunks_exact_mut(len / 2).zip(scales.chunks_exact_mut(len / 16));
            for (stored, (codes, scales)) in blocks.zip(out) {
                block.read(format, stored, &[]);
                scales.copy_from_slice(&block.scales[..scales.len()]);
                for (both, pair) in codes.iter_mut().zip(block.codes.chunks_exact(2)) {
                    *both = pair[0] | pair[1] << 4;
                }
            }
        }
        // Codes from NaN (0x7f) on: it and what has a sign.
        match scales.iter().any(|scale| *scale > 0x7e) {
            true => Err(format!("has a scale in {format} that is {}", Scale::E4m3.unusable())),
            false => Ok(()),
        }
    }
}

/// A row of blocks that contain their scales.
impl<'a> From<&'a [u8]> for StoredRow<'a> {
    fn from(blocks: &'a [u8]) -> Self {
        Self { blocks, scales: &[] }
    }
}

/// The blocks of a unit, taken apart.
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

    /// Whether the scales can be used: `d` and `m` or `dmin` are numbers (no infinity, no NaN), floats of eight bits
    /// are not negative, and no power of two makes a weight infinite.
    pub(super) fn is_finite(&self, shape: Shape) -> bool {
        const EXPONENT: u16 = 0x7c00;
        /// The largest power of two, 2^125, whose sixfold an f32 can hold.
        const MAX_POWER: u8 = 127 + 125;
        let scales = &self.scales[..if shape.nested { shape.groups } else { 0 }];
        match shape.scale {
            Scale::F16 => self.d & EXPONENT != EXPONENT && self.min & EXPONENT != EXPONENT,
            Scale::E4m3 => scales.iter().all(|s| *s <= 0x7e),
            Scale::E8m0 => scales.iter().all(|e| *e <= MAX_POWER),
        }
    }

    /// Reads the blocks of a unit, which must have the format's number of bytes; `scales` are those that stand apart.
    pub(super) fn read(&mut self, format: BlockFormat, bytes: &[u8], scales: &[u8]) {
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
            BlockFormat::IQ4_NL => {
                self.d = half(0);
                self.nibbles(&bytes[2..18]);
            }
            BlockFormat::MXFP4 => {
                for (i, block) in bytes.chunks_exact(17).enumerate() {
                    self.scales[i] = block[0];
                    nibbles(&block[1..], &mut self.codes[32 * i..][..32]);
                }
                self.without_negative_zeros();
            }
            BlockFormat::NVFP4 => {
                self.scales[..4].copy_from_slice(&bytes[..4]);
                let groups = self.codes.chunks_exact_mut(16).zip(bytes[4..].chunks_exact(8));
                groups.for_each(|(codes, bytes)| nibbles(bytes, codes));
                self.without_negative_zeros();
            }
            BlockFormat::NVFP4_SPLIT => {
                self.scales[..2].copy_from_slice(scales);
                for (codes, both) in self.codes.chunks_exact_mut(2).zip(bytes) {
                    (codes[0], codes[1]) = (both & 15, both >> 4);
                }
            }
        }
    }

    /// 32 codes in 16 bytes.
    fn nibbles(&mut self, bytes: &[u8]) {
        nibbles(bytes, &mut self.codes[..32]);
    }

    /// llama.cpp has no negative zero among its four-bit floats.
    fn without_negative_zeros(&mut self) {
        self.codes.iter_mut().filter(|code| **code == 8).for_each(|code| *code = 0);
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

/// Codes of bytes whose low halves come first.
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((low, high), both) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (both & 15, both >> 4);
    }
}
