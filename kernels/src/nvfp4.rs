//! Weights in NVFP4 as `cu/nvfp4.cuh` reads them: codes and scales of a row, in blocks of 128 columns.

use std::marker::PhantomData;

use crate::View;
use crate::error::{Error, Result};

/// Number of columns that share a scale.
const GROUP: usize = 16;

/// Number of columns in a block.
const BLOCK: usize = 128;

/// Size of a block's codes, in bytes.
const CODES: usize = BLOCK / 2;

/// Size of a block's scales, in bytes.
const SCALES: usize = BLOCK / GROUP;

/// A matrix in NVFP4 in device memory, without its factors.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4<'a> {
    /// Address of the first row, a multiple of 16.
    pub(crate) ptr: u64,
    /// Rows.
    pub rows: usize,
    /// Elements of a row, a multiple of 16.
    pub width: usize,
    borrow: PhantomData<&'a [u8]>,
}

impl<'a> Nvfp4<'a> {
    /// A matrix in this memory, which [`pack_row`](Self::pack_row) has written.
    ///
    /// # Errors
    /// [`Error::Shape`] when it does not fit, rows are no whole groups of 16, or the address is no multiple of 16.
    pub fn new(memory: View<'a, u8>, rows: usize, width: usize) -> Result<Self> {
        let bad = |why: String| Err(Error::shape("an NVFP4 matrix", why));
        if !width.is_multiple_of(GROUP) {
            return bad(format!("rows of {width} elements are no whole groups of {GROUP}"));
        }
        if !memory.ptr().is_multiple_of(16) {
            return bad("its address is no multiple of 16".into());
        }
        let bytes = Self::row_bytes(width).checked_mul(rows);
        if bytes.is_none_or(|bytes| bytes > memory.len()) {
            return bad(format!("{rows} rows of {width} elements in {} bytes", memory.len()));
        }
        Ok(Self { ptr: memory.ptr(), rows, width, borrow: PhantomData })
    }

    /// Size of a row, in bytes: 72 for 128 elements, rounded up to a multiple of 16.
    pub const fn row_bytes(width: usize) -> usize {
        (width.div_ceil(BLOCK) * (CODES + SCALES)).next_multiple_of(16)
    }

    /// These rows only; fewer, where the matrix ends before that.
    pub(crate) fn part(self, first: usize, rows: usize) -> Self {
        let first = first.min(self.rows);
        let ptr = self.ptr + (first * Self::row_bytes(self.width)) as u64;
        Self { ptr, rows: rows.min(self.rows - first), ..self }
    }

    /// Writes a row. `codes` has two E2M1 floats a byte, the even one in the low half; `scales` an E4M3 float for 16
    /// elements, neither negative nor NaN.
    ///
    /// # Errors
    /// [`Error::Shape`] where `out` is no row of so many elements, or there are not as many scales.
    pub fn pack_row(codes: &[u8], scales: &[u8], out: &mut [u8]) -> Result<()> {
        let width = 2 * codes.len();
        if scales.len() * GROUP != width || out.len() != Self::row_bytes(width) {
            let why = format!("{width} codes and {} scales in {} bytes", scales.len(), out.len());
            return Err(Error::shape("an NVFP4 row", why));
        }
        out.fill(0);
        let (words, bytes) = out.split_at_mut(width.div_ceil(BLOCK) * CODES);
        for (i, codes) in codes.chunks_exact(4).enumerate() {
            // Even elements from the top of the lower half down, odd ones from the top of the upper half.
            let word = codes.iter().enumerate().fold(0, |word, (j, both)| {
                let (even, odd) = (u32::from(both & 15), u32::from(both >> 4));
                word | (even << 12 | odd << 28) >> (4 * j)
            });
            words[word_at(i)..][..4].copy_from_slice(&word.to_le_bytes());
        }
        for (i, scale) in scales.iter().enumerate() {
            bytes[scale_at(i)] = *scale;
        }
        Ok(())
    }

    /// Codes and scales of a row, as [`pack_row`](Self::pack_row) takes them.
    ///
    /// # Errors
    /// [`Error::Shape`] where `row` is no row of so many elements.
    pub fn unpack_row(row: &[u8], width: usize) -> Result<(Vec<u8>, Vec<u8>)> {
        if row.len() != Self::row_bytes(width) || !width.is_multiple_of(GROUP) {
            let why = format!("{width} elements in {} bytes", row.len());
            return Err(Error::shape("an NVFP4 row", why));
        }
        let (words, bytes) = row.split_at(width.div_ceil(BLOCK) * CODES);
        let codes = (0..width / 8).flat_map(|i| {
            let at = word_at(i);
            let word = u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
            (0..4).map(move |j| {
                let both = word << (4 * j);
                (both >> 12 & 15) as u8 | (both >> 28 << 4) as u8
            })
        });
        let scales = (0..width / GROUP).map(|i| bytes[scale_at(i)]);
        Ok((codes.collect(), scales.collect()))
    }
}

/// Offset of the word with codes 8 `i` and on: the four words of a lane follow each other, 32 columns apart.
fn word_at(i: usize) -> usize {
    let (block, piece, pair) = (i / 16, i % 16 / 4, i % 4);
    block * CODES + (4 * pair + piece) * 4
}

/// Offset of the scale of columns 16 `i` and on, behind the codes.
fn scale_at(i: usize) -> usize {
    let (block, piece, half) = (i / SCALES, i % SCALES / 2, i % 2);
    block * SCALES + 4 * half + piece
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(width: usize) -> (Vec<u8>, Vec<u8>) {
        let byte = |i: usize| (i * 89 + 17) as u8;
        ((0..width / 2).map(byte).collect(), (0..width / GROUP).map(|i| byte(i) & 0x7f).collect())
    }

    #[test]
    fn a_packed_row_is_unpacked_again() {
        for width in [0, 16, 48, 128, 144, 1024, 4112] {
            let (codes, scales) = row(width);
            let mut packed = vec![0xee; Nvfp4::row_bytes(width)];
            Nvfp4::pack_row(&codes, &scales, &mut packed).unwrap();
            assert_eq!(Nvfp4::unpack_row(&packed, width).unwrap(), (codes, scales), "{width}");
        }
    }

    #[test]
    fn a_row_takes_four_and_a_half_bits_a_weight() {
        assert_eq!(Nvfp4::row_bytes(4096) * 8, 4096 * 9 / 2);
        assert_eq!(Nvfp4::row_bytes(16), 80, "a block of 72 bytes, aligned");
    }

    /// Where a lane looks: column 40 is the first of word (piece 1, pair 1), column 41 is 16 bits above it.
    #[test]
    fn columns_lie_where_lanes_read_them() {
        let mut codes = vec![0; 64];
        codes[20] = 0x95; // columns 40 and 41
        let mut packed = vec![0; Nvfp4::row_bytes(128)];
        Nvfp4::pack_row(&codes, &[0, 1, 2, 3, 4, 5, 6, 7], &mut packed).unwrap();
        assert_eq!(packed[4 * 5..][..4], 0x9000_5000_u32.to_le_bytes());
        assert_eq!(packed[64..72], [0, 2, 4, 6, 1, 3, 5, 7]);
    }

    #[test]
    fn rows_of_other_sizes_are_refused() {
        let mut out = [0; 80];
        assert!(Nvfp4::pack_row(&[0; 8], &[0; 2], &mut out).is_err());
        assert!(Nvfp4::pack_row(&[0; 8], &[0; 1], &mut out[..72]).is_err());
        assert!(Nvfp4::unpack_row(&out, 24).is_err());
    }
}
