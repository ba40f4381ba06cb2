//! The bytes that each op has to move, to compare its time with.
//!
//! Counted is what every kernel has to move: every input read once, every output written once, and what all
//! rows share (a weight, a bias, a token's angles) once too, since it stays in a cache. An op that takes
//! longer than `total() / bandwidth` wastes the difference, or is bound by arithmetic.

use std::ops::Add;

use super::Accumulate;
use crate::{Float, KvShape};

/// Bytes that have to move between a device's memory and its multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes read from memory.
    pub read: u64,
    /// Bytes written to memory.
    pub written: u64,
}

impl Traffic {
    /// Bytes in both directions.
    pub fn total(self) -> u64 {
        self.read + self.written
    }

    /// Fraction of this bandwidth (bytes a second) that moving the bytes in so many seconds achieves: 1 is
    /// all of it.
    pub fn utilisation(self, seconds: f64, bandwidth: f64) -> f64 {
        self.total() as f64 / seconds / bandwidth
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { read: self.read + other.read, written: self.written + other.written }
    }
}

const F32: u64 = 4;

fn moved(read: u64, written: u64) -> Traffic {
    Traffic { read, written }
}

fn size(dtype: Float) -> u64 {
    dtype.size() as u64
}

fn product<const N: usize>(sizes: [usize; N]) -> u64 {
    sizes.into_iter().map(|n| n as u64).product()
}

/// Traffic of [`add_in_place`](super::add_in_place) on so many elements.
pub fn add_in_place(elements: usize) -> Traffic {
    let n = product([elements]);
    moved(n * 2 * F32, n * F32)
}

/// Traffic of [`scale_in_place`](super::scale_in_place) on so many elements.
pub fn scale_in_place(elements: usize) -> Traffic {
    let n = product([elements]);
    moved(n * F32, n * F32)
}

/// Traffic of [`add_bias`](super::add_bias) on `[rows, width]`.
pub fn add_bias(rows: usize, width: usize) -> Traffic {
    scale_in_place(rows * width) + moved(product([width]) * F32, 0)
}

/// Traffic of [`convert`](super::convert) on so many elements.
pub fn convert(elements: usize, from: Float, to: Float) -> Traffic {
    let n = product([elements]);
    moved(n * size(from), n * size(to))
}

/// Traffic of [`embedding`](super::embedding) into `[rows, width]`.
pub fn embedding(rows: usize, width: usize) -> Traffic {
    convert(rows * width, Float::Bf16, Float::F32) + moved(product([rows]) * 4, 0)
}

/// Traffic of [`gather_rows`](super::gather_rows) into `[rows, width]`.
pub fn gather_rows(rows: usize, width: usize, dtype: Float) -> Traffic {
    convert(rows * width, dtype, dtype) + moved(product([rows]) * 4, 0)
}

/// Traffic of [`rms_norm`](super::rms_norm) on `[rows, width]`.
pub fn rms_norm(rows: usize, width: usize, out: Float) -> Traffic {
    convert(rows * width, Float::F32, out) + moved(product([width]) * F32, 0)
}

/// Traffic of [`add_rms_norm`](super::add_rms_norm) on `[rows, width]`.
pub fn add_rms_norm(rows: usize, width: usize, out: Float) -> Traffic {
    // The fused op saves reading the sum again.
    add_in_place(rows * width)
        + rms_norm(0, width, out)
        + moved(0, product([rows, width]) * size(out))
}

/// Traffic of [`rms_norm_heads`](super::rms_norm_heads) on `[tokens, heads, dim]`.
pub fn rms_norm_heads(tokens: usize, heads: usize, dim: usize) -> Traffic {
    rms_norm(tokens * heads, dim, Float::F32)
}

/// Traffic of [`layer_norm`](super::layer_norm) on `[rows, width]`.
pub fn layer_norm(rows: usize, width: usize, bias: bool, out: Float) -> Traffic {
    rms_norm(rows, width, out) + moved(if bias { product([width]) * F32 } else { 0 }, 0)
}

/// Traffic of [`rope`](super::rope) on `[tokens, heads]` of which so many elements of each head turn.
pub fn rope(tokens: usize, heads: usize, rotary_dim: usize) -> Traffic {
    // Half as many cosines and half as many sines as elements of one head.
    scale_in_place(tokens * heads * rotary_dim) + moved(product([tokens, rotary_dim]) * F32, 0)
}

