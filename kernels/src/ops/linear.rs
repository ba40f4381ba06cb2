//! Matmuls: `x W^T`.
//!
//! Kernels in [`Arithmetic::Fast`]:
//!
//! | activations | tokens | |
//! |---|---|---|
//! | bf16 | up to 16 | `gemv.cu`, `gemv_nvfp4.cu`: as fast as weights can be read |
//! | bf16 | more | cuBLASLt; `gemm.cu` where it is missing |
//! | f32 | up to 8 | `gemv_f32` |
//! | f32 | more | `gemm_f32` |
//!
//! [`Arithmetic::BatchInvariant`] always uses `gemm.cu`, where the sum of an element has one order for any
//! number of tokens.
//!
//! Only `gemv_nvfp4.cu` reads weights in NVFP4. The others read bf16: rows are expanded in scratch memory before.
//! The results are those of the expanded weight, to the bit.

use std::sync::Arc;

use super::product::{Product, is_few, needs_scratch, operands};
use super::{Activation, Arithmetic, add_bias, gated};
use crate::error::{Error, Result};
use crate::scratch::{Purpose, alone};
use crate::weights::Matrix;
use crate::{Float, Gpu, Launch, Mat, MatMut, View, Weights};

/// Use of the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accumulate {
    /// `out = y`.
    Store,
    /// `out += scale * y`; f32.
    Add {
        /// Factor of the product.
        scale: f32,
    },
}

/// `out = x W^T`: `x` `[T, K]` f32 or bf16, `weight` `[N, K]` in bf16 or NVFP4, `out` `[T, N]` f32, or bf16 where
/// nothing is added. Sums are f32; where the weight has factors, the sum of a row is multiplied by its factor. Rows of
/// `x` and of a weight in bf16 may have a stride beyond their width; a bf16 operand is read fastest where its rows
/// begin at multiples of 16 bytes and `K` is a multiple of 8.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn linear<'a>(
    gpu: &Arc<Gpu>,
    x: Mat<'_>,
    weight: impl Into<Weights<'a>>,
    accumulate: Accumulate,
    arithmetic: Arithmetic,
    out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "linear";
    let weight = weight.into();
    check(OP, &x, &weight)?;
    if (out.rows, out.width) != (x.rows, weight.rows()) {
        let (t, n) = (x.rows, weight.rows());
        return Err(Error::shape(OP, format!("[{t}, {n}] into [{}, {}]", out.rows, out.width)));
    }
    let add = match accumulate {
        Accumulate::Store => None,
        Accumulate::Add { scale } => Some(scale),
    };
    if add.is_some() && out.dtype != Float::F32 {
        return Err(Error::shape(OP, "a product can be added to an f32 output only"));
    }
    if out.rows == 0 || out.width == 0 {
        return Ok(());
    }
    let _alone = needs_scratch(&x, &weight, arithmetic).then(alone);
    Product { gpu, x, add, arithmetic }.with(&weight, out)
}

/// Gate and up projection in one: `out = activation(gate) * up`. `weight` (`[2 I, K]`, bf16 or NVFP4) has the
/// rows of the gates first, then those of the ups; `bias` (`[2 I]`), in the same order, is added to both before the
/// activation. `x` `[T, K]` f32 or bf16, `out` `[T, I]` f32 or bf16.
///
/// For few tokens one kernel does both. For more, the product goes to scratch and is folded there, in chunks
/// of tokens for which the scratch is at most 128 MiB (a chunk is 256 to 4096 tokens).
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn linear_gated<'a>(
    gpu: &Arc<Gpu>,
    activation: Activation,
    x: Mat<'_>,
    weight: impl Into<Weights<'a>>,
    bias: Option<View<'_, f32>>,
    arithmetic: Arithmetic,
    mut out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "linear_gated";
    let weight = weight.into();
    check(OP, &x, &weight)?;
    let rows = weight.rows();
    let half = rows / 2;
    if !rows.is_multiple_of(2) || (out.rows, out.width) != (x.rows, half) {
        let (t, n) = (x.rows, rows);
        let why = format!("[{t}, {n}] folded into [{}, {}]", out.rows, out.width);
        return Err(Error::shape(OP, why));
    }
    if let Some(bias) = bias.filter(|bias| bias.len() != rows) {
        let why = format!("a bias of {} for {rows} rows", bias.len());
        return Err(Error::shape(OP, why));
    }
    if out.rows == 0 || out.width == 0 {
        return Ok(());
    }
    if is_few(&x, arithmetic) {
        let (file, name) = match (weight.matrix, x.rows) {
            (Matrix::Dense(_), ..=8) => ("gemv", "gemv_gated_8"),
            (Matrix::Dense(_), _) => ("gemv", "gemv_gated_16"),
            (Matrix::Nvfp4(_), ..=8) => ("gemv_nvfp4", "gemv_nvfp4_gated_8"),
            (Matrix::Nvfp4(_), _) => ("gemv_nvfp4", "gemv_nvfp4_gated_16"),
        };
        let args = operands(&x, &weight.matrix)
            .ptr(bias.map_or(0, |bias| bias.ptr()))
            .int(match activation {
                Activation::Silu => 0,
                Activation::GeluTanh => 1,
                Activation::GeluErf => 2,
            })
            .ptr(out.ptr)
            .long(out.stride)
            .int(usize::from(out.dtype == Float::Bf16))
            .ptr(weight.factors_ptr());
        // SAFETY: the shapes were checked above; the kernel stays within them.
        return unsafe { Launch::new(file, name, half.div_ceil(8), 256).enqueue(gpu, args) };
    }
    let at_once = x.rows.min(folded_at_once(rows));
    let bytes = at_once * rows * Float::F32.size();
    let at = gpu.scratch(|scratch| scratch.region(gpu, Purpose::GateUp, bytes))?;
    // All that is enqueued from here on uses this memory in order.
    let _alone = alone();
    for first in (0..x.rows).step_by(at_once) {
        let tokens = at_once.min(x.rows - first);
        let (mut x, mut out) = (x, out.reborrow());
        x.ptr += (first * x.stride * x.dtype.size()) as u64;
        out.ptr += (first * out.stride * out.dtype.size()) as u64;
        (x.rows, out.rows) = (tokens, tokens);
        let mut gate_up = MatMut::at(at, Float::F32, tokens, rows);
        Product { gpu, x, add: None, arithmetic }.with(&weight, gate_up.reborrow())?;
        if let Some(bias) = bias {
            add_bias(gpu, gate_up.reborrow(), bias)?;
        }
        gated(gpu, activation, gate_up.as_mat(), out)?;
    }
    Ok(())
}

/// Number of tokens whose gates and ups (so many together) are in scratch at the same time: whole tiles of
/// them.
fn folded_at_once(width: usize) -> usize {
    let tokens = (128 << 20) / (width * Float::F32.size());
    tokens.clamp(256, 4096) / 128 * 128
}

fn check(op: &'static str, x: &Mat<'_>, weight: &Weights<'_>) -> Result<()> {
    if matches!(weight.matrix, Matrix::Dense(m) if m.dtype != Float::Bf16) {
        return Err(Error::shape(op, "weights are bf16 or NVFP4"));
    }
    if x.width != weight.width() {
        let why = format!("rows of {} and weights of {}", x.width, weight.width());
        return Err(Error::shape(op, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::folded_at_once;

    #[test]
    fn scratch_for_folding_has_a_limit() {
        assert_eq!([2, 6144, 24_576, 1 << 20].map(folded_at_once), [4096, 4096, 1280, 256]);
    }
}
