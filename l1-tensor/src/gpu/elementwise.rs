//! Sums, factors, conversions.

use std::sync::Arc;

use kernels::{Gpu, ops};

use super::views::{mat, mat_mut, mat_mut_of, mat_of};
use crate::{Result, TensorMut, TensorRef};

/// `out = a + b`: copied, then added to. Rounded once, so the bits are those of one step.
pub(crate) fn add(
    op: &'static str,
    gpu: &Arc<Gpu>,
    a: TensorRef<'_>,
    b: TensorRef<'_>,
    out: TensorMut<'_>,
) -> Result<()> {
    let (a, b) = (mat_of::<f32>(op, gpu, a)?, mat_of::<f32>(op, gpu, b)?);
    let mut out = mat_mut_of::<f32>(op, gpu, out)?;
    ops::convert(gpu, a, out.reborrow())?;
    Ok(ops::add_in_place(gpu, out, b)?)
}

/// `a += b`.
pub(crate) fn add_in_place(
    op: &'static str,
    gpu: &Arc<Gpu>,
    a: TensorMut<'_>,
    b: TensorRef<'_>,
) -> Result<()> {
    let (a, b) = (mat_mut_of::<f32>(op, gpu, a)?, mat_of::<f32>(op, gpu, b)?);
    Ok(ops::add_in_place(gpu, a, b)?)
}

/// `x *= factor`.
pub(crate) fn scale(op: &'static str, gpu: &Arc<Gpu>, x: TensorMut<'_>, factor: f32) -> Result<()> {
    Ok(ops::scale_in_place(gpu, mat_mut_of::<f32>(op, gpu, x)?, factor)?)
}

/// `out = x`, rounded where it must be.
pub(crate) fn convert(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorRef<'_>,
    out: TensorMut<'_>,
) -> Result<()> {
    Ok(ops::convert(gpu, mat(op, gpu, x)?, mat_mut(op, gpu, out)?)?)
}
