//! Copies between float types.
//!
//! Widening (bf16 or f16 to f32) is exact. Narrowing rounds once, to nearest, ties to even; a number that is
//! too large becomes infinite and NaN stays NaN. bf16 keeps the range of f32 and f16 does not: f16's largest
//! number is 65,504.

use std::ops::Range;

use super::rows::{Dst, Src, for_rows, same_dims};
use crate::cpu::lanes::{Narrow, Widen, dispatch};
use crate::{DType, Error, OpKind, Result, Runtime, TensorMut, TensorRef, Work, bf16, f16};

/// Copy `x` into `out`, of the same shape: each f32, bf16 or (not on CUDA) f16. Also the way to make a
/// contiguous copy of a strided view.
///
/// # Errors
/// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`UnexpectedDType`](crate::Error::UnexpectedDType)
/// or [`UnsupportedLayout`](crate::Error::UnsupportedLayout).
pub fn convert(rt: &Runtime, x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
    let _timed = rt.time(|| (OpKind::Elementwise, Work::default()));
    same_dims(OP, x.layout(), out.layout())?;
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::elementwise::convert(OP, gpu, x, out);
    }
    match x.dtype() {
        DType::F32 => from::<f32>(rt, x, out),
        DType::BF16 => from::<bf16>(rt, x, out),
        DType::F16 => from::<f16>(rt, x, out),
        got => Err(not_a_float(got, *x.layout())),
    }
}

const OP: &str = "convert";

fn not_a_float(got: DType, layout: crate::Layout) -> Error {
    Error::UnexpectedDType { op: OP, expected: "F32, BF16 or F16", got, layout }
}

fn from<I: Widen>(rt: &Runtime, x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
    match out.dtype() {
        DType::F32 => run::<I, f32>(rt, x, out),
        DType::BF16 => run::<I, bf16>(rt, x, out),
        DType::F16 => run::<I, f16>(rt, x, out),
        got => Err(not_a_float(got, *out.layout())),
    }
}

fn run<I: Widen, O: Narrow>(rt: &Runtime, x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
    let (x, out) = (Src::<I>::new(OP, x)?, Dst::<O>::new(OP, out)?);
    for_rows(rt, x.n(), x.len(), |rows| convert_rows(rt.isa(), &x, &out, rows));
    Ok(())
}

dispatch! {
    fn convert_rows<const FMA: bool, I: Widen, O: Narrow>(
        x: &Src<'_, I>,
        out: &Dst<'_, O>,
        rows: Range<usize>,
    ) {
        for i in rows {
            // SAFETY: `for_rows` gives every row to one call.
            let out = unsafe { out.row(i) };
            // exercise l1.rows
            for (o, v) in out.iter_mut().zip(x.row(i)) {
                *o = O::narrow(v.widen());
            }
            // end of exercise
        }
    }
}
