//! The sixteen positions of a tile: addresses of their bytes, and how to copy and to clear them.
//!
//! The layout of `kv_cache.rs` in bytes. Here a *word* is the part of one position in a line of a key tile:
//! one f32, two bf16 or two 8-bit codes.

use std::ops::Range;

use super::TILE;
use crate::DType;

/// Layout of one head's part of a tile.
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

    /// Copies `n` positions of a key tile, from position `at.1` of `from` to position `at.0` of `to`.
    #[inline(always)]
    pub(crate) fn copy_keys(self, to: &mut [u8], from: &[u8], at: (usize, usize), n: usize) {
        let (word, line) = (self.word(), TILE * self.word());
        let at = (at.0 * word, at.1 * word);
        // Lengths that are known at compile time become single moves.
        match n * word {
            2 => copy_columns::<2>(to, from, line, at),
            4 => copy_columns::<4>(to, from, line, at),
            8 => copy_columns::<8>(to, from, line, at),
            16 => copy_columns::<16>(to, from, line, at),
            32 => copy_columns::<32>(to, from, line, at),
            _ => to.copy_from_slice(from),
        }
    }

    /// Bytes that the `n` positions from `i` on share in a value tile, including the neighbours of an odd
    /// one.
    #[inline(always)]
    pub(crate) fn value_rows(self, i: usize, n: usize) -> Range<usize> {
        let row = self.padded() * self.word();
        i / self.per_word() * row..(i + n).div_ceil(self.per_word()) * row
    }

    /// Copies `n` positions of a value tile. `n` is a power of two and divides both positions.
    #[inline(always)]
    pub(crate) fn copy_values(self, to: &mut [u8], from: &[u8], at: (usize, usize), n: usize) {
        let to = &mut to[self.value_rows(at.0, n)];
        let from = &from[self.value_rows(at.1, n)];
        if n >= self.per_word() {
            return to.copy_from_slice(from);
        }
        // One token of a row that two tokens share: half of every word.
        let odd = (at.0 as u32 % 2, at.1 as u32 % 2);
        if self.word() == 4 {
            for (to, from) in to.as_chunks_mut::<4>().0.iter_mut().zip(from.as_chunks::<4>().0) {
                let half = u32::from_le_bytes(*from) >> (16 * odd.1) & 0xffff;
                let others = u32::from_le_bytes(*to) & !(0xffff << (16 * odd.0));
                *to = (others | half << (16 * odd.0)).to_le_bytes();
            }
        } else {
            for (to, from) in to.as_chunks_mut::<2>().0.iter_mut().zip(from.as_chunks::<2>().0) {
                to[odd.0 as usize] = from[odd.1 as usize];
            }
        }
    }

    /// Clears positions of a key tile.
    pub(super) fn clear_keys(self, tile: &mut [u8], places: Range<usize>) {
        let word = self.word();
        for line in tile.chunks_exact_mut(TILE * word) {
            line[places.start * word..places.end * word].fill(0);
        }
    }

    /// Clears positions of a value tile.
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

/// Copies `N` bytes of every line.
#[inline(always)]
fn copy_columns<const N: usize>(to: &mut [u8], from: &[u8], line: usize, at: (usize, usize)) {
    for (to, from) in to.chunks_exact_mut(line).zip(from.chunks_exact(line)) {
        if let (Some(to), Some(from)) =
            (to[at.0..].first_chunk_mut::<N>(), from[at.1..].first_chunk::<N>())
        {
            *to = *from;
        }
    }
}