/// Traffic of [`rope_angles`](super::rope_angles) for so many positions and frequencies.
pub fn rope_angles(positions: usize, frequencies: usize) -> Traffic {
    moved(product([positions + frequencies]) * 4, 2 * product([positions, frequencies]) * F32)
}

/// Traffic of [`gated`](super::gated) into `[tokens, intermediate]`.
pub fn gated(tokens: usize, intermediate: usize, out: Float) -> Traffic {
    let n = product([tokens, intermediate]);
    moved(n * 2 * F32, n * size(out))
}

/// Traffic of [`kv_write`](super::kv_write) of so many tokens, padding not counted.
pub fn kv_write(cache: KvShape, tokens: usize) -> Traffic {
    let both = 2 * tokens * cache.heads * cache.dim;
    convert(both, Float::F32, cache.dtype) + moved(product([tokens]) * 8, 0)
}

/// Traffic of [`copy_blocks`](super::copy_blocks) of so many pairs.
pub fn copy_blocks(cache: KvShape, pairs: usize) -> Traffic {
    let both = 2 * pairs * cache.block_size * cache.heads * cache.dim;
    convert(both, cache.dtype, cache.dtype) + moved(product([pairs]) * 8, 0)
}

/// Traffic of [`linear`](super::linear): `[tokens, k]` by `[n, k]`. With few tokens it is almost only the
/// weight; with many, multiplying takes longer than moving.
pub fn linear([tokens, n, k]: [usize; 3], x: Float, accumulate: Accumulate, out: Float) -> Traffic {
    let operands = product([tokens, k]) * size(x) + product([n, k]) * size(Float::Bf16);
    let result = product([tokens, n]) * size(out);
    let sums = match accumulate {
        Accumulate::Store => 0,
        Accumulate::Add { .. } => result,
    };
    moved(operands + sums, result)
}

/// Traffic of [`attention`](super::attention) of `tokens` queries with so many heads over `keys` keys, those
/// of all sequences together; each is read once, for all queries that see it.
pub fn attention(
    cache: KvShape,
    tokens: usize,
    q_heads: usize,
    keys: usize,
    out: Float,
) -> Traffic {
    let queries = convert(tokens * q_heads * cache.dim, Float::F32, out);
    queries + moved(2 * product([keys, cache.heads, cache.dim]) * size(cache.dtype), 0)
}

/// Traffic of [`argmax`](super::argmax) and of [`sample`](super::sample) over rows of logits.
pub fn sample(rows: usize, vocabulary: usize) -> Traffic {
    moved(product([rows, vocabulary]) * F32, product([rows]) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE: KvShape =
        KvShape { blocks: 9, block_size: 16, heads: 8, dim: 128, dtype: Float::Bf16 };

    #[test]
    fn bytes_are_those_counted_by_hand() {
        assert_eq!(add_in_place(10), moved(80, 40));
        assert_eq!(rms_norm(2, 8, Float::Bf16), moved(64 + 32, 32));
        assert_eq!(add_rms_norm(2, 8, Float::Bf16), moved(128 + 32, 64 + 32));
        assert_eq!(layer_norm(2, 8, true, Float::F32), moved(64 + 64, 64));
        assert_eq!(rope(3, 2, 4), moved(96 + 48, 96));
        assert_eq!(gated(3, 5, Float::Bf16), moved(120, 30));
        assert_eq!(kv_write(CACHE, 1), moved(2 * 4096 + 8, 2 * 2048));
        assert_eq!(copy_blocks(CACHE, 1), moved(16 * 4096 + 8, 16 * 4096));
        let add = Accumulate::Add { scale: 1.0 };
        assert_eq!(linear([1, 4, 8], Float::Bf16, add, Float::F32), moved(16 + 64 + 16, 16));
        // Decode of 64 sequences of 4096 tokens: a gigabyte of keys and values.
        let decode = attention(CACHE, 64, 32, 64 * 4096, Float::Bf16);
        assert_eq!(decode.read, (1 << 30) + 64 * 32 * 128 * 4);
    }

    #[test]
    fn fused_is_less_than_one_after_the_other_by_one_reading() {
        let fused = add_rms_norm(100, 4096, Float::Bf16);
        let apart = add_in_place(100 * 4096) + rms_norm(100, 4096, Float::Bf16);
        assert_eq!(apart.total() - fused.total(), 100 * 4096 * 4);
    }

    #[test]
    fn half_the_bandwidth_is_a_half() {
        assert_eq!(scale_in_place(1 << 20).utilisation(1.0, 16.0 * 1048576.0), 0.5);
    }
}
