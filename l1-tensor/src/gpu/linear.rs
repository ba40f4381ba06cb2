//! Matmuls.

use kernels::ops::{self, Accumulate, Activation};

use super::views::{f32_vector, mat, mat_mut};
use crate::cpu::matmul::After;
use crate::{DType, Error, Result, Runtime, TensorMut, TensorRef, Weight};

/// `out = after(x W^T + bias)`, checked by `ops::linear`.
pub(crate) fn linear(
    rt: &Runtime,
    op: &'static str,
    x: TensorRef<'_>,
    w: &Weight,
    bias: Option<TensorRef<'_>>,
    after: After,
    out: TensorMut<'_>,
) -> Result<()> {
    let Some(gpu) = rt.gpu() else { return Ok(()) };
    let layout = *out.layout();
    let (weight, arithmetic) = (w.on_cuda(op, gpu)?, rt.arithmetic());
    let x = mat(op, gpu, x)?;
    let mut to = mat_mut(op, gpu, out)?;
    let bias = bias.map(|b| f32_vector(op, gpu, b)).transpose()?;
    let accumulate = match after {
        After::Store => Accumulate::Store,
        After::Add => Accumulate::Add { scale: 1.0 },
        After::AddScaled(scale) => Accumulate::Add { scale },
        After::SiluMul | After::GeluTanhMul | After::GeluMul => {
            let activation = match after {
                After::SiluMul => Activation::Silu,
                After::GeluTanhMul => Activation::GeluTanh,
                _ => Activation::GeluErf,
            };
            return Ok(ops::linear_gated(gpu, activation, x, weight, bias, arithmetic, to)?);
        }
    };
    if bias.is_some() && to.dtype != kernels::Float::F32 {
        // The bias is added to what was stored, and must not be added to rounded sums.
        let (expected, got) = ("an F32 output under a bias on CUDA", DType::BF16);
        return Err(Error::UnexpectedDType { op, expected, got, layout });
    }
    ops::linear(gpu, x, weight, accumulate, arithmetic, to.reborrow())?;
    match bias {
        Some(bias) => Ok(ops::add_bias(gpu, to, bias)?),
        None => Ok(()),
    }
}
