//! The buffers of an EAGLE step: those of a decoder of one layer, and the two wide inputs that only a head has.

use l1_tensor::{DType, Runtime, Tensor, TensorRef};

use super::{EagleHead, EagleKind};
use crate::decoder::workspace::first;
use crate::{Result, Tap, Workspace, WorkspaceSpec};

/// Buffers of [`EagleHead::forward`], in the memory of the runtime's device. A steady step allocates nothing else.
pub struct EagleWorkspace {
    pub(super) step: Workspace,
    /// `[T, 2 H]` or `[T, 3 H]` in the activations' dtype: what `fc` reads.
    pub(super) fc_input: Tensor,
    /// EAGLE-3: `[T, 2 H]` in the activations' dtype, what attention reads. Stands in for `step.normed` there.
    pub(super) wide: Option<Tensor>,
    /// Number of logit rows of the last step that succeeded.
    pub(super) rows: usize,
}

impl EagleWorkspace {
    /// Allocates buffers for a head on a runtime.
    ///
    /// # Errors
    /// [`l1_tensor::Error::OutOfMemory`], or a device's own.
    pub fn new(rt: &Runtime, head: &EagleHead, spec: WorkspaceSpec) -> Result<Self> {
        let (t, h, act) = (spec.max_tokens, head.config.hidden, rt.activation_dtype());
        let tensor = |width: usize, dtype: DType| Tensor::zeros(&[t, width], dtype, rt.device());
        let wide = (head.kind == EagleKind::Eagle3).then(|| tensor(2 * h, act));
        Ok(Self {
            step: Workspace::with_logits(rt, &head.config, spec, head.draft_vocab)?,
            fc_input: tensor(head.fc.k(), act)?,
            wide: wide.transpose()?,
            rows: 0,
        })
    }

    /// Maximum size of a step that fits the workspace.
    pub fn spec(&self) -> WorkspaceSpec {
        self.step.spec()
    }

    /// Size of the buffers, in bytes.
    pub fn bytes(&self) -> usize {
        self.step.bytes() + self.fc_input.bytes() + self.wide.as_ref().map_or(0, Tensor::bytes)
    }

    /// Logits of the last step: f32 `[R, V_d]`, in the memory of the runtime's device.
    ///
    /// # Errors
    /// None: the rows are within the buffer.
    pub fn logits(&self) -> Result<TensorRef<'_>> {
        self.step.logits(self.rows)
    }

    /// Output rows of the head at the logit rows of the last step, which [`Hidden::Previous`](super::Hidden::Previous)
    /// continues: f32 `[R, H]`, in the memory of the runtime's device.
    ///
    /// # Errors
    /// None: the rows are within the buffer.
    pub fn hidden(&self) -> Result<TensorRef<'_>> {
        first(&self.step.rows, self.rows)
    }

    /// Rows of the last step at a tap that was requested: f32 `[T, H]` (`[R, V_d]` for logits).
    /// [`Tap::Residual`]`(0)` has the output rows of all tokens. A head has the taps [`Tap::Fused`], those of layer 0,
    /// [`Tap::Logits`], and in EAGLE-3 [`Tap::FinalNorm`].
    pub fn tapped(&self, tap: Tap) -> Option<TensorRef<'_>> {
        self.step.tapped(tap)
    }
}
