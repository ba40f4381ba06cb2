//! What a matmul multiplies by: a matrix in one of the storages that kernels read, and factors of its rows.

use crate::error::{Error, Result};
use crate::{Mat, Nvfp4, View};

/// A weight `[N, K]` in device memory. A [`Mat`] of bf16 is one without factors.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    pub(crate) matrix: Matrix<'a>,
    pub(crate) factors: Option<Factors<'a>>,
}

/// A matrix of weights.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Matrix<'a> {
    /// bf16.
    Dense(Mat<'a>),
    /// Codes and scales.
    Nvfp4(Nvfp4<'a>),
}

/// A factor for each row, which multiplies finished sums.
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a> {
    each: View<'a, f32>,
    /// Rows of one factor, and the factor.
    runs: &'a [(usize, f32)],
    /// Index of the first row in `runs`.
    first: usize,
}

impl<'a> Factors<'a> {
    /// Factors of rows: `each` has one for every row, on the device; `runs` the same ones on the host, as numbers of
    /// rows and their factor.
    ///
    /// # Errors
    /// [`Error::Shape`] where the two are of other numbers of rows.
    pub fn new(each: View<'a, f32>, runs: &'a [(usize, f32)]) -> Result<Self> {
        let rows = runs.iter().try_fold(0usize, |sum, (rows, _)| sum.checked_add(*rows));
        if rows != Some(each.len()) {
            return Err(Error::shape("factors", format!("{} for runs of {rows:?}", each.len())));
        }
        Ok(Self { each, runs, first: 0 })
    }

    /// Address of the first one.
    pub(crate) fn ptr(&self) -> u64 {
        self.each.ptr()
    }

    fn part(self, first: usize, rows: usize) -> Self {
        Self { each: self.each.part(first, rows), first: self.first + first, ..self }
    }

    /// Rows of one factor: the first of them, their number, the factor.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, usize, f32)> + use<'a> {
        let (from, to) = (self.first, self.first + self.each.len());
        let begins = self.runs.iter().scan(0, |begin, (rows, factor)| {
            let first = *begin;
            *begin += rows;
            Some((first, *begin, *factor))
        });
        begins
            .map(move |(first, end, factor)| (first.max(from), end.min(to), factor))
            .filter(|(first, end, _)| first < end)
            .map(move |(first, end, factor)| (first - from, end - first, factor))
    }
}

impl<'a> From<Mat<'a>> for Weights<'a> {
    fn from(of: Mat<'a>) -> Self {
        Self { matrix: Matrix::Dense(of), factors: None }
    }
}

impl<'a> From<Nvfp4<'a>> for Weights<'a> {
    fn from(of: Nvfp4<'a>) -> Self {
        Self { matrix: Matrix::Nvfp4(of), factors: None }
    }
}

impl<'a> Weights<'a> {
    /// The same with factors.
    ///
    /// # Errors
    /// [`Error::Shape`] where there is not one for each row.
    pub fn scaled(self, factors: Factors<'a>) -> Result<Self> {
        if factors.each.len() != self.rows() {
            let why = format!("{} for {} rows", factors.each.len(), self.rows());
            return Err(Error::shape("factors", why));
        }
        Ok(Self { factors: Some(factors), ..self })
    }

    /// Number of rows: outputs.
    pub fn rows(&self) -> usize {
        match self.matrix {
            Matrix::Dense(m) => m.rows,
            Matrix::Nvfp4(m) => m.rows,
        }
    }

    /// Elements of a row: inputs.
    pub fn width(&self) -> usize {
        match self.matrix {
            Matrix::Dense(m) => m.width,
            Matrix::Nvfp4(m) => m.width,
        }
    }

    /// Address of the factors; 0 where there are none.
    pub(crate) fn factors_ptr(&self) -> u64 {
        self.factors.map_or(0, |factors| factors.ptr())
    }
}

/// Factors of some rows.
pub(crate) fn part(of: Option<Factors<'_>>, first: usize, rows: usize) -> Option<Factors<'_>> {
    of.map(|factors| factors.part(first, rows))
}
