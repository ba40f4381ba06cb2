//! Shared parts of the launchers of row-wise kernels: shape checks, and how rows are divided among threads.
//! It mirrors `cu/quads.cuh`.

use crate::error::{Error, Result};
use crate::{Float, Heads, HeadsMut, Mat, MatMut, View};

/// Number of quads of each thread in a tile: `EACH` of `quads.cuh`.
const EACH: usize = 4;

/// Default number of threads of a block: eight blocks fill a multiprocessor.
pub(super) const THREADS: usize = 256;

/// Maximum width: kernels count a row's elements in `int`, four by four and some beyond the end.
const WIDEST: usize = 1 << 30;

/// Rows somewhere in device memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub ptr: u64,
    pub dtype: Float,
    pub rows: usize,
    pub width: usize,
    pub stride: usize,
}

macro_rules! rows_of_matrix {
    ($($name:ident),*) => {$(
        impl From<&$name<'_>> for Rows {
            fn from(m: &$name<'_>) -> Self {
                let &$name { ptr, dtype, rows, width, stride, .. } = m;
                Self { ptr, dtype, rows, width, stride }
            }
        }
    )*};
}
rows_of_matrix!(Mat, MatMut);

macro_rules! rows_of_heads {
    ($($name:ident),*) => {$(
        /// A token's heads as one row.
        impl From<&$name<'_>> for Rows {
            fn from(h: &$name<'_>) -> Self {
                let &$name { ptr, dtype, tokens, heads, dim, stride, .. } = h;
                Self { ptr, dtype, rows: tokens, width: heads * dim, stride }
            }
        }
    )*};
}
rows_of_heads!(Heads, HeadsMut);

impl Rows {
    /// Whether every row can be read in quads.
    fn whole(&self) -> bool {
        let quad = 4 * self.dtype.size() as u64;
        let apart = self.rows <= 1 || self.stride.is_multiple_of(4);
        self.width.is_multiple_of(4) && apart && self.ptr.is_multiple_of(quad)
    }

    fn dense(&self) -> bool {
        self.rows <= 1 || self.stride == self.width
    }

    fn flat(self) -> Self {
        let width = self.rows * self.width;
        Self { rows: 1, width, stride: width, ..self }
    }
}

/// The `whole` of a kernel: 1 if the rows of all of these can be read in quads.
pub(super) fn whole<const N: usize>(all: [Rows; N]) -> usize {
    usize::from(all.iter().all(Rows::whole))
}

/// Matrices whose rows lie behind each other in all of them as one long row.
pub(super) fn flattened<const N: usize>(all: [Rows; N]) -> [Rows; N] {
    if all.iter().all(Rows::dense) { all.map(Rows::flat) } else { all }
}

/// How a row is cut: threads of a block, and blocks for each row. A narrow row gets small blocks rather than
/// idle threads.
pub(super) fn tiles(width: usize) -> (usize, usize) {
    let quads = width.div_ceil(4);
    let threads = quads.div_ceil(EACH).next_multiple_of(32).clamp(32, THREADS);
    (threads, quads.div_ceil(EACH * threads))
}

/// A vector as the one row that every row of a matrix is combined with.
pub(super) fn vector(v: View<'_, f32>) -> Rows {
    Rows { ptr: v.ptr(), dtype: Float::F32, rows: 1, width: v.len(), stride: v.len() }
}

/// Checks that `[rows, width]` of both are the same.
pub(super) fn same_shape(op: &'static str, a: (&str, Rows), b: (&str, Rows)) -> Result<()> {
    let ((a_name, a), (b_name, b)) = (a, b);
    if (a.rows, a.width) == (b.rows, b.width) {
        return fits(op, a);
    }
    let why = format!(
        "{a_name} is [{}, {}], {b_name} [{}, {}]; they must have one shape",
        a.rows, a.width, b.rows, b.width
    );
    Err(Error::shape(op, why))
}

/// Checks that the kernels can count the sizes.
pub(super) fn fits(op: &'static str, rows: Rows) -> Result<()> {
    if rows.width <= WIDEST && rows.rows <= i32::MAX as usize {
        return Ok(());
    }
    let why = format!("[{}, {}] is more than the kernel can count", rows.rows, rows.width);
    Err(Error::shape(op, why))
}

/// Checks that a vector has as many elements as a row.
pub(super) fn row_vector(
    op: &'static str,
    name: &str,
    v: View<'_, f32>,
    width: usize,
) -> Result<()> {
    if v.len() == width {
        return Ok(());
    }
    Err(Error::shape(op, format!("{name} has {} elements for rows of {width}", v.len())))
}

/// Checks that elements have this type.
pub(super) fn typed(op: &'static str, name: &str, is: Float, want: Float) -> Result<()> {
    if is == want {
        return Ok(());
    }
    Err(Error::shape(op, format!("{name} is {is:?}, but must be {want:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Rows = Rows { ptr: 0x1000, dtype: Float::F32, rows: 3, width: 8, stride: 12 };

    #[test]
    fn rows_are_whole_only_where_every_quad_is_aligned() {
        assert!(PLAIN.whole());
        assert!(!Rows { width: 7, ..PLAIN }.whole());
        assert!(!Rows { stride: 9, ..PLAIN }.whole());
        assert!(Rows { stride: 9, rows: 1, ..PLAIN }.whole());
        assert!(!Rows { ptr: 0x1008, ..PLAIN }.whole());
        assert!(Rows { ptr: 0x1008, dtype: Float::Bf16, ..PLAIN }.whole());
        assert!(!Rows { ptr: 0x1004, dtype: Float::Bf16, ..PLAIN }.whole());
        assert_eq!(whole([PLAIN, Rows { width: 7, ..PLAIN }]), 0);
    }

    #[test]
    fn matrices_are_one_row_only_if_none_has_gaps() {
        let dense = Rows { stride: 8, ..PLAIN };
        assert_eq!(flattened([dense, dense]).map(|r| (r.rows, r.width)), [(1, 24); 2]);
        assert_eq!(flattened([dense, PLAIN]).map(|r| (r.rows, r.width)), [(3, 8); 2]);
        assert_eq!(flattened([Rows { rows: 0, ..PLAIN }])[0].width, 0);
    }

    #[test]
    fn tiles_cover_a_row_and_none_is_empty() {
        for width in (0..3000).chain([4096, 4097, 6144, 151_936, 1 << 28]) {
            let (threads, tiles) = tiles(width);
            let size = 4 * EACH * threads;
            assert!(threads % 32 == 0 && (32..=THREADS).contains(&threads));
            assert!(tiles * size >= width, "{width}");
            assert!(tiles == 0 || (tiles - 1) * size < width, "{width}");
        }
    }
}
