//! The largest of a row, for the host.

use std::sync::Arc;

use kernels::{Gpu, ops};

use super::views::mat_of;
use crate::{DType, Result, Runtime, Tensor, TensorRef};

/// The place of the largest element of each row of `x`, by the rules of `ops::argmax`. Waits for the
/// device.
pub(crate) fn argmax(
    rt: &Runtime,
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorRef<'_>,
    out: &mut [u32],
) -> Result<()> {
    let rows = mat_of::<f32>(op, gpu, x)?;
    let Some(mut answers) = rt.answers() else { return Ok(()) };
    let place = match answers.take() {
        Some(place) if place.layout().elem_count() >= out.len() => place,
        _ => Tensor::zeros(&[out.len().next_power_of_two()], DType::U32, rt.device())?,
    };
    let place = answers.insert(place);
    let mut found = place.view_mut().on_device_mut::<u32>(op)?.part(0, out.len());
    ops::argmax(gpu, rows, found.reborrow())?;
    found.as_view().copy_to(gpu, out)?;
    pass_over_nan(op, gpu, x, out)
}

/// The kernel takes a NaN for the largest. A row whose answer is one is decided here.
fn pass_over_nan(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorRef<'_>,
    out: &mut [u32],
) -> Result<()> {
    let all = mat_of::<f32>(op, gpu, x)?;
    let flat = x.reshape(&[all.rows, all.width])?;
    for (r, best) in out.iter_mut().enumerate() {
        let value = flat.narrow(0, r, 1)?.narrow(1, *best as usize, 1)?;
        if value.to_vec_f32()?.iter().any(|v| v.is_nan()) {
            let row = flat.narrow(0, r, 1)?.to_vec_f32()?;
            *best = crate::ops::argmax_reference(&row);
        }
    }
    Ok(())
}
