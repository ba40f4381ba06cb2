//! Norms.

use std::sync::Arc;

use kernels::{Gpu, ops};

use super::views::{f32_heads_mut, f32_vector, mat_mut, mat_of, single_heads_mut};
use crate::{Result, TensorMut, TensorRef};

pub(crate) fn rms_norm(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorRef<'_>,
    weight: TensorRef<'_>,
    eps: f32,
    out: TensorMut<'_>,
) -> Result<()> {
    let weight = f32_vector(op, gpu, weight)?;
    let x = mat_of::<f32>(op, gpu, x)?;
    Ok(ops::rms_norm(gpu, x, weight, eps, mat_mut(op, gpu, out)?)?)
}

/// In place, over rows at one stride or over a token's heads behind each other.
pub(crate) fn rms_norm_in_place(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorMut<'_>,
    weight: TensorRef<'_>,
    eps: f32,
) -> Result<()> {
    let weight = f32_vector(op, gpu, weight)?;
    let x = match x.layout().rank() {
        3 => f32_heads_mut(op, gpu, x)?,
        _ => single_heads_mut(op, gpu, x)?,
    };
    Ok(ops::rms_norm_heads(gpu, x, weight, eps)?)
}

pub(crate) fn layer_norm(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorRef<'_>,
    weight: TensorRef<'_>,
    bias: Option<TensorRef<'_>>,
    eps: f32,
    out: TensorMut<'_>,
) -> Result<()> {
    let weight = f32_vector(op, gpu, weight)?;
    let bias = bias.map(|b| f32_vector(op, gpu, b)).transpose()?;
    let x = mat_of::<f32>(op, gpu, x)?;
    Ok(ops::layer_norm(gpu, x, weight, bias, eps, mat_mut(op, gpu, out)?)?)
}
