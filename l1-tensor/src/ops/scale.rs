//! Multiplication by a number: scaled embeddings and residuals, temperatures.

use std::ops::Range;

use super::rows::{Dst, for_rows};
use crate::cpu::lanes::dispatch;
use crate::{OpKind, Result, Runtime, TensorMut, Work};

/// Scalar reference of [`scale`].
pub fn scale_reference(x: &mut [f32], factor: f32) {
    for v in x {
        *v *= factor;
    }
}

/// `x *= factor`: an f32 tensor of at least one dimension.
///
/// # Errors
/// [`UnexpectedDType`](crate::Error::UnexpectedDType) or
/// [`UnsupportedLayout`](crate::Error::UnsupportedLayout).
pub fn scale(rt: &Runtime, x: TensorMut<'_>, factor: f32) -> Result<()> {
    const OP: &str = "scale";
    let _timed = rt.time(|| (OpKind::Elementwise, Work::default()));
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::elementwise::scale(OP, gpu, x, factor);
    }
    let x = Dst::<f32>::new(OP, x)?;
    for_rows(rt, x.n(), x.len(), |rows| scale_rows(rt.isa(), &x, factor, rows));
    Ok(())
}

dispatch! {
    fn scale_rows<const FMA: bool>(x: &Dst<'_, f32>, factor: f32, rows: Range<usize>) {
        for i in rows {
            // SAFETY: `for_rows` gives every row to one call.
            for v in unsafe { x.row(i) } {
                *v *= factor;
            }
        }
    }
}
