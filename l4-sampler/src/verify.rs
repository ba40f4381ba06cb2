//! Verification of drafts: how many of the proposed tokens are accepted (speculative decoding).
//!
//! A step of a large model costs about the same for one token as for five, since its weights are read once either way.
//! So a cheap draft model proposes the next tokens, the large model computes its logits behind each of them in one
//! step, and verification decides how many of the proposed tokens are accepted.
//!
//! The rule does not change the output: whatever the draft, the accepted and replaced tokens have exactly the
//! distribution of plain sampling. Take one position, where the model says `p` and the draft was drawn from `q`. A
//! token `x` comes out in one of two ways:
//!
//! * it was drafted and accepted: `q(x) * min(1, p(x) / q(x)) = min(p(x), q(x))`;
//! * the draft was rejected, with the probability that is missing from that,
//!   `1 - sum of min(p, q) = sum of max(0, p - q)`, and `x` was drawn in its place from `max(0, p - q)`, which is made a
//!   distribution by dividing it by that same sum. The two cancel, and `max(0, p(x) - q(x))` is left.
//!
//! Together `min(p, q) + max(0, p - q) = p`. A bad draft only costs time: `sum of min(p, q)` is the acceptance rate.
//!
//! (Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023; Chen et al.,
//! "Accelerating Large Language Model Decoding with Speculative Sampling", 2023.)

use std::borrow::Cow;

use l1_tensor::{Device, Rows, Tensor, TensorRef};

use crate::error::{Error, ParamError, Result, RowError};
use crate::sampler::{Bench, Line, Pieces, Row, expect};
use crate::{History, Purpose, Sampler, TokenMask};

/// How a draft's tokens were chosen.
#[derive(Clone, Copy)]
pub enum Draft<'a> {
    /// Without chance (a lookup, an n-gram, a greedy model): the token had probability 1.
    Certain,
    /// Sampled by a smaller model from these logits, f32 `[k, V]`, with the request's own parameters: token `i` from
    /// what [`Sampler::distribution`] makes of row `i` for a request that has the draft's tokens before it in its
    /// history, and its guide's mask for that position. The draft's random numbers may be those of [`Purpose::Draw`].
    Logits(TensorRef<'a>),
}

/// Draft of one sequence, to be verified.
pub struct Proposal<'a> {
    /// `[k]`: proposed tokens.
    pub tokens: &'a [u32],
    /// How they were chosen.
    pub draft: Draft<'a>,
    /// The request, at the position of the first proposed token. Its history contains none of the draft. Its mask is
    /// ignored: `masks` has one for each position.
    pub row: Row<'a>,
    /// `[k + 1]`: what the guide allows at each position, given the tokens before; empty without a guide. (Fewer are
    /// enough if the guide does not allow a draft's token: one more than it accepted.)
    pub masks: &'a [TokenMask],
}

/// Result of verifying a proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// Number of accepted tokens, from the first on.
    pub accepted: usize,
    /// Token behind them: the replacement of the first rejected one, or the bonus token.
    pub token: u32,
}

