//! The buffers of a forward pass: made once, for the largest step there will be.

use l1_tensor::ops::AttentionScratch;
use l1_tensor::{DType, Runtime, Tensor, TensorMut, TensorRef};

use super::Tap;
use super::staged::Staged;
use crate::adapter::apply::Adapters;
use crate::config::Op;
use crate::{ModelConfig, Result};

/// Maximum size of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceSpec {
    /// Maximum number of tokens in one step, all sequences together.
    pub max_tokens: usize,
    /// Maximum number of rows of logits in one step.
    pub max_rows: usize,
    /// Maximum number of keys of a sequence.
    pub max_context: usize,
}

/// Buffers of [`Decoder::forward`](super::Decoder::forward), in the memory of the runtime's device. A
/// steady step allocates nothing else.
pub struct Workspace {
    pub(crate) spec: WorkspaceSpec,
    /// Configuration of the model that the buffers were made for.
    pub(crate) model: ModelConfig,
    pub(crate) rt: Runtime,
    /// Ids, positions and rows of a step, where the ops read them.
    pub(crate) staged: Staged,
    /// f32 `[T, H]`: the residual stream.
    pub(crate) residual: Tensor,
    /// f32 `[T, H]`: the stream as a layer found it, for parallel branches.
    pub(crate) layer_input: Tensor,
    /// f32 `[T, H]`: a branch's output, where it is not added at once.
    pub(crate) branch: Tensor,
    /// `[T, H]` in the activations' dtype: a norm's output.
    pub(crate) normed: Tensor,
    /// f32 `[T, (H_q + 2 H_kv) D]`.
    pub(crate) qkv: Tensor,
    /// `[T, H_q D]` in the activations' dtype.
    pub(crate) attended: Tensor,
    /// `[T, I]` in the activations' dtype.
    pub(crate) inner: Tensor,
    /// f32 `[T, rotary_dim / 2]` each.
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
    /// f32 `[R, H]`: the residual rows whose logits are wanted.
    pub(crate) rows: Tensor,
    /// `[R, H]` in the activations' dtype.
    pub(crate) normed_rows: Tensor,
    /// f32 `[R, V]`.
    pub(crate) logits: Tensor,
    pub(crate) attention: AttentionScratch,
    pub(crate) adapters: Adapters,
    /// f32 `[rows, 2 I]`: gates and ups of a layer whose gate or up an adapter changes. `None`: no adapters are allowed.
    pub(crate) gate_up: Option<Tensor>,
    pub(crate) taps: Vec<(Tap, usize, Tensor)>,
}

impl Workspace {
    /// Allocates buffers for a model on a runtime.
    ///
    /// # Errors
    /// [`l1_tensor::Error::OutOfMemory`], or a device's own.
    pub fn new(rt: &Runtime, config: &ModelConfig, spec: WorkspaceSpec) -> Result<Self> {
        Self::with_logits(rt, config, spec, config.vocab)
    }

    /// As [`Workspace::new`], with rows of logits of another width than the embedding's: a draft head may propose
    /// only some of the tokens that it reads.
    pub(crate) fn with_logits(
        rt: &Runtime,
        config: &ModelConfig,
        spec: WorkspaceSpec,
        vocab: usize,
    ) -> Result<Self> {
        let act = rt.activation_dtype();
        let tensor =
            |rows: usize, width: usize, dtype| Tensor::zeros(&[rows, width], dtype, rt.device());
        let (t, r, h) = (spec.max_tokens, spec.max_rows, config.hidden);
        let ops = || config.layers.iter().flat_map(|l| &l.branches).map(|b| &b.op);
        let (mut qkv, mut attended, mut inner) = (0, 0, 0);
        let (mut q_heads, mut head_dim) = (1, 1);
        for op in ops() {
            match op {
                Op::Attention(a) => {
                    qkv = qkv.max((a.q_heads + 2 * a.kv_heads) * a.head_dim);
                    attended = attended.max(a.q_heads * a.head_dim);
                    head_dim = head_dim.max(a.head_dim);
                    q_heads = q_heads.max(a.q_heads);
                }
                Op::Mlp(m) => inner = inner.max(m.intermediate),
            }
        }
        Ok(Self {
            spec,
            model: config.clone(),
            rt: rt.clone(),
            staged: Staged::new(rt, t, r)?,
            residual: tensor(t, h, DType::F32)?,
            layer_input: tensor(t, h, DType::F32)?,
            branch: tensor(t, h, DType::F32)?,
            normed: tensor(t, h, act)?,
            qkv: tensor(t, qkv, DType::F32)?,
            attended: tensor(t, attended, act)?,
            inner: tensor(t, inner, act)?,
            cos: tensor(t, config.rope.rotary_dim / 2, DType::F32)?,
            sin: tensor(t, config.rope.rotary_dim / 2, DType::F32)?,
            rows: tensor(r, h, DType::F32)?,
            normed_rows: tensor(r, h, act)?,
            logits: tensor(r, vocab, DType::F32)?,
            attention: AttentionScratch::new(rt, t, spec.max_context, q_heads, head_dim)?,
            adapters: Adapters::default(),
            gate_up: None,
            taps: Vec::new(),
        })
    }

