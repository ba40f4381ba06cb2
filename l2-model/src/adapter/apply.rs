//! Adapters in a step: side terms for the rows of their sequences.
//!
//! The model's own matmuls run once, over all rows of the step. An adapter's run over its rows only, which lie together
//! in runs of sequences with the same adapter:
//!
//! ```text
//! sequences   a a a a    b    c c    d d d      tokens of a step
//! adapter     0          0    none   1
//! runs        [0, 5): adapter 0          [7, 10): adapter 1
//! ```
//!
//! A side term is added where PEFT adds it: to the projection's own result, bias included, and before anything is made
//! of that. For gate and up this is before the activation, which the fused matmul of [`Epilogue::SiluMul`] has taken
//! already when it returns. So a layer whose gate or up is adapted stores both halves first, for all rows, then adds, and
//! then activates. The stored halves are the sums that the fused matmul would have activated, so rows without an
//! adapter keep their bits.

use std::ops::Range;
use std::sync::Arc;

use l1_tensor::ops::{Epilogue, Gelu, gelu_mul, linear, linear_low_rank, silu_mul};
use l1_tensor::{DType, Runtime, Tensor, TensorMut, TensorRef};

use super::{AdapterError, LoraAdapter, Projection};
use crate::batch::BatchError;
use crate::decoder::workspace::{first, first_mut};
use crate::decoder::{Mlp, view};
use crate::{Batch, Result, Workspace};

/// Maximum number of rows whose gates and ups are stored together. It bounds the memory of a prefill; the matmul reads
/// its weights once for each such part, and is bound by arithmetic long before.
const GATE_UP_ROWS: usize = 256;

/// Adapters of a workspace, and the buffer of their side terms.
#[derive(Default)]
pub(crate) struct Adapters {
    /// Adapters by index.
    loaded: Vec<Option<Arc<LoraAdapter>>>,
    /// `[T, r]` in the activations' dtype: `x A^T`. `None`: no adapter is allowed.
    low: Option<Tensor>,
}

impl Workspace {
    /// Makes buffers for adapters of at most this rank. Without them a workspace takes no adapter.
    ///
    /// # Errors
    /// [`l1_tensor::Error::OutOfMemory`], or a device's own.
    pub fn allow_adapters(&mut self, max_rank: usize) -> Result<()> {
        let (rt, t) = (&self.rt, self.spec.max_tokens);
        let inner = self.inner.dims().get(1).copied().unwrap_or(0);
        let low = Tensor::zeros(&[t, max_rank], rt.activation_dtype(), rt.device())?;
        let rows = [t.min(GATE_UP_ROWS), 2 * inner];
        self.gate_up = Some(Tensor::zeros(&rows, DType::F32, rt.device())?);
        self.adapters.low = Some(low);
        Ok(())
    }

    /// Gives an adapter an index for [`Batch::adapters`], in place of the adapter that had it; `None` frees the index.
    /// Indices are dense: use the lowest free one.
    ///
    /// # Errors
    /// [`AdapterError::NoRoom`] if its rank is above that of [`Workspace::allow_adapters`];
    /// [`AdapterError::OtherModel`].
    pub fn set_adapter(&mut self, index: usize, adapter: Option<Arc<LoraAdapter>>) -> Result<()> {
        let max = self.adapters.max_rank();
        if adapter.as_ref().is_some_and(|adapter| !adapter.fits(&self.model)) {
            return Err(AdapterError::OtherModel.into());
        }
        if let Some(rank) = adapter.as_ref().map(|a| a.rank()).filter(|rank| *rank > max) {
            return Err(AdapterError::NoRoom { rank, max }.into());
        }
        let loaded = &mut self.adapters.loaded;
        if loaded.len() <= index {
            loaded.resize_with(index + 1, || None);
        }
        loaded[index] = adapter;
        Ok(())
    }
}

/// Rows of the step that belong to sequences with the same adapter, and its index; rows without one are left out.
fn runs<'a>(batch: &'a Batch<'_>) -> impl Iterator<Item = (Range<usize>, usize)> + 'a {
    let end = |s: usize| batch.cu_seqlens_q[s] as usize;
    let mut s = 0;
    std::iter::from_fn(move || {
        while let Some(&adapter) = batch.adapters.get(s) {
            let from = s;
            while batch.adapters.get(s) == Some(&adapter) {
                s += 1;
            }
            let rows = end(from)..end(s);
            if let Some(index) = usize::try_from(adapter).ok().filter(|_| !rows.is_empty()) {
                return Some((rows, index));
            }
        }
        None
    })
}

impl Adapters {
    /// Maximum rank that the buffer has room for.
    fn max_rank(&self) -> usize {
        self.low.as_ref().and_then(|low| low.dims().get(1).copied()).unwrap_or(0)
    }

