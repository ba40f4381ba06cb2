//! The decoder: one forward pass for every family, driven by the config.
//!
//! ```text
//! residual = embedding[tokens]                                     [T, H]
//! for each layer, for each branch:
//!     residual += scale * op(norm(residual))
//! logits = lm_head(final_norm(residual[logit_rows]))               [R, V]
//! ```
//!
//! Only the rows whose logits are wanted pay for the output projection: it is the largest matrix
//! of a small model, and a prompt needs one row of it.
//!
//! A step has three parts, and [`Decoder::forward`] is one after the other:
//!
//! ```text
//! stage    check the batch, let the state plan, bring ids, positions and tables to the device
//! run      every op, in order; on a device nothing is read but what was staged, and nothing waits
//! finish   the tokens are part of their sequences; the logits
//! ```
//!
//! On a CPU `stage` copies nothing. On a device the cut is what lets a step be recorded once and replayed
//! ([`Graph::capture`](l1_tensor::cuda::Graph::capture) around `run`): which launches there are depends on
//! shapes alone, all else is numbers at fixed addresses.

pub(crate) mod load;
mod matrices;
mod random;
mod staged;
mod tap;
pub(crate) mod workspace;

use std::sync::Arc;

use l1_tensor::ops::{
    self, AttentionParams, Epilogue, RopeTable, add_in_place, embedding, gather_rows, layer_norm,
    linear, rms_norm, rms_norm_in_place, rope, scale,
};
use l1_tensor::{Runtime, Tensor, TensorMut, TensorRef, Weight};

pub use matrices::Matrix;
pub use tap::Tap;
pub use workspace::{Workspace, WorkspaceSpec};

use crate::adapter::{self, Projection};
use crate::batch::BatchError;
use crate::config::{AttentionConfig, BranchMode, Norm};
use crate::{Batch, ModelConfig, Result, SequenceState};
use workspace::{first, first_mut, record};

/// Weights of a decoder-only transformer, ready to run. Immutable: one decoder serves any number of workspaces.
///
/// One step over a prompt of three tokens, computing the logits of the last one:
///
/// ```
/// # use std::path::Path;
/// use l1_tensor::{Runtime, RuntimeOptions};
/// use l2_model::{Batch, ContiguousState, ModelFiles, SequenceState, Workspace, WorkspaceSpec};
///
/// # let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama"));
/// let rt = Runtime::new(RuntimeOptions::cpu())?;
/// let decoder = ModelFiles::open(path)?.decoder(&rt)?;
/// let config = decoder.config();
/// let spec = WorkspaceSpec { max_tokens: 3, max_rows: 1, max_context: 16 };
/// let mut workspace = Workspace::new(&rt, config, spec)?;
/// let mut state = ContiguousState::new(config, 1, 16, rt.activation_dtype())?;
/// let batch = Batch {
///     tokens: &[384, 10, 11],
///     positions: &[0, 1, 2],
///     cu_seqlens_q: &[0, 3],
///     state_slots: &[0],
///     logit_rows: &[2],
///     ..Batch::default()
/// };
/// let logits = decoder.forward(&batch, &mut state, &mut workspace)?;
/// assert_eq!(logits.dims(), [1, config.vocab]);
/// assert_eq!(state.len(0), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Decoder {
    config: ModelConfig,
    pub(crate) embedding: Arc<Weight>,
    layers: Vec<Layer>,
    final_norm: NormWeights,
    pub(crate) lm_head: Arc<Weight>,
    rope: RopeTable,
}

struct Layer {
    branches: Vec<Branch>,
}

struct Branch {
    norm: NormWeights,
    op: OpWeights,
    mode: BranchMode,
    scale: f32,
}

pub(crate) struct NormWeights {
    kind: Norm,
    weight: Tensor,
    bias: Option<Tensor>,
}

// A model has a few dozen of these; the difference in size costs nothing.
#[allow(clippy::large_enum_variant)]
pub(crate) enum OpWeights {
    Attention(Attention),
    Mlp(Mlp),
}

/// q, k and v are one matrix of `(H_q + 2 H_kv) D` rows: the input is read once.
pub(crate) struct Attention {
    config: AttentionConfig,
    qkv: Weight,
    qkv_bias: Option<Tensor>,
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    o: Weight,
    o_bias: Option<Tensor>,
}

/// Gate and up are one matrix whose panels hold both, so that the product of the two is taken
/// before either leaves the registers.
pub(crate) struct Mlp {
    pub(crate) gate_up: Weight,
    pub(crate) gate_up_bias: Option<Tensor>,
    pub(crate) activation: Epilogue,
    pub(crate) intermediate: usize,
    down: Weight,
    down_bias: Option<Tensor>,
}

