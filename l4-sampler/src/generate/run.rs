//! What a request decides about each of its answers' tokens, the same in every step.

use l1_tensor::cpu::Isa;

use super::Request;
use super::answer::Answer;
use crate::logprobs::{LogprobsOf, LogprobsScratch, raw_into};
use crate::{Result, Sampled, TokenLogprobs};

/// A request while it runs.
pub(super) struct Run<'a> {
    pub request: &'a Request<'a>,
    /// Tokens that end an answer.
    pub ends: Vec<u32>,
    /// Whether to add up log probabilities, to find the best answers.
    pub ranks: bool,
    /// Whether tokens that a guide leaves no choice about go in without being sampled.
    forces: bool,
    isa: Isa,
}

impl<'a> Run<'a> {
    pub(super) fn new(request: &'a Request<'a>, samples: usize, isa: Isa) -> Self {
        Self {
            request,
            ends: request.stop.ends(),
            ranks: samples > request.n,
            forces: request.guide.is_some() && !request.params.forbids_tokens(),
            isa,
        }
    }

    /// Whether every token needs a row of logits, not only those that are sampled.
    pub(super) fn rates(&self) -> bool {
        self.ranks || self.request.params.logprobs.is_some()
    }

    /// A token was sampled: it is the answer's, and what its guide forces behind it. Returns how many those are. `logits`,
    /// the row it was chosen from, are looked at if the request [rates](Run::rates) its tokens.
    ///
    /// # Errors
    /// A row without a token; what the guide reports.
    pub(super) fn choose(
        &self,
        answer: &mut Answer,
        sampled: &Sampled,
        logits: &[f32],
        show: &mut dyn FnMut(&str) -> bool,
    ) -> Result<usize> {
        let token = sampled.token?;
        if self.rates() {
            let told = self.request.params.logprobs.and(sampled.logprobs.clone());
            answer.rated(self.mark(logits, token, told.as_ref()), told);
        }
        answer.take(token, show)?;
        self.force(answer, show)
    }

    /// Takes the tokens that an answer's guide leaves no choice about. They are rated when the model has seen what is
    /// before them. Returns how many there were.
    ///
    /// # Errors
    /// What the guide reports.
    pub(super) fn force(
        &self,
        answer: &mut Answer,
        show: &mut dyn FnMut(&str) -> bool,
    ) -> Result<usize> {
        if !self.forces || answer.has_ended() {
            return Ok(0);
        }
        let had = answer.tokens.len();
        for token in answer.guide.as_mut().map(|guide| guide.forced()).unwrap_or_default() {
            if !answer.has_ended() {
                answer.take(token, show)?;
            }
        }
        Ok(answer.tokens.len() - had)
    }

    /// Rates a token that was not sampled by the logits before it.
    pub(super) fn rate(&self, answer: &mut Answer, logits: &[f32], token: u32) {
        let told = self.request.params.logprobs.map(|wanted| match wanted.of {
            LogprobsOf::Raw => self.raw(logits, token, wanted.top),
            // There was nothing else to draw.
            LogprobsOf::Processed => {
                let top = if wanted.top > 0 { vec![(token, 0.0)] } else { vec![] };
                TokenLogprobs { id: token, logprob: 0.0, rank: 0, top }
            }
        });
        answer.rated(self.mark(logits, token, told.as_ref()), told);
    }

    /// What a token contributes to the rank of its answer: its raw log probability, which is not computed again if it was
    /// `told`. 0 where nobody ranks.
    fn mark(&self, logits: &[f32], token: u32, told: Option<&TokenLogprobs>) -> f64 {
        if !self.ranks {
            return 0.0;
        }
        let raw = self.request.params.logprobs.is_some_and(|wanted| wanted.of == LogprobsOf::Raw);
        f64::from(match told.filter(|_| raw) {
            Some(told) => told.logprob,
            None => self.raw(logits, token, 0).logprob,
        })
    }

    fn raw(&self, logits: &[f32], token: u32, top: usize) -> TokenLogprobs {
        let mut out = TokenLogprobs::default();
        raw_into(self.isa, logits, token, top, &mut out, &mut LogprobsScratch::default());
        out
    }
}
