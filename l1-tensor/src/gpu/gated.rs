//! Gated activations.

use std::sync::Arc;

use kernels::Gpu;
use kernels::ops::{self, Activation};

use super::views::{mat_mut, mat_of};
use crate::{Error, Result, TensorMut, TensorRef};

/// `out = activation(gate) * up`, where gate and up are halves of one buffer's rows.
pub(crate) fn gated(
    op: &'static str,
    gpu: &Arc<Gpu>,
    activation: Activation,
    gate: TensorRef<'_>,
    up: TensorRef<'_>,
    out: TensorMut<'_>,
) -> Result<()> {
    let (first, second) = (mat_of::<f32>(op, gpu, gate)?, mat_of::<f32>(op, gpu, up)?);
    let out = mat_mut(op, gpu, out)?;
    if first.rows == 0 || first.width == 0 {
        return Ok(());
    }
    let both = gate.joined(&up).ok_or(Error::UnsupportedLayout {
        op,
        why: "needs gates and ups as the halves of one buffer's rows on CUDA",
        layout: *up.layout(),
    })?;
    debug_assert_eq!(second.rows, first.rows);
    Ok(ops::gated(gpu, activation, mat_of::<f32>(op, gpu, both)?, out)?)
}
