//! Softmax and its logarithm.
//!
//! ```text
//! softmax(x)_i     = e^(x_i - m) / sum_j e^(x_j - m)       m = max_j x_j
//! log_softmax(x)_i = x_i - m - ln sum_j e^(x_j - m)
//! ```
//!
//! Subtracting the maximum changes nothing on paper and keeps the exponentials from overflowing.
//! Softmax turns scores into weights; log-softmax turns logits into log-probabilities without
//! passing through probabilities too small to write down.
//!
//! Masked elements are -inf and get weight 0. A row with nothing but -inf has no distribution; it
//! gets all zeros (and -inf as logarithms), so that a row of padding stays harmless. A NaN or a
//! +inf anywhere makes the whole row NaN, as in torch.

use std::ops::Range;

use super::rows::{Dst, Src, for_rows, same_dims};
use crate::cpu::lanes::{accumulate, dispatch, exp, fold_lanes, max_of, sum};
use crate::{OpKind, Result, Runtime, TensorMut, TensorRef, Work};

/// Scalar reference of [`softmax`], for one row.
pub fn softmax_reference(x: &[f32], out: &mut [f32]) {
    // exercise l1.softmax
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if x.iter().all(|v| *v == f32::NEG_INFINITY) {
        return out.fill(0.0);
    }
    let total: f32 = x.iter().map(|v| (v - max).exp()).sum();
    for i in 0..x.len() {
        out[i] = (x[i] - max).exp() / total;
    }
    // end of exercise
}

/// Scalar reference of [`log_softmax`], for one row.
pub fn log_softmax_reference(x: &[f32], out: &mut [f32]) {
    // exercise l1.softmax
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if x.iter().all(|v| *v == f32::NEG_INFINITY) {
        return out.fill(f32::NEG_INFINITY);
    }
    let total: f64 = x.iter().map(|v| f64::from(v - max).exp()).sum();
    for i in 0..x.len() {
        out[i] = (f64::from(x[i]) - f64::from(max) - total.ln()) as f32;
    }
    // end of exercise
}

/// Softmax of every row of `x: [.., N]` into `out: [.., N]`, both f32. On a CPU only: on a device the kernels
/// that need probabilities compute them (attention, sampling).
///
/// # Errors
/// [`Device`](crate::Error::Device) on CUDA;
/// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`UnexpectedDType`](crate::Error::UnexpectedDType)
/// or [`UnsupportedLayout`](crate::Error::UnsupportedLayout).
pub fn softmax(rt: &Runtime, x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
    const OP: &str = "softmax";
    let _timed = rt.time(|| (OpKind::Elementwise, Work::default()));
    same_dims(OP, x.layout(), out.layout())?;
    crate::gpu::no_kernel(rt, OP)?;
    let (x, out) = (Src::new(OP, x)?, Dst::new(OP, out)?);
    for_rows(rt, x.n(), x.len(), |rows| softmax_rows(rt.isa(), &x, &out, rows));
    Ok(())
}

/// Log-softmax of every row of `x: [.., N]` into `out: [.., N]`, both f32. The sum runs in f64, so
/// that a vocabulary of 150,000 costs no digits.
///
/// # Errors
/// As [`softmax`].
pub fn log_softmax(rt: &Runtime, x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
    const OP: &str = "log_softmax";
    let _timed = rt.time(|| (OpKind::Elementwise, Work::default()));
    same_dims(OP, x.layout(), out.layout())?;
    crate::gpu::no_kernel(rt, OP)?;
    let (x, out) = (Src::new(OP, x)?, Dst::new(OP, out)?);
    for_rows(rt, x.n(), x.len(), |rows| log_softmax_rows(rt.isa(), &x, &out, rows));
    Ok(())
}

/// Writes `e^(x - max)` and returns the maximum (0 when there is nothing above -inf: then every exponential
/// is 0, or NaN where the row holds one).
#[inline(always)]
fn exponentials<const FMA: bool>(x: &[f32], out: &mut [f32]) -> f32 {
    // exercise l1.softmax
    let max = max_of(x);
    let max = if max == f32::NEG_INFINITY { 0.0 } else { max };
    for (o, v) in out.iter_mut().zip(x) {
        *o = exp::<FMA>(v - max);
    }
    max
    // end of exercise
}

dispatch! {
    fn softmax_rows<const FMA: bool>(x: &Src<'_, f32>, out: &Dst<'_, f32>, rows: Range<usize>) {
        for i in rows {
            // SAFETY: `for_rows` gives every row to one call.
            let (x, out) = (x.row(i), unsafe { out.row(i) });
            // exercise l1.softmax
            exponentials::<FMA>(x, out);
            let total = sum(out);
            if total == 0.0 {
                continue; // Nothing but -inf: the exponentials are the zeros promised.
            }
            for o in out {
                *o /= total;
            }
            // end of exercise
        }
    }

    fn log_softmax_rows<const FMA: bool>(x: &Src<'_, f32>, out: &Dst<'_, f32>, rows: Range<usize>) {
        for i in rows {
            // SAFETY: `for_rows` gives every row to one call.
            let (x, out) = (x.row(i), unsafe { out.row(i) });
            // exercise l1.softmax
            let max = exponentials::<FMA>(x, out);
            let lanes = accumulate(&*out, 0.0f64, |acc, v| acc + f64::from(v));
            let total = fold_lanes(lanes, |a, b| a + b);
            if total == 0.0 {
                out.fill(f32::NEG_INFINITY);
                continue;
            }
            // Two steps: added to a huge maximum first, the logarithm would be lost, in f64 too.
            let (max, ln_total) = (f64::from(max), total.ln());
            for (o, v) in out.iter_mut().zip(x) {
                *o = (f64::from(*v) - max - ln_total) as f32;
            }
            // end of exercise
        }
    }
}
