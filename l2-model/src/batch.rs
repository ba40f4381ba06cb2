//! The batch of one forward pass: tokens of sequences. The model does not know requests.

use crate::Tap;

/// Tokens of one step, sequence after sequence. The caller owns all slices.
///
/// A sequence takes part with one token or with many: decode and prefill are the same thing here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// `[T]`: token ids.
    pub tokens: &'a [u32],
    /// `[T]`: position of each token in its sequence, from 0.
    pub positions: &'a [i32],
    /// `[S + 1]`: sequence `s` owns tokens `cu_seqlens_q[s]..cu_seqlens_q[s + 1]`.
    pub cu_seqlens_q: &'a [i32],
    /// `[S]`: slot of each sequence in the [`SequenceState`](crate::SequenceState).
    pub state_slots: &'a [u32],
    /// `[S]`: index of the LoRA adapter of each sequence, or -1 for none; empty if no sequence has one. See
    /// [`Workspace::set_adapter`](crate::Workspace::set_adapter).
    pub adapters: &'a [i32],
    /// `[R]`: tokens whose logits are computed, as indices into the batch.
    pub logit_rows: &'a [u32],
    /// Hidden rows to keep in the workspace: see [`Workspace::tapped`](crate::Workspace::tapped).
    pub taps: &'a [Tap],
}

impl Batch<'_> {
    /// Number of sequences, S.
    pub fn sequences(&self) -> usize {
        self.state_slots.len()
    }

    /// Checks that the lengths of the slices agree and that indices are in range.
    ///
    /// # Errors
    /// [`BatchError`], which names the field.
    pub fn check(&self, vocab: usize) -> Result<(), BatchError> {
        let bad = |why: String| Err(BatchError::Malformed(why));
        let (t, s) = (self.tokens.len(), self.sequences());
        if self.positions.len() != t {
            return bad(format!("{t} tokens but {} positions", self.positions.len()));
        }
        if self.cu_seqlens_q.len() != s + 1 {
            return bad(format!("{s} sequences need {} offsets", s + 1));
        }
        let ends_right =
            self.cu_seqlens_q[0] == 0 && usize::try_from(self.cu_seqlens_q[s]) == Ok(t);
        if !ends_right || !self.cu_seqlens_q.is_sorted() {
            return bad(format!("cu_seqlens_q must rise from 0 to the {t} tokens"));
        }
        if let Some(row) = self.logit_rows.iter().find(|r| **r as usize >= t) {
            return bad(format!("logit row {row} of {t} tokens"));
        }
        if !self.adapters.is_empty() && self.adapters.len() != s {
            return bad(format!("{s} sequences but {} adapters", self.adapters.len()));
        }
        match self.tokens.iter().find(|id| **id as usize >= vocab) {
            Some(&id) => Err(BatchError::TokenOutOfRange { id, vocab }),
            None => Ok(()),
        }
    }
}

/// A batch that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The token id is not below the vocabulary size.
    #[error("token id {id} is out of range: this model has {vocab} tokens (0 to {})", vocab - 1)]
    TokenOutOfRange {
        /// Token id.
        id: u32,
        /// Number of rows of the embedding.
        vocab: usize,
    },
    /// The step has more tokens than the workspace holds.
    #[error("{tokens} tokens in one step, but the workspace holds {max}: split the step")]
    TooManyTokens {
        /// Number of tokens in the batch.
        tokens: usize,
        /// Maximum number of tokens.
        max: usize,
    },
    /// The sequence is longer than its state or the model's context.
    #[error(
        "a sequence of {len} tokens does not fit {capacity}: shorten the prompt, ask for fewer tokens or make a larger \
         state"
    )]
    TooLong {
        /// Number of tokens of the sequence after this step.
        len: usize,
        /// Maximum number of tokens.
        capacity: usize,
    },
    /// The memory that sequences share has no room for this step. The step took nothing.
    #[error("no room for this step: {0}")]
    Full(String),
    /// Fields that contradict each other.
    #[error("malformed batch: {0}")]
    Malformed(String),
}
