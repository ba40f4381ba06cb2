//! The number formats that weights are stored in, and how to expand them.
//!
//! A checkpoint stores a weight matrix row after row. In the plain formats (F32, F16, BF16) every
//! number stands alone. In the *block-quantised* formats a row is cut into blocks of 32 or 256
//! consecutive weights; a block keeps one small integer code per weight and a few numbers shared
//! by the whole block that turn codes back into weights. Reading such a format is one line of
//! arithmetic per weight; all the work is in knowing which bits are where.
//!
//! | type | weights per block | bytes | bits per weight | a weight is |
//! |---|---|---|---|---|
//! | F32, F16, BF16 | 1 | 4, 2, 2 | 32, 16, 16 | itself |
//! | Q8_0 | 32 | 34 | 8.5 | `d * q`, q in -128..=127 |
//! | Q4_0 | 32 | 18 | 4.5 | `d * (q - 8)`, q in 0..=15 |
//! | Q4_1 | 32 | 20 | 5 | `d * q + m`, q in 0..=15 |
//! | Q5_0 | 32 | 22 | 5.5 | `d * (q - 16)`, q in 0..=31 |
//! | Q5_1 | 32 | 24 | 6 | `d * q + m`, q in 0..=31 |
//! | Q4_K | 256 | 144 | 4.5 | `(d * sc) * q - (dmin * mn)` per sub-block of 32 |
//! | Q5_K | 256 | 176 | 5.5 | the same with 5-bit codes |
//! | Q6_K | 256 | 210 | 6.5625 | `(d * sc) * (q - 32)` per sub-block of 16 |
//! | IQ4_NL | 32 | 18 | 4.5 | `d * level[q]`, 16 levels |
//! | MXFP4 | 32 | 17 | 4.25 | `2^(e - 127) * e2m1(q)` |
//! | NVFP4 | 64 | 36 | 4.5 | `s * e2m1(q)` per sub-block of 16, `s` an E4M3 |
//!
//! The exact bytes are described beside each decoder: `float.rs` (plain), `legacy.rs` (blocks of
//! 32, the first generation), `k.rs` (blocks of 256) and `four_bit.rs` (levels in a table). All multi-byte numbers are
//! little-endian; `d`, `m` and `dmin` are F16. Source of the layouts: `ggml-common.h` and
//! `ggml-quants.c` of llama.cpp, and `gguf-py/gguf/quants.py`, whose f32 results these decoders
//! equal bit for bit.
//!
//! Everything works on any whole number of blocks, so a loader expands a tensor row by row and
//! never holds a full f32 copy.

mod float;
mod four_bit;
mod k;
mod legacy;

use half::bf16;
use l1_tensor::BlockFormat;

pub use float::{f16_to_f32, f32_to_bf16};
pub(crate) use four_bit::e2m1;

/// Format of a tensor's numbers.
///
/// The names are ggml's own, underscores included, because those are the names one meets in file
/// names and model cards.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16: the upper half of an f32.
    BF16,
    /// 4-bit codes, one scale per 32 weights, symmetric around zero.
    Q4_0,
    /// 4-bit codes, one scale and one minimum per 32 weights.
    Q4_1,
    /// 5-bit codes, one scale per 32 weights, symmetric around zero.
    Q5_0,
    /// 5-bit codes, one scale and one minimum per 32 weights.
    Q5_1,
    /// 8-bit codes, one scale per 32 weights.
    Q8_0,
    /// 4-bit codes; 256 weights in 8 sub-blocks with 6-bit scales and minima.
    Q4_K,
    /// 5-bit codes; 256 weights in 8 sub-blocks with 6-bit scales and minima.
    Q5_K,
    /// 6-bit codes; 256 weights in 16 sub-blocks with 8-bit scales.
    Q6_K,
    /// 4-bit codes of 16 uneven levels, one scale per 32 weights.
    IQ4_NL,
    /// 4-bit floats, one power of two per 32 weights.
    MXFP4,
    /// 4-bit floats, one 8-bit float per 16 weights, in blocks of 64. (This is GGUF's layout; codes and scales of a
    /// safetensors file are [`E2M1`](Self::E2M1) and [`F8_E4M3`](Self::F8_E4M3) tensors.)
    NVFP4,
    /// Pairs of 4-bit floats without a scale: the codes of an NVFP4 weight in a safetensors file.
    E2M1,
    /// 8-bit floats: the scales of an NVFP4 weight in a safetensors file.
    F8_E4M3,
}

