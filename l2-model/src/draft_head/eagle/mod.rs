//! EAGLE-1 and EAGLE-3: one decoder layer over pairs of a token and the target's hidden row before it.
//!
//! Row `i` of a sequence is the pair (token `i + 1`, hidden row of token `i`), at position `i`. The hidden row says
//! what the target knew, the token which of its guesses became true. With `e` the embedding of token `i + 1`:
//!
//! ```text
//! EAGLE-1   x = fc [e, h] + bias                       h [H]: the target's final norm
//!           x += attention(x)                          no input norm
//!           x += mlp(norm(x))
//!           logits = lm_head(x)                        no final norm; the target's head
//!
//! EAGLE-3   x = fc [h1, h2, h3]                        h1 to h3 [H]: residual rows of three layers of the target
//!           x += attention([norm(e), norm(x)])         q, k and v read 2 H elements
//!           x += mlp(norm(x))
//!           logits = lm_head(norm(x))                  the head's own, over its draft vocabulary
//! ```
//!
//! The next step's pair is (drafted token, `x`): the head's own output stands in for the hidden row that the target has
//! not computed. In EAGLE-3 it enters in place of `fc`'s output.

mod forward;
mod load;
mod workspace;

use std::sync::Arc;

use l1_tensor::ops::RopeTable;
use l1_tensor::{Tensor, TensorRef, Weight};

pub(super) use load::EagleFiles;
pub use workspace::EagleWorkspace;

use super::DraftHeadError;
use crate::decoder::{NormWeights, OpWeights};
use crate::{ModelConfig, Result, Tap, Workspace};

/// The generation of an [`EagleHead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EagleKind {
    /// EAGLE, and EAGLE-2, which drafts trees with the same head.
    Eagle1,
    /// EAGLE-3.
    Eagle3,
}

/// The hidden rows of a step, one for each token of the batch.
#[derive(Clone, Copy, Debug)]
pub enum Hidden<'a> {
    /// Rows of the target at each of [`EagleHead::taps`], in their order: float `[T, H]` each.
    Target(&'a [TensorRef<'a>]),
    /// Output rows of this head ([`Tap::Residual`]`(0)`): float `[T, H]`.
    Head(TensorRef<'a>),
    /// Output rows of this head at the logit rows of the workspace's previous step, in their order. It must have had
    /// as many as this step has tokens.
    Previous,
}

/// An EAGLE-1 or EAGLE-3 head for one target. Immutable, as a [`Decoder`](crate::Decoder) is.
///
/// The target reads a prompt; the head reads it after the target, one token ahead, and drafts two tokens:
///
/// ```
/// # use std::path::Path;
/// use l1_tensor::{Runtime, RuntimeOptions};
/// use l2_model::draft_head::{EagleHead, EagleWorkspace, Hidden};
/// use l2_model::{Batch, ContiguousState, ModelFiles, Workspace, WorkspaceSpec};
///
/// # let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures"));
/// let rt = Runtime::new(RuntimeOptions::cpu())?;
/// let target = ModelFiles::open(&fixtures.join("tiny-llama-untied"))?.decoder(&rt)?;
/// let head = EagleHead::open(&rt, &fixtures.join("draft-heads/eagle3"), &target)?;
///
/// let spec = WorkspaceSpec { max_tokens: 3, max_rows: 1, max_context: 16 };
/// let mut ws = Workspace::new(&rt, target.config(), spec)?;
/// let mut state = ContiguousState::new(target.config(), 1, 16, rt.activation_dtype())?;
/// let prompt = Batch {
///     tokens: &[10, 11, 12],
///     positions: &[0, 1, 2],
///     cu_seqlens_q: &[0, 3],
///     state_slots: &[0],
///     logit_rows: &[2],
///     taps: head.taps(),
///     ..Batch::default()
/// };
/// target.forward(&prompt, &mut state, &mut ws)?;
///
/// // The head has a workspace and a KV cache of its own. Say that the target's next token is 13.
/// let mut draft_ws = EagleWorkspace::new(&rt, &head, spec)?;
/// let mut draft_state = ContiguousState::new(head.config(), 1, 16, rt.activation_dtype())?;
/// let pairs = Batch { tokens: &[11, 12, 13], taps: &[], ..prompt };
/// let hidden = head.hidden_of(&ws)?;
/// let logits = head.forward(&pairs, Hidden::Target(&hidden), &mut draft_state, &mut draft_ws)?;
/// assert_eq!(logits.dims(), [1, head.draft_vocab()]);
/// let likeliest = |logits: Vec<f32>| (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
/// let first = head.target_id(likeliest(logits.to_vec_f32()?).unwrap() as u32).unwrap();
///
/// let draft = Batch {
///     tokens: &[first],
///     positions: &[3],
///     cu_seqlens_q: &[0, 1],
///     logit_rows: &[0],
///     ..pairs
/// };
/// let logits = head.forward(&draft, Hidden::Previous, &mut draft_state, &mut draft_ws)?;
/// let second = head.target_id(likeliest(logits.to_vec_f32()?).unwrap() as u32).unwrap();
/// # assert!((second as usize) < target.config().vocab);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EagleHead {
    kind: EagleKind,
    /// One layer, for the sequence state and the buffers.
    config: ModelConfig,
    draft_vocab: usize,
    /// `[V_d]`: the target's token of each draft token, where the numbers differ.
    targets: Option<Vec<u32>>,
    taps: Vec<Tap>,
    embedding: Arc<Weight>,
    fc: Weight,
    fc_bias: Option<Tensor>,
    /// EAGLE-3.
    input_norms: Option<InputNorms>,
    attention: OpWeights,
    mlp_norm: NormWeights,
    mlp: OpWeights,
    /// EAGLE-3.
    final_norm: Option<NormWeights>,
    lm_head: Arc<Weight>,
    rope: RopeTable,
    /// Whether embedding and output projection are the target's.
    shared: [bool; 2],
}

