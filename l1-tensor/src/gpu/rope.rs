//! Rotary embedding, and the frequencies it needs on the device.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kernels::{Buffer, Gpu, ops};

use super::indices::Numbers;
use super::views::{f32_heads_mut, mat_mut_of, mat_of};
use crate::{Index, Result, TensorMut, TensorRef};

pub(crate) fn rope(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorMut<'_>,
    cos: TensorRef<'_>,
    sin: TensorRef<'_>,
) -> Result<()> {
    let (cos, sin) = (mat_of::<f32>(op, gpu, cos)?, mat_of::<f32>(op, gpu, sin)?);
    Ok(ops::rope(gpu, f32_heads_mut(op, gpu, x)?, cos, sin)?)
}

/// Frequencies, brought to each device at the first step there and kept: a captured step has their
/// address.
#[derive(Default)]
pub(crate) struct Frequencies {
    on: Mutex<Vec<Arc<Buffer>>>,
}

impl Frequencies {
    fn on(&self, gpu: &Arc<Gpu>, inv_freq: &[f32]) -> Result<Arc<Buffer>> {
        let mut on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = on.iter().find(|b| Arc::ptr_eq(b.gpu(), gpu)) {
            return Ok(Arc::clone(there));
        }
        let brought = Arc::new(Buffer::from_slice(gpu, inv_freq)?);
        on.push(Arc::clone(&brought));
        Ok(brought)
    }

    /// The angles of some positions.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn angles(
        &self,
        op: &'static str,
        gpu: &Arc<Gpu>,
        inv_freq: &[f32],
        scaling: f32,
        positions: Index<'_, i32>,
        cos: TensorMut<'_>,
        sin: TensorMut<'_>,
    ) -> Result<()> {
        let (cos, sin) = (mat_mut_of::<f32>(op, gpu, cos)?, mat_mut_of::<f32>(op, gpu, sin)?);
        let inv_freq = self.on(gpu, inv_freq)?;
        let positions = Numbers::of(op, gpu, positions)?;
        let inv_freq = inv_freq.view().cast();
        Ok(ops::rope_angles(gpu, positions.view(), inv_freq, scaling, cos, sin)?)
    }
}

/// A copy of a table brings its own.
impl Clone for Frequencies {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Where the numbers lie is no part of what they are.
impl PartialEq for Frequencies {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Frequencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Frequencies")
    }
}
