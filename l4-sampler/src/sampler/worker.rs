//! The stages of one row in their order, from logits to a distribution.

use l1_tensor::cpu::Isa;

use super::Row;
use super::blocks::{Blocks, block_maxima, first_of_largest, gather, largest, mean_logit, weigh};
use super::nucleus::{by_surprise, gather_mass, keep_mass, line_up_by_surprise, mass};
use super::select::{Candidate, Order, bar_of_top_k, keep_first};
use super::shared::Line;
use crate::distribution::{BLOCK, sum_blocks};
use crate::processors::bans::{add_bias, allow_only, apply_mask, ban, ban_early_ends};
use crate::processors::logit;
use crate::processors::penalties::penalize;
use crate::{Distribution, RowError, SamplingParams};

/// Working memory for one row at a time.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// Copy of a row that must be changed and is read only.
    copy: Vec<f32>,
    /// Largest logit of each block.
    maxima: Vec<f32>,
    /// Copy of the maxima, to be reordered.
    shuffled: Vec<f32>,
    /// Candidates.
    candidates: Vec<Candidate>,
}

impl Worker {
    /// Creates the memory for rows of `vocab` logits.
    pub(crate) fn new(vocab: usize) -> Self {
        Self {
            copy: Vec::with_capacity(vocab),
            maxima: Vec::with_capacity(vocab.div_ceil(BLOCK)),
            shuffled: Vec::with_capacity(vocab.div_ceil(BLOCK)),
            candidates: Vec::with_capacity(vocab),
        }
    }

    /// Computes the distribution that `row`'s token is sampled from. `line` is overwritten if allowed.
    pub(crate) fn distribution(
        &mut self,
        isa: Isa,
        line: Line<'_>,
        row: &Row<'_>,
        out: &mut Distribution,
    ) -> Result<(), RowError> {
        let damaged = line.read().iter().all(|logit| logit.is_nan());
        let Self { copy, maxima, shuffled, candidates } = self;
        maxima.resize(line.read().len().div_ceil(BLOCK), f32::NEG_INFINITY);
        let mut survey = |logits: &[f32]| {
            block_maxima(isa, logits, maxima);
            largest(isa, maxima)
        };
        // exercise l4.sampler
        let changed = is_changed(row);
        let mut max = if changed { f32::INFINITY } else { survey(line.read()) };
        let logits = if max < f32::INFINITY {
            line.read()
        } else {
            let logits = line.writable(copy);
            if changed {
                change(logits, row, shuffled);
                max = survey(logits);
            }
            if max == f32::INFINITY {
                logits.iter_mut().for_each(|x| *x = logit(*x));
                max = survey(logits);
            }
            logits
        };
        if max == f32::NEG_INFINITY {
            return Err(if damaged { RowError::AllNan } else { RowError::NothingLeft });
        }
        let params = row.params;
        if params.is_greedy() {
            out.become_point(first_of_largest(logits, maxima, max).unwrap_or(0));
            return Ok(());
        }
        let from = Blocks::new(logits, maxima, max, params.temperature);
        filter(isa, &from, params, shuffled, candidates, out);
        Ok(())
        // end of exercise
    }
}

/// Whether anything besides temperature and filters applies to a row.
pub(super) fn is_changed(row: &Row<'_>) -> bool {
    let params = row.params;
    !params.logit_bias.is_empty()
        || params.allowed_tokens.is_some()
        || !params.banned_tokens.is_empty()
        || row.mask.is_some()
        || (!row.ends.is_empty() && row.history.generated() < params.min_tokens)
        || params.has_penalties()
}

/// Applies all stages before temperature.
fn change(logits: &mut [f32], row: &Row<'_>, kept: &mut Vec<f32>) {
    // exercise l4.sampler
    let params = row.params;
    add_bias(logits, &params.logit_bias);
    if let Some(allowed) = &params.allowed_tokens {
        allow_only(logits, allowed, kept);
    }
    ban(logits, &params.banned_tokens);
    ban_early_ends(logits, row.ends, row.history.generated(), params.min_tokens);
    if let Some(mask) = row.mask {
        apply_mask(logits, mask);
    }
    let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
    penalize(logits, row.history, params.repetition_penalty, presence, frequency);
    // end of exercise
}

/// Applies temperature and the filters.
fn filter(
    isa: Isa,
    from: &Blocks<'_>,
    params: &SamplingParams,
    shuffled: &mut Vec<f32>,
    candidates: &mut Vec<Candidate>,
    out: &mut Distribution,
) {
    // exercise l4.sampler
    let vocab = from.row.len();
    let top_k = (1..vocab).contains(&params.top_k);
    let (top_p, mut typical) = (params.top_p < 1.0, params.typical_p < 1.0);
    let min_p = params.min_p > 0.0;
    // Distance in nats by which a token may be below the most likely one.
    let farthest = f64::from(params.min_p).ln();
    if top_k {
        let bar = bar_of_top_k(from, params.top_k, shuffled);
        candidates.clear();
        gather(isa, *from, Order::Likely, bar, f32::INFINITY, candidates);
        keep_first(candidates, params.top_k);
        if top_p {
            keep_mass(candidates, f64::from(params.top_p) * mass(candidates));
        }
    } else if top_p || (typical && !min_p) {
        // Fractions of the whole are needed, so all tokens are weighed.
        let (shares, total) = weigh_all(isa, from, out);
        let (order, p, lowest) = if top_p {
            // All tokens with less than this have, together, at most half of what is dropped.
            let least = 0.5 * (1.0 - f64::from(params.top_p)) * total / vocab as f64;
            (Order::Likely, params.top_p, from.bar(least.ln().max(farthest)))
        } else {
            typical = false;
            let order = by_surprise(mean_logit(isa, *from, shares));
            let lowest = order.value(from.floor()).min(order.value(from.top()));
            (order, params.typical_p, lowest)
        };
        gather_mass(isa, from, shares, order, lowest, f64::from(p) * total, candidates);
    } else if min_p {
        candidates.clear();
        gather(isa, *from, Order::Likely, from.bar(farthest), f32::INFINITY, candidates);
    } else {
        weigh_all(isa, from, out);
        return;
    }
    if min_p {
        let top = f64::from(from.top());
        candidates.retain(|candidate| f64::from(candidate.scaled) - top >= farthest);
    }
    if typical {
        line_up_by_surprise(candidates);
        keep_mass(candidates, f64::from(params.typical_p) * mass(candidates));
    }
    hand_over(isa, vocab, candidates, out);
    // end of exercise
}

/// Weights of all tokens and their sum: the distribution of a row without filters.
fn weigh_all<'d>(isa: Isa, from: &Blocks<'_>, out: &'d mut Distribution) -> (&'d [f32], f64) {
    out.become_dense(from.row.len(), |shares, sums| weigh(isa, *from, shares, sums))
}

/// Writes candidates as a distribution. Few are sorted by their ids, many are written by index.
fn hand_over(isa: Isa, vocab: usize, candidates: &mut Vec<Candidate>, out: &mut Distribution) {
    candidates.retain(|candidate| candidate.share > 0.0);
    if candidates.len() > vocab / 64 {
        out.become_dense(vocab, |shares, sums| {
            shares.fill(0.0);
            for candidate in candidates.iter() {
                shares[candidate.id() as usize] = candidate.share;
            }
            sum_blocks(isa, shares, sums);
        });
    } else {
        candidates.sort_unstable_by_key(Candidate::id);
        out.become_sparse(isa, candidates.iter().map(|c| (c.id(), c.share)));
    }
}
