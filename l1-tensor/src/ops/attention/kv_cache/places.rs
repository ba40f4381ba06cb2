//! The sixteen places of a tile: where their bytes are, how to move them and how to forget them.
//!
//! The layout of `kv_cache.rs` in bytes. Here a *word* is what one place of a key tile has in a line:
//! one f32, two bf16 or two 8-bit codes.

use std::ops::Range;

use super::TILE;
use crate::DType;

/// How one head's part of a tile is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub head_dim: usize,
    pub dtype: DType,
}

impl Geometry {
    /// Elements of a row, `D'`.
    #[inline(always)]
    pub(crate) fn padded(self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// Elements of a word.
    #[inline(always)]
    pub(crate) fn per_word(self) -> usize {
        if self.dtype == DType::F32 { 1 } else { 2 }
    }

    /// Bytes of a word.
    #[inline(always)]
    pub(crate) fn word(self) -> usize {
        self.per_word() * self.dtype.size()
    }

    /// Elements of one head's keys, or values, in a tile.
    pub(crate) fn elems(self) -> usize {
        TILE * self.padded()
    }

    /// Bytes of one head's keys, or values, in a tile.
    #[inline(always)]
    pub(crate) fn tile_bytes(self) -> usize {
        self.elems() * self.dtype.size()
    }

    /// Bytes of one head's scales in a tile: a byte for each key, then one for each value.
    #[inline(always)]
    pub(crate) fn scale_bytes(self) -> usize {
        if self.dtype == DType::F8E4M3 { 2 * TILE } else { 0 }
    }

    /// Copy `n` places of a key tile, from place `at.1` of `from` to place `at.0` of `to`.
    #[inline(always)]
    pub(crate) fn copy_keys(self, to: &mut [u8], from: &[u8], at: (usize, usize), n: usize) {
        let word = self.word();
        let lines = to.chunks_exact_mut(TILE * word).zip(from.chunks_exact(TILE * word));
        for (to, from) in lines {
            to[at.0 * word..][..n * word].copy_from_slice(&from[at.1 * word..][..n * word]);
        }
    }

    /// Copy `n` places of a value tile. `n` is a power of two and divides both places.
    #[inline(always)]
    pub(crate) fn copy_values(self, to: &mut [u8], from: &[u8], at: (usize, usize), n: usize) {
        let (per_word, word) = (self.per_word(), self.word());
        let row = self.padded() * word;
        let to = &mut to[at.0 / per_word * row..];
        let from = &from[at.1 / per_word * row..];
        if n >= per_word {
            to[..n / per_word * row].copy_from_slice(&from[..n / per_word * row]);
            return;
        }
        // One token of a row that two share: half of every word.
        let half = word / 2;
        let (to_half, from_half) = (at.0 % 2 * half, at.1 % 2 * half);
        for (to, from) in to[..row].chunks_exact_mut(word).zip(from.chunks_exact(word)) {
            to[to_half..][..half].copy_from_slice(&from[from_half..][..half]);
        }
    }

    /// Forget places of a key tile.
    pub(super) fn clear_keys(self, tile: &mut [u8], places: Range<usize>) {
        let word = self.word();
        for line in tile.chunks_exact_mut(TILE * word) {
            line[places.start * word..places.end * word].fill(0);
        }
    }

    /// Forget places of a value tile.
    pub(super) fn clear_values(self, tile: &mut [u8], places: Range<usize>) {
        let (per_word, word) = (self.per_word(), self.word());
        let part = word / per_word;
        for i in places {
            let row = &mut tile[i / per_word * self.padded() * word..][..self.padded() * word];
            for word in row.chunks_exact_mut(word) {
                word[i % per_word * part..][..part].fill(0);
            }
        }
    }
}