    /// Size of the buffer, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.low.as_ref().map_or(0, Tensor::bytes)
    }

    /// Checks that a batch names adapters that are loaded.
    pub(crate) fn check(&self, batch: &Batch<'_>) -> Result<()> {
        let missing = |index: &&i32| {
            let slot = usize::try_from(**index).ok().map(|index| self.loaded.get(index));
            slot.is_some_and(|slot| !matches!(slot, Some(Some(_))))
        };
        match batch.adapters.iter().find(missing) {
            None => Ok(()),
            Some(index) => {
                let why = format!("adapters: none has index {index}, see Workspace::set_adapter");
                Err(BatchError::Malformed(why).into())
            }
        }
    }

    fn get(&self, index: usize) -> Option<&LoraAdapter> {
        self.loaded.get(index)?.as_deref()
    }

    /// Whether an adapter of the batch changes one of these projections.
    pub(crate) fn change(&self, batch: &Batch<'_>, layer: usize, any: &[Projection]) -> bool {
        let changes = |adapter: &LoraAdapter| any.iter().any(|p| adapter.side(layer, *p).is_some());
        runs(batch).any(|(_, index)| self.get(index).is_some_and(changes))
    }

    /// `out += scale (x A^T) B^T` for the rows with an adapter that changes this projection. `x` and `out` are the rows
    /// of the step from row `begin` on.
    pub(crate) fn add(
        &mut self,
        rt: &Runtime,
        batch: &Batch<'_>,
        at: (usize, Projection),
        begin: usize,
        x: TensorRef<'_>,
        mut out: TensorMut<'_>,
    ) -> Result<()> {
        let Self { loaded, low: Some(low) } = self else { return Ok(()) };
        let (count, (layer, projection)) = (x.dims().first().copied().unwrap_or(0), at);
        // exercise l2.lora
        for (rows, index) in runs(batch) {
            let (from, to) = (rows.start.max(begin), rows.end.min(begin + count));
            let adapter = loaded.get(index).and_then(|adapter| adapter.as_deref());
            let side = adapter.and_then(|adapter| adapter.side(layer, projection));
            if let Some(side) = side.filter(|_| from < to) {
                let (at, n) = (from - begin, to - from);
                let low = first_mut(low, n)?.narrow(1, 0, side.a.n())?;
                let out = out.reborrow().narrow(0, at, n)?;
                linear_low_rank(rt, x.narrow(0, at, n)?, side, low, out)?;
            }
        }
        Ok(())
        // end of exercise
    }
}

/// `inner = activation(gate) * up` for all rows of the step, with the side terms of gate and up.
pub(crate) fn gate_up(
    rt: &Runtime,
    layer: usize,
    m: &Mlp,
    batch: &Batch<'_>,
    ws: &mut Workspace,
) -> Result<()> {
    let (t, width) = (batch.tokens.len(), m.intermediate);
    let bias = view(&m.gate_up_bias);
    let x = first(&ws.normed, t)?;
    let mut inner = first_mut(&mut ws.inner, t)?.narrow(1, 0, width)?;
    let adapted = ws.adapters.change(batch, layer, &[Projection::Gate, Projection::Up]);
    let Some(stored) = ws.gate_up.as_mut().filter(|_| adapted) else {
        return Ok(linear(rt, x, &m.gate_up, bias, m.activation, inner)?);
    };
    for begin in (0..t).step_by(GATE_UP_ROWS) {
        let n = GATE_UP_ROWS.min(t - begin);
        let (x, inner) = (x.narrow(0, begin, n)?, inner.reborrow().narrow(0, begin, n)?);
        // exercise l2.lora
        let mut y = first_mut(stored, n)?.narrow(1, 0, 2 * width)?;
        linear(rt, x, &m.gate_up, bias, Epilogue::Store, y.reborrow())?;
        for (projection, column) in [(Projection::Gate, 0), (Projection::Up, width)] {
            let half = y.reborrow().narrow(1, column, width)?;
            ws.adapters.add(rt, batch, (layer, projection), begin, x, half)?;
        }
        let y = y.as_ref();
        activate(rt, m.activation, y.narrow(1, 0, width)?, y.narrow(1, width, width)?, inner)?;
        // end of exercise
    }
    Ok(())
}

/// `out = activation(gate) * up`: the activation that `epilogue` folds into a matmul, by itself.
fn activate(
    rt: &Runtime,
    epilogue: Epilogue,
    gate: TensorRef<'_>,
    up: TensorRef<'_>,
    out: TensorMut<'_>,
) -> Result<()> {
    match epilogue {
        Epilogue::GeluMul => gelu_mul(rt, Gelu::Erf, gate, up, out)?,
        Epilogue::GeluTanhMul => gelu_mul(rt, Gelu::Tanh, gate, up, out)?,
        Epilogue::SiluMul => silu_mul(rt, gate, up, out)?,
        Epilogue::Store | Epilogue::Add => {
            let why = "an MLP's epilogue must be an activation".into();
            return Err(l1_tensor::Error::BadParameter { op: "gate_up", why }.into());
        }
    }
    Ok(())
}
