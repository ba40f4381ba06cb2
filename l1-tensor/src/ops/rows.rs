//! Rows: the units that ops iterate over. A view's last dimension is a row; the leading dimensions,
//! with any strides, give the start of each row.

use std::marker::PhantomData;
use std::ops::Range;

use crate::{Element, Error, Layout, Result, Runtime, TensorMut, TensorRef};

/// Number of elements below which an op runs on one thread: it ends before a second thread has
/// woken up.
pub(crate) const PARALLEL_ELEMENTS: usize = 16 * 1024;

/// Minimum number of elements of a piece for a thread.
const CHUNK_ELEMENTS: usize = 8 * 1024;

/// Start of each row of a view.
#[derive(Clone, Copy)]
struct RowMap {
    /// Leading dimensions; neighbours that share a single stride are folded into one.
    levels: usize,
    dims: [usize; crate::MAX_RANK],
    strides: [usize; crate::MAX_RANK],
    n: usize,
    len: usize,
}

impl RowMap {
    fn new(op: &'static str, layout: &Layout) -> Result<Self> {
        let (dims, strides) = (layout.dims(), layout.strides());
        let Some(last) = dims.len().checked_sub(1) else {
            let why = "needs at least one dimension";
            return Err(Error::UnsupportedLayout { op, why, layout: *layout });
        };
        if dims[last] > 1 && strides[last] != 1 {
            let why = "needs a dense last dimension: make a contiguous copy first";
            return Err(Error::UnsupportedLayout { op, why, layout: *layout });
        }
        let n = dims[..last].iter().product();
        let mut map = Self { levels: 0, dims: [1; 4], strides: [0; 4], n, len: dims[last] };
        if layout.elem_count() == 0 {
            return Ok(map); // Empty rows all begin at the start of an empty slice.
        }
        for (&dim, &stride) in dims[..last].iter().zip(&strides[..last]) {
            if dim == 1 {
                continue;
            }
            let l = map.levels;
            if l > 0 && map.strides[l - 1] == stride * dim {
                map.dims[l - 1] *= dim;
                map.strides[l - 1] = stride;
            } else {
                (map.dims[l], map.strides[l]) = (dim, stride);
                map.levels += 1;
            }
        }
        Ok(map)
    }

    #[inline(always)]
    fn start(&self, mut row: usize) -> usize {
        // exercise l1.rows
        let mut at = 0;
        for d in (1..self.levels).rev() {
            at += row % self.dims[d] * self.strides[d];
            row /= self.dims[d];
        }
        at + row * self.strides[0]
        // end of exercise
    }
}

/// Whether a layout has rows: dense, in at least one dimension.
pub(crate) fn check_rows(op: &'static str, layout: &Layout) -> Result<()> {
    RowMap::new(op, layout).map(|_| ())
}

/// Rows of a view, for reading.
#[derive(Clone, Copy)]
pub(crate) struct Src<'a, T> {
    data: &'a [T],
    map: RowMap,
}

impl<'a, T: Element> Src<'a, T> {
    pub(crate) fn new(op: &'static str, view: TensorRef<'a>) -> Result<Self> {
        let data = view.strided::<T>(op)?;
        Ok(Self { data, map: RowMap::new(op, view.layout())? })
    }

    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> &'a [T] {
        &self.data[self.map.start(i)..][..self.map.len]
    }

    /// Number of rows.
    pub(crate) fn n(&self) -> usize {
        self.map.n
    }

    /// Number of elements in a row.
    pub(crate) fn len(&self) -> usize {
        self.map.len
    }
}

/// Rows of a view, for writing from several threads.
pub(crate) struct Dst<'a, T> {
    data: *mut T,
    elements: usize,
    map: RowMap,
    view: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Dst` is an exclusive borrow cut into rows. `row` asks its caller to keep threads on
// different rows, and `T: Send` lets a row be written by any of them.
unsafe impl<T: Send> Sync for Dst<'_, T> {}

impl<'a, T: Element> Dst<'a, T> {
    pub(crate) fn new(op: &'static str, view: TensorMut<'a>) -> Result<Self> {
        let map = RowMap::new(op, view.layout())?;
        let data = view.strided_mut::<T>(op)?;
        Ok(Self { elements: data.len(), data: data.as_mut_ptr(), map, view: PhantomData })
    }

    /// A slice as rows of one element.
    pub(crate) fn from_slice(data: &'a mut [T]) -> Self {
        let n = data.len();
        let map = RowMap { levels: 1, dims: [n, 1, 1, 1], strides: [1, 0, 0, 0], n, len: 1 };
        Self { elements: n, data: data.as_mut_ptr(), map, view: PhantomData }
    }

    /// Row `i`.
    ///
    /// # Safety
    /// No other reference to row `i` may exist at the same time.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row(&self, i: usize) -> &mut [T] {
        let start = self.map.start(i);
        assert!(start + self.map.len <= self.elements, "row {i} ends beyond its view");
        // SAFETY: the range was just checked against the borrowed slice. A layout gives different
        // indices different elements, so rows do not overlap, and the caller holds this one only
        // once.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), self.map.len) }
    }

    /// Number of rows.
    pub(crate) fn n(&self) -> usize {
        self.map.n
    }

    /// Number of elements in a row.
    pub(crate) fn len(&self) -> usize {
        self.map.len
    }
}

/// Checks that both have the same dimensions.
pub(crate) fn same_dims(op: &'static str, lhs: &Layout, rhs: &Layout) -> Result<()> {
    if lhs.dims() == rhs.dims() {
        return Ok(());
    }
    Err(Error::ShapeMismatch { op, why: "must have the same shape", lhs: *lhs, rhs: *rhs })
}

/// Checks a vector with one element for each element of a row of `x`.
pub(crate) fn row_vector<'a>(
    op: &'static str,
    why: &'static str,
    x: &Layout,
    v: TensorRef<'a>,
) -> Result<&'a [f32]> {
    check_row_vector(op, why, x, &v)?;
    v.as_slice::<f32>(op)
}

/// Shape of a [`row_vector`].
pub(crate) fn check_row_vector(
    op: &'static str,
    why: &'static str,
    x: &Layout,
    v: &TensorRef<'_>,
) -> Result<()> {
    if x.rank() == 0 || v.layout().rank() != 1 || v.dims().last() != x.dims().last() {
        return Err(Error::ShapeMismatch { op, why, lhs: *x, rhs: *v.layout() });
    }
    Ok(())
}

/// Error for an output of the wrong type.
pub(crate) fn not_f32_or_bf16<T>(op: &'static str, out: &TensorMut<'_>) -> Result<T> {
    Err(Error::UnexpectedDType {
        op,
        expected: "F32 or BF16",
        got: out.dtype(),
        layout: *out.layout(),
    })
}

/// Calls `body` with ranges that cover `0..n` rows of `len` elements: one range when the work is
/// small, else enough to keep all threads busy. Rows are never cut, so no result depends on the
/// ranges.
pub(crate) fn for_rows(rt: &Runtime, n: usize, len: usize, body: impl Fn(Range<usize>) + Sync) {
    // exercise l1.rows
    let (threads, elements) = (rt.pool().threads(), n.saturating_mul(len));
    if threads == 1 || n < 2 || elements < PARALLEL_ELEMENTS {
        return body(0..n);
    }
    let chunks = (elements / CHUNK_ELEMENTS).clamp(1, threads * 4).min(n);
    rt.pool().run(chunks, &|chunk, _| body(chunk * n / chunks..(chunk + 1) * n / chunks));
    // end of exercise
}

#[cfg(test)]
mod tests;
