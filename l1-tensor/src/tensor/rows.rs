//! A view as rows of dense elements.

/// Rows of a view: `n` rows of `len` dense elements, `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    pub(super) data: &'a [T],
    /// Number of rows.
    pub n: usize,
    /// Elements in a row.
    pub len: usize,
    /// Elements from one row's start to the next one's.
    pub stride: usize,
}

impl<'a, T> Rows<'a, T> {
    /// Row `i`. Panics beyond the last row: callers iterate over `0..n`.
    pub fn row(&self, i: usize) -> &'a [T] {
        &self.data[i * self.stride..][..self.len]
    }
}

/// Rows of a view, to write. See [`Rows`].
pub struct RowsMut<'a, T> {
    pub(super) data: &'a mut [T],
    /// Number of rows.
    pub n: usize,
    /// Elements in a row.
    pub len: usize,
    /// Elements from one row's start to the next one's.
    pub stride: usize,
}

impl<T> RowsMut<'_, T> {
    /// Row `i`. Panics beyond the last row: callers iterate over `0..n`.
    pub fn row(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.stride..][..self.len]
    }

    /// Start of the first row, for kernels that split rows among threads.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.data.as_mut_ptr()
    }
}
