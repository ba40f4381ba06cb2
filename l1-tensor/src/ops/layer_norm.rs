//! Layer normalisation.
//!
//! ```text
//! y_i = (x_i - mean) / sqrt(mean((x - mean)^2) + eps) * w_i + b_i
//! ```
//!
//! Ba, Kiros and Hinton, "Layer Normalization" (2016).

use std::ops::Range;

use super::rows::{Dst, Src, check_row_vector, for_rows, not_f32_or_bf16, row_vector, same_dims};
use crate::cpu::lanes::{Narrow, dispatch, sum, sum_squared_deviations};
use crate::{DType, OpKind, Result, Runtime, TensorMut, TensorRef, Work, bf16};

/// Scalar reference of [`layer_norm`], for one row: `x`, `weight`, `bias` and `out` are `[H]`.
pub fn layer_norm_reference(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    // In f64: where the mean is large and the deviation small, every digit of the sum counts.
    let n = x.len() as f64;
    let mean = (x.iter().map(|v| f64::from(*v)).sum::<f64>() / n) as f32;
    let variance = (x.iter().map(|v| f64::from(v - mean).powi(2)).sum::<f64>() / n) as f32;
    let scale = 1.0 / (variance + eps).sqrt();
    for i in 0..x.len() {
        out[i] = (x[i] - mean) * scale * weight[i] + bias.map_or(0.0, |b| b[i]);
    }
}

/// Normalises every row of `x: [.., H]` (f32) with `weight: [H]` and `bias: [H]` (f32) into `out: [.., H]`,
/// f32 or bf16. The variance is taken around the mean in a second pass: with `mean(x^2) - mean^2` a row far
/// from zero would lose all its digits.
///
/// # Errors
/// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`UnexpectedDType`](crate::Error::UnexpectedDType)
/// or [`UnsupportedLayout`](crate::Error::UnsupportedLayout).
pub fn layer_norm(
    rt: &Runtime,
    x: TensorRef<'_>,
    weight: TensorRef<'_>,
    bias: Option<TensorRef<'_>>,
    eps: f32,
    out: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "layer_norm";
    let _timed = rt.time(|| (OpKind::Norm, Work::default()));
    fn run<O: Narrow>(
        rt: &Runtime,
        x: TensorRef<'_>,
        w: &[f32],
        b: Option<&[f32]>,
        eps: f32,
        out: TensorMut<'_>,
    ) -> Result<()> {
        let (x, out) = (Src::new(OP, x)?, Dst::<O>::new(OP, out)?);
        for_rows(rt, x.n(), x.len(), |rows| norm_rows(rt.isa(), &x, w, b, eps, &out, rows));
        Ok(())
    }
    same_dims(OP, x.layout(), out.layout())?;
    let each = "weight and bias must have one element for each element of a row";
    for vector in [Some(&weight), bias.as_ref()].into_iter().flatten() {
        check_row_vector(OP, each, x.layout(), vector)?;
    }
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::norm::layer_norm(OP, gpu, x, weight, bias, eps, out);
    }
    let w = row_vector(OP, each, x.layout(), weight)?;
    let b = bias.map(|b| row_vector(OP, each, x.layout(), b)).transpose()?;
    match out.dtype() {
        DType::F32 => run::<f32>(rt, x, w, b, eps, out),
        DType::BF16 => run::<bf16>(rt, x, w, b, eps, out),
        _ => not_f32_or_bf16(OP, &out),
    }
}

dispatch! {
    fn norm_rows<const FMA: bool, O: Narrow>(
        x: &Src<'_, f32>,
        w: &[f32],
        b: Option<&[f32]>,
        eps: f32,
        out: &Dst<'_, O>,
        rows: Range<usize>,
    ) {
        for i in rows {
            let x = x.row(i);
            // SAFETY: `for_rows` gives every row to one call.
            let out = unsafe { out.row(i) };
            let mean = sum(x) / x.len() as f32;
            let variance = sum_squared_deviations::<FMA>(x, mean) / x.len() as f32;
            let scale = 1.0 / (variance + eps).sqrt();
            match b {
                Some(b) => {
                    for (((o, x), w), b) in out.iter_mut().zip(x).zip(w).zip(b) {
                        *o = O::narrow((x - mean) * scale * w + b);
                    }
                }
                None => {
                    for ((o, x), w) in out.iter_mut().zip(x).zip(w) {
                        *o = O::narrow((x - mean) * scale * w);
                    }
                }
            }
        }
    }
}
