//! A step's rows of logits, each with its own request's parameters, to one token each.

use l1_tensor::{Runtime, TensorMut, TensorRef};

use crate::error::{Result, RowError};
use crate::logprobs::TokenLogprobs;
use crate::{Distribution, DrawKey, History, SamplingParams, TokenMask};

/// Logits of a step: f32 `[S, V]`, a row for each token that is to be chosen.
pub enum Logits<'a> {
    /// To be read only. Rows that must be changed are copied first.
    Shared(TensorRef<'a>),
    /// Handed over: their contents afterwards are of no use to anybody, and no copy is made.
    Owned(TensorMut<'a>),
}

/// What one row of logits is about.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// What its request asks for.
    pub params: &'a SamplingParams,
    /// What its request has seen.
    pub history: &'a History,
    /// Tokens that would end its answer: not chosen before `min_tokens`.
    pub ends: &'a [u32],
    /// What its guide allows.
    pub mask: Option<&'a TokenMask>,
    /// Its random numbers.
    pub key: DrawKey,
}

/// What became of one row.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// The token.
    pub token: Result<u32, RowError>,
    /// What was asked about it (its buffer is reused from step to step).
    pub logprobs: Option<TokenLogprobs>,
}

impl Default for Sampled {
    /// Of a row that nothing was chosen from yet.
    fn default() -> Self {
        Self { token: Err(RowError::NothingLeft), logprobs: None }
    }
}

/// Chooses tokens for the rows of a step. Owns the memory that takes, one piece for each thread; a steady step allocates
/// nothing.
pub struct Sampler {}

impl Sampler {
    /// A sampler for rows of `vocab` logits.
    pub fn new(rt: &Runtime, vocab: usize) -> Self {
        let _ = (rt, vocab);
        todo!()
    }

    /// Choose a token for every row, rows in parallel. Row `i` of `logits` belongs to `rows[i]`, its outcome is
    /// `out[i]`, and nothing about it depends on the others.
    ///
    /// # Errors
    /// Only for lengths and types that do not fit. What is wrong with a row is its own outcome.
    pub fn sample(
        &mut self,
        logits: Logits<'_>,
        rows: &[Row<'_>],
        out: &mut [Sampled],
    ) -> Result<()> {
        let _ = (logits, rows, out);
        todo!()
    }

    /// The distribution that [`Sampler::sample`] would draw one row's token from.
    ///
    /// # Errors
    /// [`RowError`] when there is none.
    pub fn distribution(&mut self, logits: &[f32], row: &Row<'_>) -> Result<Distribution> {
        let _ = (logits, row);
        todo!()
    }
}
