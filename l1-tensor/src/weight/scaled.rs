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

use super::{RowOrder, Weight};
use crate::{Error, Result};

/// A weight whose values are those of another one times a factor. Made by [`Weight::scaled`].
#[derive(Debug)]
pub struct ScaledWeight {
    of: Box<Weight>,
    factors: Factors,
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
    /// the weight has factors already; [`Error::Device`] for a weight on a device, whose kernels know no factors.
    pub fn scaled(self, parts: &[(usize, f32)]) -> Result<Self> {
        let bad = |why: String| Err(Error::BadParameter { op: "scaled", why });
        match &self {
            Weight::Device(w) => {
                let why =
                    "weights with factors, such as NVFP4, run on the CPU only: use --device cpu";
                return Err(Error::Device { device: w.device().to_string(), why: why.into() });
            }
            Weight::Scaled(_) => return bad("the weight has factors already".into()),
            Weight::Bf16(_) | Weight::Blocks(_) => {}
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
        Ok(Weight::Scaled(ScaledWeight { of: Box::new(self), factors }))
    }
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
        self.of.bytes() + factors
    }

    /// The weight without its factors.
    pub fn unscaled(&self) -> &Weight {
        &self.of
    }

    pub(crate) fn factors(&self) -> &Factors {
        &self.factors
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
