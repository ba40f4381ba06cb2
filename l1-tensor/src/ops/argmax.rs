//! The index of the largest element: greedy decoding.

use std::ops::Range;

use super::rows::{Dst, Src, check_rows, for_rows};
use crate::cpu::lanes::{LANES, dispatch, max_of};
use crate::{Error, OpKind, Result, Runtime, TensorRef, Work};

/// Scalar reference of [`argmax`], for one row.
pub fn argmax_reference(x: &[f32]) -> u32 {
    // exercise l1.select
    let mut best: Option<usize> = None;
    for i in 0..x.len() {
        if !x[i].is_nan() && best.is_none_or(|b| x[i] > x[b]) {
            best = Some(i);
        }
    }
    best.unwrap_or(0) as u32
    // end of exercise
}

/// Writes the index of the largest element of each row of `x: [.., N]` (f32, N >= 1) to `out`, one
/// entry a row.
///
/// Of equal elements the lowest index wins, and 0 and -0 are equal. NaN is skipped: it ranks below
/// -inf, and only a row of nothing but NaN gives 0. On CUDA it waits for the device.
///
/// # Errors
/// [`Error::UnsupportedLayout`] for empty rows or an `out` of another length,
/// [`Error::UnexpectedDType`].
pub fn argmax(rt: &Runtime, x: TensorRef<'_>, out: &mut [u32]) -> Result<()> {
    const OP: &str = "argmax";
    let _timed = rt.time(|| (OpKind::Select, Work::default()));
    let layout = *x.layout();
    check_rows(OP, &layout)?;
    let (len, leading) = layout.dims().split_last().unwrap_or((&1, &[]));
    let n: usize = leading.iter().product();
    if n != out.len() {
        let why = "needs one output for each row";
        return Err(Error::UnsupportedLayout { op: OP, why, layout });
    }
    if *len == 0 && n > 0 {
        let why = "an empty row has no largest element";
        return Err(Error::UnsupportedLayout { op: OP, why, layout });
    }
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::select::argmax(rt, OP, gpu, x, out);
    }
    let (x, out) = (Src::<f32>::new(OP, x)?, Dst::from_slice(out));
    for_rows(rt, x.n(), x.len(), |rows| argmax_rows(rt.isa(), &x, &out, rows));
    Ok(())
}

dispatch! {
    fn argmax_rows<const FMA: bool>(x: &Src<'_, f32>, out: &Dst<'_, u32>, rows: Range<usize>) {
        for i in rows {
            // SAFETY: `for_rows` gives every row to one call.
            let out = unsafe { out.row(i) };
            out[0] = first_of(x.row(i));
        }
    }
}

/// Finds the largest value first, then its first index: two passes that both process sixteen
/// elements at a time are faster than one that carries indices along.
#[inline(always)]
fn first_of(x: &[f32]) -> u32 {
    // exercise l1.select
    let max = max_of(x);
    let mut at = 0;
    for chunk in x.chunks(LANES) {
        // No early exit inside of a chunk: that is what lets it become one comparison.
        if chunk.iter().fold(false, |found, v| found | (*v == max)) {
            break;
        }
        at += chunk.len();
    }
    // Past the end when all are NaN: nothing equals the maximum then.
    x[at..].iter().position(|v| *v == max).map_or(0, |i| at + i) as u32
    // end of exercise
}
