//! How many of a draft's tokens the model would have drawn itself.
//!
//! (Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023; Chen et al.,
//! "Accelerating Large Language Model Decoding with Speculative Sampling", 2023.)

use l1_tensor::TensorRef;

use crate::error::{Result, RowError};
use crate::sampler::Row;
use crate::{History, Sampler, TokenMask};

/// Where a draft's tokens come from.
#[derive(Clone, Copy)]
pub enum Draft<'a> {
    /// Chosen without chance (a lookup, an n-gram, a greedy model): all probability was on the token.
    Certain,
    /// Drawn by a smaller model from these logits, f32 `[k, V]`, with the request's own parameters.
    Logits(TensorRef<'a>),
}

/// One sequence's draft, to be judged.
pub struct Proposal<'a> {
    /// `[k]`: the proposed tokens.
    pub tokens: &'a [u32],
    /// Where they come from.
    pub draft: Draft<'a>,
    /// The request, at the position of the first proposed token. Its history holds none of the draft.
    pub row: Row<'a>,
    /// `[k + 1]`: what the guide allows at each position, given the tokens before; empty without a guide. (Fewer are
    /// enough when the guide refuses a draft's token: one more than it accepted.)
    pub masks: &'a [TokenMask],
}

/// What became of a draft.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// How many of its tokens stand, from the first on.
    pub accepted: usize,
    /// The token behind them: in place of the first rejected one, or the bonus.
    pub token: u32,
}

impl Sampler {
    /// Judge drafts. `logits` f32 `[sum of (k + 1), V]`: the model's rows for each proposal, one more than it has tokens.
    ///
    /// # Errors
    /// Lengths that do not fit. A row without tokens is that proposal's own outcome.
    pub fn verify(
        &mut self,
        logits: TensorRef<'_>,
        proposals: &[Proposal<'_>],
        out: &mut Vec<Result<Verdict, RowError>>,
    ) -> Result<()> {
        let _ = (logits, proposals, out, History::default());
        todo!()
    }
}
