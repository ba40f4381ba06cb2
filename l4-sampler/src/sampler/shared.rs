//! Memory that threads share, each writing its own part.

use std::marker::PhantomData;

use l1_tensor::{Rows, RowsMut};

/// Equal pieces of a borrowed slice, which several threads write.
pub(crate) struct Pieces<'a, T> {
    first: *mut T,
    n: usize,
    len: usize,
    stride: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: `Pieces` is an exclusive borrow, cut into pieces. `get` requires that threads use different pieces, and
// `T: Send` lets any of them write one.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    /// One piece for each element.
    pub(crate) fn of(slice: &'a mut [T]) -> Self {
        let (first, n) = (slice.as_mut_ptr(), slice.len());
        Self { first, n, len: 1, stride: 1, borrowed: PhantomData }
    }

    /// The first `n` pieces of `len` elements.
    pub(crate) fn chunks(slice: &'a mut [T], n: usize, len: usize) -> Self {
        assert!(n * len <= slice.len(), "{n} pieces of {len} elements in {}", slice.len());
        Self { first: slice.as_mut_ptr(), n, len, stride: len, borrowed: PhantomData }
    }

    /// One piece for each row. The rows of a view do not overlap.
    pub(crate) fn rows(mut rows: RowsMut<'a, T>) -> Self {
        let (n, len, stride) = (rows.n, rows.len, rows.stride);
        Self { first: rows.as_mut_ptr(), n, len, stride, borrowed: PhantomData }
    }

    /// Piece `i`.
    ///
    /// # Safety
    /// No other reference to piece `i` may exist at the same time.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get(&self, i: usize) -> &mut [T] {
        assert!(i < self.n, "there is no piece {i} of {}", self.n);
        // SAFETY: the borrowed slice holds `n` pieces, which do not overlap, and the caller holds this one only once.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(i * self.stride), self.len) }
    }
}

/// Logits of a step, shared by threads.
pub(crate) enum Lines<'a> {
    /// Read by all threads.
    Shared(Rows<'a, f32>),
    /// Each row written by one thread.
    Owned(Pieces<'a, f32>),
}

impl Lines<'_> {
    /// Number of rows, and of logits in a row.
    pub(crate) fn dims(&self) -> (usize, usize) {
        match self {
            Lines::Shared(rows) => (rows.n, rows.len),
            Lines::Owned(rows) => (rows.n, rows.len),
        }
    }

    /// Row `i`.
    ///
    /// # Safety
    /// No other reference to row `i` may exist at the same time.
    pub(crate) unsafe fn get(&self, i: usize) -> Line<'_> {
        match self {
            Lines::Shared(rows) => Line::Shared(rows.row(i)),
            // SAFETY: as the caller guarantees.
            Lines::Owned(rows) => Line::Owned(unsafe { rows.get(i) }),
        }
    }
}

/// One row of logits.
pub(crate) enum Line<'a> {
    /// Read only.
    Shared(&'a [f32]),
    /// May be overwritten.
    Owned(&'a mut [f32]),
}

impl<'a> Line<'a> {
    /// The logits.
    pub(crate) fn read(&self) -> &[f32] {
        match self {
            Line::Shared(line) => line,
            Line::Owned(line) => line,
        }
    }

    /// A writable row with the same contents: itself, or a copy in `scratch`.
    pub(crate) fn writable<'s>(self, scratch: &'s mut Vec<f32>) -> &'s mut [f32]
    where
        'a: 's,
    {
        match self {
            Line::Shared(line) => {
                scratch.clear();
                scratch.extend_from_slice(line);
                scratch
            }
            Line::Owned(line) => line,
        }
    }
}
