//! Root mean square normalisation.
//!
//! ```text
//! y_i = x_i / sqrt(mean(x^2) + eps) * w_i
//! ```
//!
//! Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019). Layer norm without the mean
//! and without the bias; Llama and nearly every family after it uses this one.

use std::ops::Range;

use super::rows::{Dst, Src, check_row_vector, for_rows, not_f32_or_bf16, row_vector, same_dims};
use crate::cpu::lanes::{Narrow, dispatch, sum_squares};
use crate::{DType, OpKind, Result, Runtime, TensorMut, TensorRef, Work, bf16};

const WEIGHT: &str = "the weight must have one element for each element of a row";

/// Scalar reference of [`rms_norm`], for one row: `x`, `weight` and `out` are `[H]`.
pub fn rms_norm_reference(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    // exercise l1.rms_norm
    let sum_of_squares: f32 = x.iter().map(|v| v * v).sum();
    let scale = 1.0 / (sum_of_squares / x.len() as f32 + eps).sqrt();
    for i in 0..x.len() {
        out[i] = x[i] * scale * weight[i];
    }
    // end of exercise
}

/// Normalises every row of `x: [.., H]` (f32) with `weight: [H]` (f32) into `out: [.., H]`, f32 or bf16. The
/// rows of either may have any strides.
///
/// Squares are summed in f32, as in torch: a row whose squares overflow, with elements of 1e19 and more, becomes zeros,
/// and no error. A check would cost a pass, and weights that make such rows are useless in any engine.
///
/// # Errors
/// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`UnexpectedDType`](crate::Error::UnexpectedDType)
/// or [`UnsupportedLayout`](crate::Error::UnsupportedLayout).
pub fn rms_norm(
    rt: &Runtime,
    x: TensorRef<'_>,
    weight: TensorRef<'_>,
    eps: f32,
    out: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "rms_norm";
    let _timed = rt.time(|| (OpKind::Norm, Work::default()));
    fn run<O: Narrow>(
        rt: &Runtime,
        x: TensorRef<'_>,
        w: &[f32],
        eps: f32,
        out: TensorMut<'_>,
    ) -> Result<()> {
        let (x, out) = (Src::new(OP, x)?, Dst::<O>::new(OP, out)?);
        for_rows(rt, x.n(), x.len(), |rows| norm_rows(rt.isa(), &x, w, eps, &out, rows));
        Ok(())
    }
    same_dims(OP, x.layout(), out.layout())?;
    check_row_vector(OP, WEIGHT, x.layout(), &weight)?;
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::norm::rms_norm(OP, gpu, x, weight, eps, out);
    }
    let w = row_vector(OP, WEIGHT, x.layout(), weight)?;
    match out.dtype() {
        DType::F32 => run::<f32>(rt, x, w, eps, out),
        DType::BF16 => run::<bf16>(rt, x, w, eps, out),
        _ => not_f32_or_bf16(OP, &out),
    }
}

/// [`rms_norm`] that overwrites its input: the query and key norms of Qwen3, whose rows
/// (`[T, heads, D]`) lie inside of a packed `[T, q + k + v]` buffer.
///
/// # Errors
/// As [`rms_norm`].
pub fn rms_norm_in_place(
    rt: &Runtime,
    x: TensorMut<'_>,
    weight: TensorRef<'_>,
    eps: f32,
) -> Result<()> {
    const OP: &str = "rms_norm_in_place";
    let _timed = rt.time(|| (OpKind::Norm, Work::default()));
    check_row_vector(OP, WEIGHT, x.layout(), &weight)?;
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::norm::rms_norm_in_place(OP, gpu, x, weight, eps);
    }
    let w = row_vector(OP, WEIGHT, x.layout(), weight)?;
    let x = Dst::<f32>::new(OP, x)?;
    for_rows(rt, x.n(), x.len(), |rows| norm_rows_in_place(rt.isa(), &x, w, eps, rows));
    Ok(())
}

#[inline(always)]
fn scale_of<const FMA: bool>(x: &[f32], eps: f32) -> f32 {
    // exercise l1.rms_norm
    1.0 / (sum_squares::<FMA>(x) / x.len() as f32 + eps).sqrt()
    // end of exercise
}

dispatch! {
    fn norm_rows<const FMA: bool, O: Narrow>(
        x: &Src<'_, f32>,
        w: &[f32],
        eps: f32,
        out: &Dst<'_, O>,
        rows: Range<usize>,
    ) {
        for i in rows {
            let x = x.row(i);
            // SAFETY: `for_rows` gives every row to one call.
            let out = unsafe { out.row(i) };
            // exercise l1.rms_norm
            let scale = scale_of::<FMA>(x, eps);
            for ((o, x), w) in out.iter_mut().zip(x).zip(w) {
                *o = O::narrow(x * scale * w);
            }
            // end of exercise
        }
    }

    fn norm_rows_in_place<const FMA: bool>(
        x: &Dst<'_, f32>,
        w: &[f32],
        eps: f32,
        rows: Range<usize>,
    ) {
        for i in rows {
            // SAFETY: `for_rows` gives every row to one call.
            let x = unsafe { x.row(i) };
            // exercise l1.rms_norm
            let scale = scale_of::<FMA>(x, eps);
            for (x, w) in x.iter_mut().zip(w) {
                *x = *x * scale * w;
            }
            // end of exercise
        }
    }
}
