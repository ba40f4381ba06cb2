//! Layout of the elements of a tensor: a shape, a stride per dimension and an offset, apart from
//! the storage that holds them. Transposing, slicing and reshaping change a layout, never the data.

use std::fmt;

use crate::{Error, Result};

/// Maximum number of dimensions of a tensor. Enough for `[T, H, D]` and one to spare; a fixed bound
/// keeps a layout `Copy`, so views in the hot loop allocate nothing.
pub const MAX_RANK: usize = 4;

/// Shape, strides and offset, all counted in elements.
///
/// Element `(i, j, ..)` lies at `offset + i * strides[0] + j * strides[1] + ..` of the storage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
    offset: usize,
}

impl Layout {
    /// The dense row-major layout of a shape.
    ///
    /// # Errors
    /// [`Error::BadShape`] for more than [`MAX_RANK`] dimensions or a size beyond `usize`.
    pub fn contiguous(shape: &[usize]) -> Result<Self> {
        let bad = |why| Error::BadShape { shape: shape.to_vec(), why };
        if shape.len() > MAX_RANK {
            return Err(bad("more dimensions than a layout holds (4)"));
        }
        let mut dims = [1; MAX_RANK];
        let mut strides = [1; MAX_RANK];
        dims[..shape.len()].copy_from_slice(shape);
        // exercise l1.layout
        let mut stride = 1usize;
        for d in (0..shape.len()).rev() {
            strides[d] = stride;
            stride = stride
                .checked_mul(dims[d].max(1))
                .filter(|s| *s <= isize::MAX as usize / 8)
                .ok_or_else(|| bad("its size overflows"))?;
        }
        Ok(Self { rank: shape.len(), dims, strides, offset: 0 })
        // end of exercise
    }

    /// `[rows, len]`, the rows `stride` elements apart.
    pub(crate) fn strided_rows(offset: usize, rows: usize, len: usize, stride: usize) -> Self {
        Self { rank: 2, dims: [rows, len, 1, 1], strides: [stride, 1, 1, 1], offset }
    }

    /// The size of every dimension.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// Elements between neighbours, per dimension.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// The first element's place in the storage.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of elements: the product of the dimensions (1 for a scalar, rank 0).
    pub fn elem_count(&self) -> usize {
        self.dims().iter().product()
    }

    /// Size of dimension `d`, counted from the front.
    pub fn dim(&self, d: usize) -> Result<usize> {
        self.dims().get(d).copied().ok_or(Error::OutOfRange {
            op: "dim",
            what: "dimension",
            index: d as i64,
            limit: self.rank,
        })
    }

    /// Whether the elements lie row-major without gaps. The stride of a dimension of size 1 does not matter.
    pub fn is_contiguous(&self) -> bool {
        // exercise l1.layout
        let mut expected = 1;
        for d in (0..self.rank).rev() {
            if self.dims[d] != 1 && self.strides[d] != expected {
                return self.elem_count() == 0;
            }
            expected *= self.dims[d];
        }
        true
        // end of exercise
    }

    /// One past the last storage index this layout can touch (0 when it has no elements).
    pub fn end(&self) -> usize {
        if self.elem_count() == 0 {
            return 0;
        }
        let last: usize = self.dims().iter().zip(self.strides()).map(|(n, s)| (n - 1) * s).sum();
        self.offset + last + 1
    }

    /// Keep `len` entries of dimension `d`, from `start` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when `d` or the range does not exist.
    pub fn narrow(&self, d: usize, start: usize, len: usize) -> Result<Self> {
        let size = self.dim(d)?;
        let end = start.checked_add(len).filter(|end| *end <= size);
        if end.is_none() {
            return Err(Error::OutOfRange {
                op: "narrow",
                what: "end of range",
                index: start.saturating_add(len) as i64,
                limit: size + 1,
            });
        }
        // exercise l1.layout
        let mut out = *self;
        out.dims[d] = len;
        if len > 0 {
            out.offset += start * self.strides[d];
        }
        Ok(out)
        // end of exercise
    }

    /// Swap two dimensions.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when one of them does not exist.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        self.dim(a)?;
        self.dim(b)?;
        // exercise l1.layout
        let mut out = *self;
        out.dims.swap(a, b);
        out.strides.swap(a, b);
        Ok(out)
        // end of exercise
    }

    /// The same elements under another shape. Splitting a dimension always works
    /// (`[T, H * D] -> [T, H, D]`); merging works where no gap lies between the merged ones.
    ///
    /// # Errors
    /// [`Error::BadShape`] when the counts differ or data would have to move.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        let mut out = Self::contiguous(shape)?;
        let bad = |why| Error::BadShape { shape: shape.to_vec(), why };
        if out.elem_count() != self.elem_count() {
            return Err(bad("reshape keeps the number of elements"));
        }
        out.offset = self.offset;
        if self.elem_count() == 0 {
            return Ok(out);
        }
        // exercise l1.layout
        // Walk both shapes from the right. A run of old dimensions without gaps between them is
        // one long axis; new dimensions are cut from it.
        let mut old = self.rank;
        let (mut run, mut run_stride) = (1usize, 1usize);
        for d in (0..out.rank).rev() {
            while run == 1 && old > 0 {
                old -= 1;
                run = self.dims[old];
                run_stride = self.strides[old];
                while run > 1
                    && old > 0
                    && (self.dims[old - 1] == 1 || self.strides[old - 1] == run_stride * run)
                {
                    old -= 1;
                    run *= self.dims[old];
                }
            }
            if run % out.dims[d] != 0 {
                return Err(bad("reshape would have to move data: make a contiguous copy first"));
            }
            out.strides[d] = run_stride;
            run_stride *= out.dims[d];
            run /= out.dims[d];
        }
        Ok(out)
        // end of exercise
    }

    /// This layout as rows: every dimension but the last folded into one.
    /// `(rows, row_len, row_stride)`, or `None` when the last dimension has gaps or the leading
    /// ones do not fold into a single stride.
    pub fn as_rows(&self) -> Option<(usize, usize, usize)> {
        if self.rank == 0 {
            return Some((1, 1, 1));
        }
        // exercise l1.layout
        let last = self.rank - 1;
        let len = self.dims[last];
        if len > 1 && self.strides[last] != 1 {
            return None;
        }
        let (mut rows, mut stride) = (1, len);
        for d in (0..last).rev() {
            if self.dims[d] == 1 {
                continue;
            }
            if rows == 1 {
                stride = self.strides[d];
            } else if self.strides[d] != stride * rows {
                return if self.elem_count() == 0 { Some((0, len, len)) } else { None };
            }
            rows *= self.dims[d];
        }
        Some((rows, len, stride))
        // end of exercise
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())?;
        if !self.is_contiguous() {
            write!(f, " strides {:?}", self.strides())?;
        }
        if self.offset != 0 {
            write!(f, " offset {}", self.offset)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