    /// Maximum size of a step that fits the workspace.
    pub fn spec(&self) -> WorkspaceSpec {
        self.spec
    }

    /// Runtime of the workspace.
    pub fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// Size of the buffers, in bytes: the memory that activations need.
    pub fn bytes(&self) -> usize {
        let always = [
            &self.residual,
            &self.layer_input,
            &self.branch,
            &self.normed,
            &self.qkv,
            &self.attended,
            &self.inner,
            &self.cos,
            &self.sin,
            &self.rows,
            &self.normed_rows,
            &self.logits,
        ];
        let tapped = self.taps.iter().map(|(.., buffer)| buffer);
        let tensors = always.into_iter().chain(&self.gate_up).chain(tapped);
        tensors.map(Tensor::bytes).sum::<usize>() + self.adapters.bytes() + self.attention.bytes()
    }

    /// First `rows` rows of logits of the last step: f32 `[rows, V]`, in the memory of the runtime's
    /// device.
    ///
    /// # Errors
    /// [`l1_tensor::Error::OutOfRange`] beyond `max_rows`.
    pub fn logits(&self, rows: usize) -> Result<TensorRef<'_>> {
        first(&self.logits, rows)
    }

    /// Rows of the last step at a tap that was requested: f32 `[T, H]` (`[R, V]` for logits), in the
    /// memory of the runtime's device. [`TensorRef::to_vec_f32`] brings them to the host from anywhere.
    pub fn tapped(&self, tap: Tap) -> Option<TensorRef<'_>> {
        let (_, n, t) = self.taps.iter().find(|(at, ..)| *at == tap)?;
        t.view().narrow(0, 0, *n).ok()
    }

    /// Forget old taps and make buffers for those of this step. Buffers are kept from step to
    /// step as long as the same taps are asked for.
    pub(crate) fn prepare_taps(&mut self, taps: &[Tap], tokens: usize, rows: usize) -> Result<()> {
        if !self.taps.iter().map(|(tap, ..)| tap).eq(taps) {
            self.taps.clear();
            for tap in taps {
                let like = if *tap == Tap::Logits { &self.logits } else { &self.residual };
                let buffer = Tensor::zeros(like.dims(), DType::F32, self.rt.device())?;
                self.taps.push((*tap, 0, buffer));
            }
        }
        for (tap, n, _) in &mut self.taps {
            *n = if *tap == Tap::Logits { rows } else { tokens };
        }
        Ok(())
    }

    pub(crate) fn wants(&self, tap: Tap) -> bool {
        self.taps.iter().any(|(at, ..)| *at == tap)
    }
}

/// The first `n` rows of a buffer.
pub(crate) fn first(t: &Tensor, n: usize) -> Result<TensorRef<'_>> {
    Ok(t.view().narrow(0, 0, n)?)
}

/// The first `n` rows of a buffer, to write.
pub(crate) fn first_mut(t: &mut Tensor, n: usize) -> Result<TensorMut<'_>> {
    Ok(t.view_mut().narrow(0, 0, n)?)
}

/// Copy rows into the buffer of a tap, if it is wanted. Dtypes must be f32.
pub(crate) fn record(
    taps: &mut [(Tap, usize, Tensor)],
    rt: &Runtime,
    tap: Tap,
    rows: TensorRef,
) -> Result<()> {
    if let Some((_, n, buffer)) = taps.iter_mut().find(|(at, ..)| *at == tap) {
        l1_tensor::ops::convert(rt, rows, first_mut(buffer, *n)?)?;
    }
    Ok(())
}
