//! Weights with factors: one f32 for some rows, which a matmul applies to the sum.
//!
//! NVFP4 stores `code * scale`, which bf16 holds exactly, and one number for the whole matrix. Multiplied into the
//! weights it would round each of them. Multiplied into the sum it rounds once for an output:
//!
//! ```text
//! y[t, n] = (sum over k of x[t, k] * w[n, k]) * factor[n]  (+ bias[n])
//! ```
//!
//! Matrices that were fused (q, k and v; gates and ups) keep the factor of each.

use std::sync::Arc;

use kernels::{Buffer, Gpu, Weights};

use super::{RowOrder, Weight};
use crate::{Error, Result};

/// A weight whose values are those of another one times a factor. Made by [`Weight::scaled`].
#[derive(Debug)]
pub struct ScaledWeight {
    of: Box<Weight>,
    factors: Factors,
    on_device: Option<OnDevice>,
}

/// Factors for the kernels of a device.
#[derive(Debug)]
struct OnDevice {
    /// One f32 for each row.
    each: Buffer,
    /// The same on the host: numbers of rows, and their factor.
    runs: Vec<(usize, f32)>,
}

/// Factors of the rows.
#[derive(Debug)]
pub(crate) enum Factors {
    /// The same for all.
    All(f32),
    /// One for each logical row.
    Rows(Box<[f32]>),
}

impl Weight {
    /// Gives rows a factor: for each part the number of its rows and their factor, in the order of the logical rows.
    ///
    /// [`linear`](crate::ops::linear()) multiplies the sum, before the bias; [`Weight::row`] multiplies the values.
    /// So nothing is rounded to bf16 that was not before.
    ///
    /// # Errors
    /// [`Error::BadParameter`] when the parts have another number of rows than the weight, a factor is not finite, or
    /// the weight has factors already; [`Error::Cuda`] when a device has no memory for them.
    pub fn scaled(self, parts: &[(usize, f32)]) -> Result<Self> {
        let bad = |why: String| Err(Error::BadParameter { op: "scaled", why });
        if matches!(self, Weight::Scaled(_)) {
            return bad("the weight has factors already".into());
        }
        let rows = parts.iter().try_fold(0usize, |sum, (rows, _)| sum.checked_add(*rows));
        if rows != Some(self.n()) {
            return bad(format!("factors for other rows than the {} of the weight", self.n()));
        }
        if let Some((_, factor)) = parts.iter().find(|(_, factor)| !factor.is_finite()) {
            return bad(format!("a factor must be a finite number, and one is {factor}"));
        }
        let alike = parts.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let factors = match parts {
            [(_, factor), ..] if alike => Factors::All(*factor),
            _ => {
                let each = parts.iter().flat_map(|(rows, f)| std::iter::repeat_n(*f, *rows));
                Factors::Rows(each.collect())
            }
        };
        let on_device = match self.memory() {
            None => None,
            Some(memory) => {
                let gpu = memory.on_cuda("scaled")?.gpu();
                let each: Vec<f32> =
                    parts.iter().flat_map(|(rows, f)| std::iter::repeat_n(*f, *rows)).collect();
                Some(OnDevice { each: Buffer::from_slice(gpu, &each)?, runs: runs(parts) })
            }
        };
        Ok(Weight::Scaled(ScaledWeight { of: Box::new(self), factors, on_device }))
    }
}

/// Parts of which no two neighbours have the same factor.
fn runs(parts: &[(usize, f32)]) -> Vec<(usize, f32)> {
    let mut runs: Vec<(usize, f32)> = Vec::new();
    for &(rows, factor) in parts {
        match runs.last_mut().filter(|last| last.1 == factor) {
            Some(last) => last.0 += rows,
            None => runs.push((rows, factor)),
        }
    }
    runs
}

impl ScaledWeight {
    /// Number of outputs: logical rows.
    pub fn n(&self) -> usize {
        self.of.n()
    }

    /// Number of inputs: length of a logical row.
    pub fn k(&self) -> usize {
        self.of.k()
    }

    /// Assignment of the logical rows to panels.
    pub fn order(&self) -> RowOrder {
        self.of.order()
    }

    /// Number of bytes of memory held.
    pub fn bytes(&self) -> usize {
        let factors = match &self.factors {
            Factors::All(_) => 0,
            Factors::Rows(rows) => size_of_val(&**rows),
        };
        let on_device = self.on_device.as_ref().map_or(0, |on_device| on_device.each.len());
        self.of.bytes() + factors + on_device
    }

    /// The weight without its factors.
    pub fn unscaled(&self) -> &Weight {
        &self.of
    }

    pub(crate) fn factors(&self) -> &Factors {
        &self.factors
    }

    /// View for the launchers.
    pub(super) fn on_cuda(&self, op: &'static str, gpu: &Arc<Gpu>) -> Result<Weights<'_>> {
        let of = self.of.on_cuda(op, gpu)?;
        let Some(OnDevice { each, runs }) = &self.on_device else { return Ok(of) };
        Ok(of.scaled(kernels::Factors::new(each.view().cast(), runs)?)?)
    }

    /// Reads logical row `i`, times its factor, into `out` (`[k]`), as f32.
    ///
    /// # Errors
    /// As [`Weight::row`].
    pub fn row(&self, i: usize, out: &mut [f32]) -> Result<()> {
        self.of.row(i, out)?;
        let factor = match &self.factors {
            Factors::All(factor) => *factor,
            Factors::Rows(rows) => rows[i],
        };
        out.iter_mut().for_each(|x| *x *= factor);
        Ok(())
    }
}