impl Sampler {
    /// Verifies proposals. `logits` f32 `[sum of (k + 1), V]`: the model's rows for each proposal, one more than it has
    /// tokens.
    ///
    /// A proposed token is accepted with probability `min(1, p / q)`. The first rejected one is replaced by a draw from
    /// `max(0, p - q)`, and the tokens behind it are dropped; if all are accepted, the model's last row gives a bonus
    /// token. Both `p` and `q` are distributions after every stage of [`Sampler::sample`], for a request that has the
    /// draft's tokens before in its history. Greedy requests are a special case: `p` has all probability on one token.
    ///
    /// Proposals are verified in parallel and independently. A steady step allocates nothing, except that the history
    /// of a request with penalties is copied. A draft that contains a token which ends the output
    /// ([`crate::stop::StopRules`]) must be cut there by the caller.
    ///
    /// Logits on a device, the model's or a draft's, are fetched first: the rule needs full distributions in f64.
    ///
    /// # Errors
    /// Lengths that do not fit, tokens out of range. A row without tokens is the outcome of its proposal.
    pub fn verify(
        &mut self,
        logits: TensorRef<'_>,
        proposals: &[Proposal<'_>],
        out: &mut Vec<Result<Verified, RowError>>,
    ) -> Result<()> {
        if proposals.iter().any(|proposal| device_of(proposal) != Device::Cpu) {
            let copies = proposals.iter().map(fetched);
            let copies = copies.collect::<Result<Vec<_>>>()?;
            let here = proposals.iter().zip(&copies).map(|(proposal, copy)| {
                let draft = copy.as_ref().map_or(Draft::Certain, |c| Draft::Logits(c.view()));
                Proposal { draft, ..*proposal }
            });
            return self.verify(logits, &here.collect::<Vec<_>>(), out);
        }
        let mut copy = None;
        let rows = logits.on_cpu(&mut copy)?.rows::<f32>(OP)?;
        expect("logits in a row", self.vocab(), rows.len)?;
        let mut starts = std::mem::take(&mut self.starts);
        starts.clear();
        let mut end = 0;
        for proposal in proposals {
            check(proposal, self.vocab())?;
            starts.push(end);
            end += proposal.tokens.len() + 1;
        }
        expect("rows of logits", end, rows.n)?;

        out.clear();
        out.resize(proposals.len(), Err(RowError::NothingLeft));
        let verdicts = Pieces::of(out);
        let this = &*self;
        this.runtime().pool().run(proposals.len(), &|i, thread| {
            // SAFETY: the pool gives every proposal to one thread.
            let verdict = unsafe { verdicts.get(i) };
            let target = |row: usize| rows.row(starts[i] + row);
            verdict[0] = this.at_bench(thread, |bench| this.judge(bench, target, &proposals[i]));
        });
        self.starts = starts;
        Ok(())
    }

    /// Result of one proposal. `target` has the model's rows.
    fn judge<'t>(
        &self,
        bench: &mut Bench,
        target: impl Fn(usize) -> &'t [f32],
        proposal: &Proposal<'_>,
    ) -> Result<Verified, RowError> {
        let Bench { worker, distribution: p, draft: q, .. } = bench;
        let isa = self.runtime().isa();
        let mut history = Cow::Borrowed(proposal.row.history);
        let drafted = drafted_rows(proposal);
        // exercise l4.verify
        for (i, &token) in proposal.tokens.iter().enumerate() {
            let row = row_at(proposal, i, &history);
            worker.distribution(isa, Line::Shared(target(i)), &row, p)?;
            match &drafted {
                Some(rows) => worker.distribution(isa, Line::Shared(rows.row(i)), &row, q)?,
                None => q.become_point(token),
            }
            if !accepts(p.prob(token), q.prob(token), row.key.uniform(Purpose::Accept)) {
                let token = p.draw_residual(q, row.key.uniform(Purpose::Residual));
                return Ok(Verified { accepted: i, token });
            }
            // Most rows do not depend on it, and need no copy.
            if row.params.depends_on_history(row.ends) {
                history.to_mut().push(token);
            }
        }
        let k = proposal.tokens.len();
        let row = row_at(proposal, k, &history);
        worker.distribution(isa, Line::Shared(target(k)), &row, p)?;
        Ok(Verified { accepted: k, token: p.draw(row.key.uniform(Purpose::Bonus)) })
        // end of exercise
    }
}

const OP: &str = "verify";

/// Whether a draft's token is accepted, to which the model gives probability `p` and the draft gave `q`: with
/// probability `min(1, p / q)`, decided by `u` in `[0, 1)`.
///
/// Written without the division, so that it is defined for every `q`; a token with `p` of 0 is never accepted, whatever
/// `u`.
pub fn accepts(p: f64, q: f64, u: f64) -> bool {
    // exercise l4.verify
    u * q < p
    // end of exercise
}

/// The request at the position of token `i`, with a history that has the tokens before.
fn row_at<'a>(proposal: &Proposal<'a>, i: usize, history: &'a History) -> Row<'a> {
    let row = proposal.row;
    Row { history, mask: proposal.masks.get(i), key: row.key.ahead(i as u32), ..row }
}

/// Device of a draft's logits.
fn device_of(proposal: &Proposal<'_>) -> Device {
    match proposal.draft {
        Draft::Certain => Device::Cpu,
        Draft::Logits(logits) => logits.device(),
    }
}

/// Copy of a draft's logits in host memory.
fn fetched(proposal: &Proposal<'_>) -> Result<Option<Tensor>> {
    let Draft::Logits(logits) = proposal.draft else { return Ok(None) };
    Ok(Some(Tensor::from_slice(&logits.to_host::<f32>()?, logits.dims())?))
}

/// Logits that a proposal's tokens were sampled from. [`check`] has made sure that they are there.
fn drafted_rows<'a>(proposal: &Proposal<'a>) -> Option<Rows<'a, f32>> {
    match proposal.draft {
        Draft::Certain => None,
        Draft::Logits(logits) => logits.rows(OP).ok(),
    }
}

/// Checks the lengths and tokens of a proposal.
fn check(proposal: &Proposal<'_>, vocab: usize) -> Result<()> {
    let tokens = proposal.tokens;
    if let Some(&id) = tokens.iter().find(|id| **id as usize >= vocab) {
        return Err(ParamError::TokenOutOfRange { name: "a draft", id, vocab }.into());
    }
    if let Draft::Logits(logits) = proposal.draft {
        let rows = logits.rows::<f32>(OP)?;
        expect("rows of a draft's logits", tokens.len(), rows.n)?;
        expect("logits in a draft's row", vocab, rows.len)?;
    }
    let (expected, got) = (tokens.len() + 1, proposal.masks.len());
    // Behind a token that the guide does not allow nothing is verified.
    let refused = |last: &TokenMask| tokens.get(got - 1).is_some_and(|token| !last.allows(*token));
    if got == expected || proposal.masks.last().is_none_or(refused) {
        return Ok(());
    }
    Err(Error::Shape { what: "masks of a draft", expected, got })
}
