//! One row, from logits to a distribution: the stages in their order.

use l1_tensor::cpu::Isa;

use super::Row;
use super::blocks::{
    Blocks, FLOOR, block_maxima, first_of_largest, gather, largest, weigh, weigh_candidates,
};
use super::nucleus::{keep_mass, line_up_by_surprise, mass};
use super::select::{Candidate, bar_of_top_k, keep_first};
use super::shared::Line;
use crate::distribution::{BLOCK, sum_blocks};
use crate::{Distribution, RowError, SamplingParams};

/// The memory that one row at a time takes.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// A copy of a row that must be changed and may not be.
    copy: Vec<f32>,
    /// The largest logit of each block.
    maxima: Vec<f32>,
    /// Of these maxima, to be shuffled.
    shuffled: Vec<f32>,
    /// Tokens that may be chosen yet.
    candidates: Vec<Candidate>,
}

impl Worker {
    /// Memory for rows of so many logits.
    pub(crate) fn new(vocab: usize) -> Self {
        Self {
            copy: Vec::with_capacity(vocab),
            maxima: Vec::with_capacity(vocab.div_ceil(BLOCK)),
            shuffled: Vec::with_capacity(vocab.div_ceil(BLOCK)),
            candidates: Vec::with_capacity(vocab),
        }
    }

    /// What `row`'s token is to be drawn from. `line` is changed if it may be.
    pub(crate) fn distribution(
        &mut self,
        isa: Isa,
        line: Line<'_>,
        row: &Row<'_>,
        out: &mut Distribution,
    ) -> Result<(), RowError> {
        let damaged = line.read().iter().all(|logit| logit.is_nan());
        let Self { copy, maxima, shuffled, candidates } = self;
        let mut line = line;
        if is_changed(row) {
            let writable = line.writable(copy);
            change(writable, row);
            line = Line::Shared(writable);
        }
        let logits = line.read();
        maxima.resize(logits.len().div_ceil(BLOCK), f32::NEG_INFINITY);
        block_maxima(isa, logits, maxima);
        let max = largest(isa, maxima);
        if max == f32::NEG_INFINITY {
            let nothing = !damaged || logits.is_empty();
            return Err(if nothing { RowError::NothingLeft } else { RowError::AllNan });
        }
        let params = row.params;
        if params.is_greedy() {
            out.become_point(first_of_largest(logits, maxima, max).unwrap_or(0));
            return Ok(());
        }
        let from = Blocks { row: logits, maxima, max, temperature: params.temperature };
        choose_candidates(isa, &from, params, shuffled, candidates, out);
        Ok(())
    }
}

/// Whether anything but temperature and filters applies to a row.
fn is_changed(row: &Row<'_>) -> bool {
    let params = row.params;
    !params.logit_bias.is_empty()
        || params.allowed_tokens.is_some()
        || !params.banned_tokens.is_empty()
        || row.mask.is_some()
        || (!row.ends.is_empty() && row.history.generated() < params.min_tokens)
        || params.repetition_penalty != 1.0
        || params.presence_penalty != 0.0
        || params.frequency_penalty != 0.0
}

/// All stages before temperature.
fn change(logits: &mut [f32], row: &Row<'_>) {
    let p = row.params;
    for (id, bias) in &p.logit_bias {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit += bias;
        }
    }
    if let Some(allowed) = &p.allowed_tokens {
        for (id, logit) in (0u32..).zip(logits.iter_mut()) {
            if !allowed.contains(&id) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    let early = row.history.generated() < p.min_tokens;
    for id in p.banned_tokens.iter().chain(row.ends.iter().filter(|_| early)) {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    if let Some(mask) = row.mask {
        for (id, logit) in (0u32..).zip(logits.iter_mut()) {
            if !mask.allows(id) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    for seen in row.history.seen() {
        let Some(logit) = logits.get_mut(seen.token as usize) else { continue };
        if seen.in_prompt || seen.in_answer > 0 {
            let r = p.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
        }
        if seen.in_answer > 0 {
            *logit -= p.presence_penalty + p.frequency_penalty * seen.in_answer as f32;
        }
    }
}

/// Temperature and the filters.
fn choose_candidates(
    isa: Isa,
    from: &Blocks<'_>,
    params: &SamplingParams,
    shuffled: &mut Vec<f32>,
    candidates: &mut Vec<Candidate>,
    out: &mut Distribution,
) {
    let vocab = from.row.len();
    let top_k = (1..vocab).contains(&params.top_k);
    let (top_p, typical) = (params.top_p < 1.0, params.typical_p < 1.0);
    if !(top_k || top_p || typical || params.min_p > 0.0) {
        return out.become_dense(vocab, |shares, sums| weigh(isa, *from, shares, sums));
    }
    let bar = if top_k { bar_of_top_k(from, params.top_k, shuffled) } else { FLOOR };
    gather(isa, *from, bar, candidates);
    if top_k {
        keep_first(candidates, params.top_k);
    }
    weigh_candidates(isa, candidates);
    if top_p {
        keep_mass(candidates, f64::from(params.top_p) * mass(candidates));
    }
    if params.min_p > 0.0 {
        candidates.retain(|candidate| candidate.share >= params.min_p);
    }
    if typical {
        line_up_by_surprise(candidates);
        keep_mass(candidates, f64::from(params.typical_p) * mass(candidates));
    }
    candidates.retain(|candidate| candidate.share > 0.0);
    if candidates.len() > vocab / 16 {
        return out.become_dense(vocab, |shares, sums| {
            shares.fill(0.0);
            for candidate in candidates.iter() {
                shares[candidate.id() as usize] = candidate.share;
            }
            sum_blocks(isa, shares, sums);
        });
    }
    candidates.sort_unstable_by_key(Candidate::id);
    out.become_sparse(isa, candidates.iter().map(|c| (c.id(), c.share)));
}
