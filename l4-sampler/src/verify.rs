//! How many of a draft's tokens the model would have drawn itself.
//!
//! A step of a large model costs about the same for one token as for five: its weights are read once either way. So
//! somebody cheap guesses the next tokens, the model computes its logits behind each of them in one step, and here is
//! decided how many of the guesses stand.
//!
//! The rule costs no quality, which is not obvious: whatever the draft, the tokens that come out have exactly the law of
//! plain sampling. Take one position, where the model says `p` and the draft was drawn from `q`. A token `x` comes out
//! in one of two ways:
//!
//! * it was drafted and accepted: `q(x) * min(1, p(x) / q(x)) = min(p(x), q(x))`;
//! * something was rejected, with the probability that is missing from that, `1 - sum of min(p, q) = sum of max(0, p - q)`,
//!   and `x` was drawn in its place from `max(0, p - q)` made a distribution, that is, divided by that same sum. So the
//!   two cancel, and `max(0, p(x) - q(x))` is left.
//!
//! Together `min(p, q) + max(0, p - q) = p`. A bad draft only costs time: `sum of min(p, q)` is how often one is accepted.
//!
//! (Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", 2023; Chen et al.,
//! "Accelerating Large Language Model Decoding with Speculative Sampling", 2023.)

use std::borrow::Cow;

use l1_tensor::{Device, Rows, Tensor, TensorRef};

use crate::error::{Error, ParamError, Result, RowError};
use crate::sampler::{Bench, Line, Pieces, Row, expect};
use crate::{History, Purpose, Sampler, TokenMask};

/// Where a draft's tokens come from.
#[derive(Clone, Copy)]
pub enum Draft<'a> {
    /// Chosen without chance (a lookup, an n-gram, a greedy model): all probability was on the token.
    Certain,
    /// Drawn by a smaller model from these logits, f32 `[k, V]`, with the request's own parameters: token `i` from what
    /// [`Sampler::distribution`] makes of row `i` for a request that has the draft's tokens before it in its history, and
    /// its guide's mask for that position. The draft's own numbers may be those of [`Purpose::Draw`].
    Logits(TensorRef<'a>),
}

/// One sequence's draft, to be judged.
pub struct Proposal<'a> {
    /// `[k]`: the proposed tokens.
    pub tokens: &'a [u32],
    /// Where they come from.
    pub draft: Draft<'a>,
    /// The request, at the position of the first proposed token. Its history holds none of the draft. Its mask is not
    /// looked at: `masks` has one for each position.
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
    /// A draft's token stands with probability `min(1, p / q)`. The first one that does not is replaced by a draw from
    /// `max(0, p - q)`, and the tokens behind it are forgotten; when all stand, the model's last row gives one more. Both
    /// `p` and `q` are what is left after every stage of [`Sampler::sample`], for a request that has seen the draft's
    /// tokens before it. Greedy requests fall out of it: `p` is all on one token.
    ///
    /// Proposals are judged in parallel, and nothing about one depends on the others. A steady step allocates nothing, but
    /// that a request with penalties has its history copied, to go on in the copy. A draft that ends the answer (a
    /// token that [`crate::stop::StopRules`] stops at) is to be cut there by whoever made it.
    ///
    /// Logits on a device, the model's or a draft's, are fetched first: the rule needs whole distributions in f64.
    ///
    /// # Errors
    /// Lengths that do not fit, tokens out of range. A row without tokens is that proposal's own outcome.
    pub fn verify(
        &mut self,
        logits: TensorRef<'_>,
        proposals: &[Proposal<'_>],
        out: &mut Vec<Result<Verdict, RowError>>,
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

    /// One proposal's outcome. `target` has the model's rows.
    fn judge<'t>(
        &self,
        bench: &mut Bench,
        target: impl Fn(usize) -> &'t [f32],
        proposal: &Proposal<'_>,
    ) -> Result<Verdict, RowError> {
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
                return Ok(Verdict { accepted: i, token });
            }
            if remembers(&proposal.row) {
                history.to_mut().push(token);
            }
        }
        let k = proposal.tokens.len();
        let row = row_at(proposal, k, &history);
        worker.distribution(isa, Line::Shared(target(k)), &row, p)?;
        Ok(Verdict { accepted: k, token: p.draw(row.key.uniform(Purpose::Bonus)) })
        // end of exercise
    }
}

const OP: &str = "verify";

/// Whether a draft's token stands that the model gives the probability `p` and that was drawn with probability `q`: with
/// probability `min(1, p / q)`, decided by `u` in `[0, 1)`.
///
/// Written without the division, so that it has an answer for every `q`; and a token that the model would never choose
/// is never accepted, whatever `u`.
pub fn accepts(p: f64, q: f64, u: f64) -> bool {
    // exercise l4.verify
    u * q < p
    // end of exercise
}

/// Whether a row depends on its request's history. Most do not, and need no copy of it to go on in.
fn remembers(row: &Row<'_>) -> bool {
    let params = row.params;
    params.has_penalties() || (params.min_tokens > 0 && !row.ends.is_empty())
}

/// The request at the position of token `i`, with a history that has the tokens before.
fn row_at<'a>(proposal: &Proposal<'a>, i: usize, history: &'a History) -> Row<'a> {
    let row = proposal.row;
    Row { history, mask: proposal.masks.get(i), key: row.key.ahead(i as u32), ..row }
}

/// Where a draft's logits are.
fn device_of(proposal: &Proposal<'_>) -> Device {
    match proposal.draft {
        Draft::Certain => Device::Cpu,
        Draft::Logits(logits) => logits.device(),
    }
}

/// A copy of a draft's logits that can be read here.
fn fetched(proposal: &Proposal<'_>) -> Result<Option<Tensor>> {
    let Draft::Logits(logits) = proposal.draft else { return Ok(None) };
    Ok(Some(Tensor::from_slice(&logits.to_host::<f32>()?, logits.dims())?))
}

/// The logits that a proposal's tokens were drawn from. [`check`] has seen that they are there.
fn drafted_rows<'a>(proposal: &Proposal<'a>) -> Option<Rows<'a, f32>> {
    match proposal.draft {
        Draft::Certain => None,
        Draft::Logits(logits) => logits.rows(OP).ok(),
    }
}

/// Refuse what cannot be judged.
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
    // Behind a token that the guide refuses nothing is judged any more.
    let refused = |last: &TokenMask| tokens.get(got - 1).is_some_and(|token| !last.allows(*token));
    if got == expected || proposal.masks.last().is_none_or(refused) {
        return Ok(());
    }
    Err(Error::Shape { what: "masks of a draft", expected, got })
}
