//! Memory that the threads of a run share, each its own part of it.

use std::marker::PhantomData;

use l1_tensor::{Rows, RowsMut};

/// Equal pieces of a borrowed slice, to be written from several threads.
pub(crate) struct Pieces<'a, T> {
    first: *mut T,
    n: usize,
    len: usize,
    stride: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: `Pieces` is an exclusive borrow cut up. `get` asks its caller to keep threads on
// different pieces, and `T: Send` lets a piece be written by any of them.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    /// Every element by itself.
    pub(crate) fn of(slice: &'a mut [T]) -> Self {
        let (first, n) = (slice.as_mut_ptr(), slice.len());
        Self { first, n, len: 1, stride: 1, borrowed: PhantomData }
    }

    /// The first `n` pieces of `len` elements.
    pub(crate) fn chunks(slice: &'a mut [T], n: usize, len: usize) -> Self {
        assert!(n * len <= slice.len(), "{n} pieces of {len} elements in {}", slice.len());
        Self { first: slice.as_mut_ptr(), n, len, stride: len, borrowed: PhantomData }
    }

    /// Every row by itself. A view's rows do not overlap.
    pub(crate) fn rows(mut rows: RowsMut<'a, T>) -> Self {
        let (n, len, stride) = (rows.n, rows.len, rows.stride);
        Self { first: rows.as_mut_ptr(), n, len, stride, borrowed: PhantomData }
    }

    /// Piece `i`.
    ///
    /// # Safety
    /// Nobody else may hold piece `i` at the same time.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get(&self, i: usize) -> &mut [T] {
        assert!(i < self.n, "there is no piece {i} of {}", self.n);
        // SAFETY: the borrowed slice holds `n` pieces, which do not overlap, and the caller holds
        // this one only once.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(i * self.stride), self.len) }
    }
}

/// The logits of a step, as threads see them.
pub(crate) enum Lines<'a> {
    /// To be read by all.
    Shared(Rows<'a, f32>),
    /// Each to be changed by one.
    Owned(Pieces<'a, f32>),
}

impl Lines<'_> {
    /// How many, and of how many logits.
    pub(crate) fn dims(&self) -> (usize, usize) {
        match self {
            Lines::Shared(rows) => (rows.n, rows.len),
            Lines::Owned(rows) => (rows.n, rows.len),
        }
    }

    /// Line `i`.
    ///
    /// # Safety
    /// Nobody else may hold line `i` at the same time.
    pub(crate) unsafe fn get(&self, i: usize) -> Line<'_> {
        match self {
            Lines::Shared(rows) => Line::Shared(rows.row(i)),
            // SAFETY: as the caller promises.
            Lines::Owned(rows) => Line::Owned(unsafe { rows.get(i) }),
        }
    }
}

/// One row of logits.
pub(crate) enum Line<'a> {
    /// To be read.
    Shared(&'a [f32]),
    /// To be changed as one likes.
    Owned(&'a mut [f32]),
}

impl<'a> Line<'a> {
    /// What it says.
    pub(crate) fn read(&self) -> &[f32] {
        match self {
            Line::Shared(line) => line,
            Line::Owned(line) => line,
        }
    }

    /// A line with the same contents that may be written: itself, or else a copy in `scratch`.
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
