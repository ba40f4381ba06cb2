//! Addition, element by element: the residual stream.

use std::ops::Range;

use super::rows::{Dst, Src, for_rows, same_dims};
use crate::cpu::lanes::dispatch;
use crate::{OpKind, Result, Runtime, TensorMut, TensorRef, Work};

/// Scalar reference of [`add`].
pub fn add_reference(a: &[f32], b: &[f32], out: &mut [f32]) {
    // exercise l1.rows
    for i in 0..out.len() {
        out[i] = a[i] + b[i];
    }
    // end of exercise
}

/// `out = a + b`: f32 tensors of one shape.
///
/// # Errors
/// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`UnexpectedDType`](crate::Error::UnexpectedDType)
/// or [`UnsupportedLayout`](crate::Error::UnsupportedLayout).
pub fn add(rt: &Runtime, a: TensorRef<'_>, b: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
    const OP: &str = "add";
    let _timed = rt.time(|| (OpKind::Elementwise, Work::default()));
    same_dims(OP, a.layout(), b.layout())?;
    same_dims(OP, a.layout(), out.layout())?;
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::elementwise::add(OP, gpu, a, b, out);
    }
    let (a, b, out) = (Src::new(OP, a)?, Src::new(OP, b)?, Dst::new(OP, out)?);
    for_rows(rt, out.n(), out.len(), |rows| add_rows(rt.isa(), &a, &b, &out, rows));
    Ok(())
}

/// `a += b`: f32 tensors of one shape.
///
/// # Errors
/// As [`add`].
pub fn add_in_place(rt: &Runtime, a: TensorMut<'_>, b: TensorRef<'_>) -> Result<()> {
    const OP: &str = "add_in_place";
    let _timed = rt.time(|| (OpKind::Elementwise, Work::default()));
    same_dims(OP, a.layout(), b.layout())?;
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::elementwise::add_in_place(OP, gpu, a, b);
    }
    let (a, b) = (Dst::new(OP, a)?, Src::new(OP, b)?);
    for_rows(rt, a.n(), a.len(), |rows| add_rows_in_place(rt.isa(), &a, &b, rows));
    Ok(())
}

dispatch! {
    fn add_rows<const FMA: bool>(
        a: &Src<'_, f32>,
        b: &Src<'_, f32>,
        out: &Dst<'_, f32>,
        rows: Range<usize>,
    ) {
        for i in rows {
            // SAFETY: `for_rows` gives every row to one call.
            let out = unsafe { out.row(i) };
            // exercise l1.rows
            for ((o, a), b) in out.iter_mut().zip(a.row(i)).zip(b.row(i)) {
                *o = a + b;
            }
            // end of exercise
        }
    }

    fn add_rows_in_place<const FMA: bool>(a: &Dst<'_, f32>, b: &Src<'_, f32>, rows: Range<usize>) {
        for i in rows {
            // SAFETY: `for_rows` gives every row to one call.
            let a = unsafe { a.row(i) };
            // exercise l1.rows
            for (a, b) in a.iter_mut().zip(b.row(i)) {
                *a += b;
            }
            // end of exercise
        }
    }
}