impl Decoder {
    /// Configuration of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Runs one step and returns the logits of `batch.logit_rows`: f32 `[R, V]`, in the workspace, on the
    /// device it was made for.
    ///
    /// The batch's tokens become part of their sequences when the step succeeds, and only then.
    ///
    /// # Errors
    /// [`BatchError`] for a batch that is malformed, too large for the workspace or too long for
    /// the state or the model's context; whatever the ops report.
    pub fn forward<'w>(
        &self,
        batch: &Batch,
        state: &mut dyn SequenceState,
        ws: &'w mut Workspace,
    ) -> Result<TensorRef<'w>> {
        self.stage(batch, state, ws)?;
        self.run(batch, state, ws)?;
        self.finish(batch, state, ws)
    }

    /// First part of a step: everything that needs the host. Checks the batch, begins the step of the state,
    /// allocates memory for taps, and enqueues the copy of the step's small arrays to the
    /// device, if the workspace is on one.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn stage(
        &self,
        batch: &Batch,
        state: &mut dyn SequenceState,
        ws: &mut Workspace,
    ) -> Result<()> {
        stage(&self.config, batch, state, ws)
    }

    /// Second part of a step: every op of the step that was staged last.
    ///
    /// On a device this only enqueues. What is enqueued depends on the lengths of the batch's slices and on
    /// the geometry that the state was staged with, and reads ids, positions and tables where they were
    /// staged. So it can be recorded by [`Graph::capture`](l1_tensor::cuda::Graph::capture) and replayed
    /// for other batches of the same shape, each staged before.
    ///
    /// # Errors
    /// Whatever the ops report.
    pub fn run(
        &self,
        batch: &Batch,
        state: &mut dyn SequenceState,
        ws: &mut Workspace,
    ) -> Result<()> {
        let (t, r) = (batch.tokens.len(), batch.logit_rows.len());
        // exercise l2.forward
        let rt = ws.rt.clone();
        let residual = first_mut(&mut ws.residual, t)?;
        embedding(&rt, &self.embedding, ws.staged.tokens(batch)?, residual)?;
        record(&mut ws.taps, &rt, Tap::Embed, first(&ws.residual, t)?)?;
        let (cos, sin) = (first_mut(&mut ws.cos, t)?, first_mut(&mut ws.sin, t)?);
        self.rope.angles(&rt, ws.staged.positions(batch)?, cos, sin)?;
        for (i, layer) in self.layers.iter().enumerate() {
            self.layer(&rt, i, layer, batch, state, ws)?;
            record(&mut ws.taps, &rt, Tap::Residual(i), first(&ws.residual, t)?)?;
        }
        if ws.wants(Tap::FinalNorm) {
            let out = first_mut(&mut ws.branch, t)?;
            self.final_norm.apply(&rt, first(&ws.residual, t)?, out)?;
            record(&mut ws.taps, &rt, Tap::FinalNorm, first(&ws.branch, t)?)?;
        }
        let rows = first_mut(&mut ws.rows, r)?;
        gather_rows(&rt, first(&ws.residual, t)?, ws.staged.logit_rows(batch)?, rows)?;
        self.final_norm.apply(&rt, first(&ws.rows, r)?, first_mut(&mut ws.normed_rows, r)?)?;
        let logits = first_mut(&mut ws.logits, r)?;
        linear(&rt, first(&ws.normed_rows, r)?, &self.lm_head, None, Epilogue::Store, logits)?;
        record(&mut ws.taps, &rt, Tap::Logits, first(&ws.logits, r)?)
        // end of exercise
    }

    /// Last part of a step: makes the batch's tokens part of their sequences and returns the logits of
    /// `batch.logit_rows`: f32 `[R, V]`, in the workspace.
    ///
    /// On a device neither has been computed yet when this returns; reading the logits waits for the device.
    ///
    /// # Errors
    /// [`Error::Tensor`](crate::Error::Tensor) if the workspace has fewer rows: it is not the one of [`Decoder::run`].
    pub fn finish<'w>(
        &self,
        batch: &Batch,
        state: &mut dyn SequenceState,
        ws: &'w Workspace,
    ) -> Result<TensorRef<'w>> {
        // exercise l2.forward
        state.commit(batch);
        ws.logits(batch.logit_rows.len())
        // end of exercise
    }

    fn layer(
        &self,
        rt: &Runtime,
        i: usize,
        layer: &Layer,
        batch: &Batch,
        state: &mut dyn SequenceState,
        ws: &mut Workspace,
    ) -> Result<()> {
        let t = batch.tokens.len();
        // exercise l2.forward
        if layer.branches.iter().any(|b| b.mode == BranchMode::Parallel) {
            ops::convert(rt, first(&ws.residual, t)?, first_mut(&mut ws.layer_input, t)?)?;
        }
        for branch in &layer.branches {
            let input = match branch.mode {
                BranchMode::Sequential => &ws.residual,
                BranchMode::Parallel => &ws.layer_input,
            };
            branch.norm.apply(rt, first(input, t)?, first_mut(&mut ws.normed, t)?)?;
            Self::branch(rt, i, &branch.op, branch.scale, batch, state, ws)?;
        }
        Ok(())
        // end of exercise
    }

    /// Adds a branch to the stream: `residual += factor * op(normed)`, where `normed` holds the branch's input after
    /// its norm. A draft head makes that input in its own way, and runs its layer through here too.
    pub(crate) fn branch(
        rt: &Runtime,
        i: usize,
        op: &OpWeights,
        factor: f32,
        batch: &Batch,
        state: &mut dyn SequenceState,
        ws: &mut Workspace,
    ) -> Result<()> {
        let t = batch.tokens.len();
        // exercise l2.forward
        let (tap, last) = match op {
            OpWeights::Attention(_) => (Tap::Attn(i), Projection::O),
            OpWeights::Mlp(_) => (Tap::Mlp(i), Projection::Down),
        };
        // Usually the last matmul adds into the stream by itself. A branch that is scaled or
        // looked at needs a place of its own first; the bits are the same. So does one that an adapter
        // changes: its bits would differ between the two ways.
        let adapted = ws.adapters.change(batch, i, &[last]);
        let apart = factor != 1.0 || ws.wants(tap) || adapted;
        let epilogue = if apart { Epilogue::Store } else { Epilogue::Add };
        match op {
            OpWeights::Attention(a) => {
                Self::attention(rt, i, a, batch, state, ws)?;
                let width = a.config.q_heads * a.config.head_dim;
                let x = first(&ws.attended, t)?.narrow(1, 0, width)?;
                let out = if apart { &mut ws.branch } else { &mut ws.residual };
                linear(rt, x, &a.o, view(&a.o_bias), epilogue, first_mut(out, t)?)?;
                if adapted {
                    let out = first_mut(&mut ws.branch, t)?;
                    ws.adapters.add(rt, batch, (i, Projection::O), 0, x, out)?;
                }
            }
            OpWeights::Mlp(m) => {
                adapter::apply::gate_up(rt, i, m, batch, ws)?;
                let x = first(&ws.inner, t)?.narrow(1, 0, m.intermediate)?;
                let out = if apart { &mut ws.branch } else { &mut ws.residual };
                linear(rt, x, &m.down, view(&m.down_bias), epilogue, first_mut(out, t)?)?;
                if adapted {
                    let out = first_mut(&mut ws.branch, t)?;
                    ws.adapters.add(rt, batch, (i, Projection::Down), 0, x, out)?;
                }
            }
        }
        if apart {
            record(&mut ws.taps, rt, tap, first(&ws.branch, t)?)?;
            if factor != 1.0 {
                scale(rt, first_mut(&mut ws.branch, t)?, factor)?;
            }
            add_in_place(rt, first_mut(&mut ws.residual, t)?, first(&ws.branch, t)?)?;
        }
        Ok(())
        // end of exercise
    }

    /// From `normed` to `attended`: project, norm the heads, turn them, attend.
    fn attention(
        rt: &Runtime,
        layer: usize,
        a: &Attention,
        batch: &Batch,
        state: &mut dyn SequenceState,
        ws: &mut Workspace,
    ) -> Result<()> {
        let t = batch.tokens.len();
        let AttentionConfig { q_heads, kv_heads, head_dim: d, .. } = a.config;
        // exercise l2.attention
        let width = (q_heads + 2 * kv_heads) * d;
        let qkv = first_mut(&mut ws.qkv, t)?.narrow(1, 0, width)?;
        linear(rt, first(&ws.normed, t)?, &a.qkv, view(&a.qkv_bias), Epilogue::Store, qkv)?;
        Self::adapt_qkv(rt, layer, a, batch, ws)?;
        // One buffer, three views of it: q, then k, then v.
        let heads = |from: usize, n: usize, buffer: TensorMut| -> Result<()> {
            let mut x = buffer.narrow(1, from * d, n * d)?.reshape(&[t, n, d])?;
            let norm = if from == 0 { &a.q_norm } else { &a.k_norm };
            if let (Some(weight), Some(eps)) = (norm, a.config.qk_norm) {
                rms_norm_in_place(rt, x.reborrow(), weight.view(), eps)?;
            }
            Ok(rope(rt, x, first(&ws.cos, t)?, first(&ws.sin, t)?)?)
        };
        heads(0, q_heads, ws.qkv.view_mut().narrow(0, 0, t)?)?;
        heads(q_heads, kv_heads, ws.qkv.view_mut().narrow(0, 0, t)?)?;
        let part = |from: usize, n: usize| -> Result<TensorRef> {
            Ok(first(&ws.qkv, t)?.narrow(1, from * d, n * d)?.reshape(&[t, n, d])?)
        };
        state.attend(
            rt,
            layer,
            batch,
            part(0, q_heads)?,
            part(q_heads, kv_heads)?,
            part(q_heads + kv_heads, kv_heads)?,
            AttentionParams { scale: 1.0 / (d as f32).sqrt(), window: a.config.window },
            &mut ws.attention,
            first_mut(&mut ws.attended, t)?.narrow(1, 0, q_heads * d)?,
        )
        // end of exercise
    }

    /// Adds the side terms of q, k and v to the rows of adapters.
    fn adapt_qkv(
        rt: &Runtime,
        layer: usize,
        a: &Attention,
        batch: &Batch,
        ws: &mut Workspace,
    ) -> Result<()> {
        let t = batch.tokens.len();
        let AttentionConfig { q_heads, kv_heads, head_dim: d, .. } = a.config;
        let parts =
            [(Projection::Q, q_heads), (Projection::K, kv_heads), (Projection::V, kv_heads)];
        let mut from = 0;
        for (projection, heads) in parts {
            let (x, qkv) = (first(&ws.normed, t)?, first_mut(&mut ws.qkv, t)?);
            let part = qkv.narrow(1, from * d, heads * d)?;
            ws.adapters.add(rt, batch, (layer, projection), 0, x, part)?;
            from += heads;
        }
        Ok(())
    }
}

