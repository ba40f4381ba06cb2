//! What a matmul multiplies by.
//!
//! A weight is not a tensor. A tensor's elements lie where its layout says; a weight's lie where
//! the kernel that streams them wants them, and a quantised one will not even have elements, only
//! codes and scales. So [`crate::ops::linear()`] takes a [`Weight`], and each storage scheme is one
//! variant with its own file here.

mod packed;

pub(crate) use packed::{Line, PANEL};
pub use packed::{PackedBf16, RowOrder};

use crate::{Layout, Result};

/// A weight `[n, k]`: `n` outputs by `k` inputs, one variant per storage scheme.
#[derive(Debug)]
pub enum Weight {
    /// Dense bf16.
    Bf16(PackedBf16),
}

impl Weight {
    /// Outputs: how many logical rows there are.
    pub fn n(&self) -> usize {
        match self {
            Weight::Bf16(w) => w.n(),
        }
    }

    /// Inputs: how long a logical row is.
    pub fn k(&self) -> usize {
        match self {
            Weight::Bf16(w) => w.k(),
        }
    }

    /// How the logical rows are dealt to panels.
    pub fn order(&self) -> RowOrder {
        match self {
            Weight::Bf16(w) => w.order(),
        }
    }

    /// Bytes of memory held: what one pass over the weight reads.
    pub fn bytes(&self) -> usize {
        match self {
            Weight::Bf16(w) => w.bytes(),
        }
    }

    /// Read logical row `i` back into `out` (`[k]`), as f32.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for a row that is not there, [`crate::Error::ShapeMismatch`]
    /// when `out` is not `k` long.
    pub fn row(&self, i: usize, out: &mut [f32]) -> Result<()> {
        match self {
            Weight::Bf16(w) => w.row(i, out),
        }
    }

    /// The shape as a layout, for error messages.
    pub(crate) fn layout(&self) -> Result<Layout> {
        Layout::contiguous(&[self.n(), self.k()])
    }
}

/// A low-rank side term, LoRA (Hu et al. 2021, arXiv 2106.09685): `y += scale * (x A^T) B^T`.
/// With `r` far below `n` and `k` it costs `r (n + k)` multiplications a row instead of `n k`.
#[derive(Debug)]
pub struct LowRank {
    /// `[r, k]`: down to the rank.
    pub a: Weight,
    /// `[n, r]`: up to the outputs.
    pub b: Weight,
    /// Usually `alpha / r`.
    pub scale: f32,
}