/// What EAGLE-3's attention reads: both halves of its input are normed on their own.
struct InputNorms {
    embedding: NormWeights,
    hidden: NormWeights,
    /// The stream begins with the normed row, not with the row.
    before_residual: bool,
}

impl EagleHead {
    /// Generation of the head.
    pub fn kind(&self) -> EagleKind {
        self.kind
    }

    /// The head as a model of one layer: what a [`SequenceState`](crate::SequenceState) for its keys and values is made
    /// for. `vocab` is the target's, `max_context` too.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Taps of the target whose rows the head reads, in the order of [`Hidden::Target`].
    pub fn taps(&self) -> &[Tap] {
        &self.taps
    }

    /// Number of tokens that the head can propose: the width of its logits.
    pub fn draft_vocab(&self) -> usize {
        self.draft_vocab
    }

    /// Token of the target for an index of the head's logits; `None` past the draft vocabulary.
    pub fn target_id(&self, draft: u32) -> Option<u32> {
        match &self.targets {
            Some(targets) => targets.get(draft as usize).copied(),
            None => Some(draft).filter(|id| (*id as usize) < self.draft_vocab),
        }
    }

    /// `[V_d]`: token of the target for each index of the head's logits; `None` if they are the same.
    pub fn target_ids(&self) -> Option<&[u32]> {
        self.targets.as_deref()
    }

    /// Size of the head's own weights in memory, in bytes, without what it shares with the target.
    pub fn weight_bytes(&self) -> usize {
        let own = |weight: &Weight, shared: bool| if shared { 0 } else { weight.bytes() };
        let [embedding, lm_head] = self.shared;
        let ends = own(&self.embedding, embedding) + own(&self.lm_head, lm_head);
        ends + self.fc.bytes() + self.attention.bytes() + self.mlp.bytes()
    }

    /// Rows of the target's last step at [`EagleHead::taps`], for [`Hidden::Target`].
    ///
    /// The vector is an allocation; a caller that must not allocate asks [`Workspace::tapped`] itself.
    ///
    /// # Errors
    /// [`DraftHeadError::NoTap`] if the step was run without them.
    pub fn hidden_of<'w>(&self, target: &'w Workspace) -> Result<Vec<TensorRef<'w>>> {
        let rows =
            |tap: &Tap| target.tapped(*tap).ok_or(DraftHeadError::NoTap { tap: *tap }.into());
        self.taps.iter().map(rows).collect()
    }
}