/// First part of a step, of the decoder as of a draft head with this config: see [`Decoder::stage`].
pub(crate) fn stage(
    config: &ModelConfig,
    batch: &Batch,
    state: &mut dyn SequenceState,
    ws: &mut Workspace,
) -> Result<()> {
    check(config, batch, ws)?;
    state.begin(batch)?;
    ws.prepare_taps(batch.taps, batch.tokens.len(), batch.logit_rows.len())?;
    ws.staged.stage(batch)?;
    state.stage(&ws.rt, batch)
}

fn check(config: &ModelConfig, batch: &Batch, ws: &Workspace) -> Result<()> {
    batch.check(config.vocab)?;
    ws.adapters.check(batch)?;
    let (tokens, max) = (batch.tokens.len(), ws.spec.max_tokens);
    if tokens > max {
        return Err(BatchError::TooManyTokens { tokens, max }.into());
    }
    if batch.logit_rows.len() > ws.spec.max_rows {
        let (rows, max) = (batch.logit_rows.len(), ws.spec.max_rows);
        let why = format!("logits of {rows} rows are wanted, but the workspace holds {max}");
        return Err(BatchError::Malformed(why).into());
    }
    let capacity = config.max_context.min(ws.spec.max_context);
    match batch.positions.iter().find(|p| **p < 0 || **p as usize >= capacity) {
        Some(p) if *p < 0 => Err(BatchError::Malformed(format!("position {p}")).into()),
        Some(p) => Err(BatchError::TooLong { len: *p as usize + 1, capacity }.into()),
        None => Ok(()),
    }
}

impl OpWeights {
    /// Size of the matrices in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            OpWeights::Attention(a) => a.qkv.bytes() + a.o.bytes(),
            OpWeights::Mlp(m) => m.gate_up.bytes() + m.down.bytes(),
        }
    }
}

impl NormWeights {
    pub(crate) fn apply(&self, rt: &Runtime, x: TensorRef, out: TensorMut) -> Result<()> {
        match self.kind {
            Norm::Rms { eps } => rms_norm(rt, x, self.weight.view(), eps, out)?,
            Norm::Layer { eps } => {
                layer_norm(rt, x, self.weight.view(), view(&self.bias), eps, out)?;
            }
        }
        Ok(())
    }
}

pub(crate) fn view(t: &Option<Tensor>) -> Option<TensorRef<'_>> {
    t.as_ref().map(Tensor::view)
}

#[cfg(test)]
mod tests;