impl StoredType {
    /// Every format that a weight can have, plain ones first. [`E2M1`](Self::E2M1) and [`F8_E4M3`](Self::F8_E4M3) are
    /// none: they are parts of a weight.
    pub const ALL: [StoredType; 14] = [
        StoredType::F32,
        StoredType::F16,
        StoredType::BF16,
        StoredType::Q8_0,
        StoredType::Q4_0,
        StoredType::Q4_1,
        StoredType::Q5_0,
        StoredType::Q5_1,
        StoredType::Q4_K,
        StoredType::Q5_K,
        StoredType::Q6_K,
        StoredType::IQ4_NL,
        StoredType::MXFP4,
        StoredType::NVFP4,
    ];

    /// The name as ggml writes it, e.g. `"Q4_K"`.
    pub const fn name(self) -> &'static str {
        match self {
            StoredType::F32 => "F32",
            StoredType::F16 => "F16",
            StoredType::BF16 => "BF16",
            StoredType::Q4_0 => "Q4_0",
            StoredType::Q4_1 => "Q4_1",
            StoredType::Q5_0 => "Q5_0",
            StoredType::Q5_1 => "Q5_1",
            StoredType::Q8_0 => "Q8_0",
            StoredType::Q4_K => "Q4_K",
            StoredType::Q5_K => "Q5_K",
            StoredType::Q6_K => "Q6_K",
            StoredType::IQ4_NL => "IQ4_NL",
            StoredType::MXFP4 => "MXFP4",
            StoredType::NVFP4 => "NVFP4",
            StoredType::E2M1 => "E2M1",
            StoredType::F8_E4M3 => "F8_E4M3",
        }
    }

    /// Number of weights per block: 1, 2, 32, 64 or 256.
    pub const fn block_len(self) -> usize {
        match self {
            StoredType::F32 | StoredType::F16 | StoredType::BF16 | StoredType::F8_E4M3 => 1,
            StoredType::E2M1 => 2,
            StoredType::IQ4_NL | StoredType::MXFP4 => four_bit::LEN,
            StoredType::NVFP4 => four_bit::NVFP4_LEN,
            StoredType::Q4_0
            | StoredType::Q4_1
            | StoredType::Q5_0
            | StoredType::Q5_1
            | StoredType::Q8_0 => legacy::LEN,
            StoredType::Q4_K | StoredType::Q5_K | StoredType::Q6_K => k::LEN,
        }
    }

    /// Size of a block, in bytes.
    pub const fn block_bytes(self) -> usize {
        match self {
            StoredType::F32 => 4,
            StoredType::F16 | StoredType::BF16 => 2,
            StoredType::Q4_0 => legacy::Q4_0_BYTES,
            StoredType::Q4_1 => legacy::Q4_1_BYTES,
            StoredType::Q5_0 => legacy::Q5_0_BYTES,
            StoredType::Q5_1 => legacy::Q5_1_BYTES,
            StoredType::Q8_0 => legacy::Q8_0_BYTES,
            StoredType::Q4_K => k::Q4_K_BYTES,
            StoredType::Q5_K => k::Q5_K_BYTES,
            StoredType::Q6_K => k::Q6_K_BYTES,
            StoredType::IQ4_NL => four_bit::IQ4_NL_BYTES,
            StoredType::MXFP4 => four_bit::MXFP4_BYTES,
            StoredType::NVFP4 => four_bit::NVFP4_BYTES,
            StoredType::E2M1 | StoredType::F8_E4M3 => 1,
        }
    }

    /// The bytes that `n` weights take, or `None` when `n` is no whole number of blocks or the
    /// byte count does not fit a `usize`.
    pub const fn bytes_for(self, n: usize) -> Option<usize> {
        if n.is_multiple_of(self.block_len()) {
            (n / self.block_len()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }

    /// The format as weights keep it in memory; `None` for the plain formats.
    pub const fn blocks(self) -> Option<BlockFormat> {
        Some(match self {
            StoredType::F32 | StoredType::F16 | StoredType::BF16 => return None,
            StoredType::E2M1 | StoredType::F8_E4M3 => return None,
            StoredType::Q4_0 => BlockFormat::Q4_0,
            StoredType::Q4_1 => BlockFormat::Q4_1,
            StoredType::Q5_0 => BlockFormat::Q5_0,
            StoredType::Q5_1 => BlockFormat::Q5_1,
            StoredType::Q8_0 => BlockFormat::Q8_0,
            StoredType::Q4_K => BlockFormat::Q4_K,
            StoredType::Q5_K => BlockFormat::Q5_K,
            StoredType::Q6_K => BlockFormat::Q6_K,
            StoredType::IQ4_NL => BlockFormat::IQ4_NL,
            StoredType::MXFP4 => BlockFormat::MXFP4,
            StoredType::NVFP4 => BlockFormat::NVFP4,
        })
    }

    /// True for the formats whose weights share block scales.
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }
}

impl std::fmt::Display for StoredType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The lengths of bytes and output do not match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{ty}: {weights} weights asked from {bytes} bytes; pass whole blocks of {} weights in {} bytes",
    ty.block_len(),
    ty.block_bytes()
)]
pub struct QuantError {
    /// The format asked for.
    pub ty: StoredType,
    /// Length of the output.
    pub weights: usize,
    /// Length of the input.
    pub bytes: usize,
}

fn check(ty: StoredType, bytes: &[u8], weights: usize) -> Result<(), QuantError> {
    if ty.bytes_for(weights) == Some(bytes.len()) {
        Ok(())
    } else {
        Err(QuantError { ty, weights, bytes: bytes.len() })
    }
}

/// Expands whole blocks of `ty` to f32: `out[i]` is the i-th weight stored in `bytes`.
///
/// # Errors
/// [`QuantError`] unless `bytes.len() == ty.bytes_for(out.len())`.
pub fn dequantize(ty: StoredType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check(ty, bytes, out.len())?;
    match ty {
        StoredType::F32 => float::f32(bytes, out),
        StoredType::F16 => float::f16(bytes, out),
        StoredType::BF16 => float::bf16(bytes, out),
        StoredType::Q4_0 => legacy::q4_0(bytes, out),
        StoredType::Q4_1 => legacy::q4_1(bytes, out),
        StoredType::Q5_0 => legacy::q5_0(bytes, out),
        StoredType::Q5_1 => legacy::q5_1(bytes, out),
        StoredType::Q8_0 => legacy::q8_0(bytes, out),
        StoredType::Q4_K => k::q4_k(bytes, out),
        StoredType::Q5_K => k::q5_k(bytes, out),
        StoredType::Q6_K => k::q6_k(bytes, out),
        StoredType::IQ4_NL => four_bit::iq4_nl(bytes, out),
        StoredType::MXFP4 => four_bit::mxfp4(bytes, out),
        StoredType::NVFP4 => four_bit::nvfp4(bytes, out),
        StoredType::E2M1 => four_bit::e2m1_pairs(bytes, out),
        StoredType::F8_E4M3 => four_bit::f8_e4m3(bytes, out),
    }
    Ok(())
}

/// Expands whole blocks of `ty` to bf16, rounding to nearest even; BF16 input is copied as it is.
///
/// The f32 values live in a buffer of one kilobyte on the stack, so they never leave the first-level
/// cache.
///
/// # Errors
/// [`QuantError`] unless `bytes.len() == ty.bytes_for(out.len())`.
pub fn dequantize_bf16(ty: StoredType, bytes: &[u8], out: &mut [bf16]) -> Result<(), QuantError> {
    check(ty, bytes, out.len())?;
    if ty == StoredType::BF16 {
        for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *o = bf16::from_le_bytes(*b);
        }
        return Ok(());
    }
    // Every block length divides this one, so a chunk is always whole blocks.
    const CHUNK: usize = 256;
    let chunk_bytes = CHUNK / ty.block_len() * ty.block_bytes();
    let mut wide = [0f32; CHUNK];
    for (b, o) in bytes.chunks(chunk_bytes).zip(out.chunks_mut(CHUNK)) {
        let wide = &mut wide[..o.len()];
        dequantize(ty, b, wide)?;
        for (o, w) in o.iter_mut().zip(wide) {
            *o = f32_to_bf16(*w);
        }
    }
    Ok(())
}
