//! A row of logits in blocks: the largest of each, and passes that leave out the blocks that cannot matter.
//!
//! A vocabulary has 150,000 tokens, of which a draw considers fifty. So the row is read once for the largest logit of
//! each block of 64, and what comes after looks at 2,400 maxima to find the few blocks worth reading again.

use l1_tensor::cpu::lanes::{dispatch, exp, max_of};

use super::select::Candidate;
use crate::distribution::{BLOCK, sum_of};

/// A token this far below the likeliest (in nats, after temperature) has a share of 0 in f32.
pub(crate) const FLOOR: f32 = -104.0;

/// A row that nothing changes any more, with the maxima of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    pub(crate) row: &'a [f32],
    pub(crate) maxima: &'a [f32],
    /// The largest of all: finite.
    pub(crate) max: f32,
    /// Above 0.
    pub(crate) temperature: f32,
}

impl Blocks<'_> {
    /// A logit after temperature, relative to the largest one: 0 or below. (The difference first: at a temperature of
    /// 1e-4 the quotients of two large logits would be infinite, and their difference NaN.)
    #[inline(always)]
    pub(crate) fn scaled(&self, logit: f32) -> f32 {
        (logit - self.max) / self.temperature
    }
}

dispatch! {
    /// The largest logit of each block, NaN passed over.
    pub(crate) fn block_maxima<const FMA: bool>(row: &[f32], maxima: &mut [f32]) {
        let (blocks, rest) = row.as_chunks::<BLOCK>();
        for (max, block) in maxima.iter_mut().zip(blocks) {
            *max = max_of(block);
        }
        if let (Some(max), false) = (maxima.last_mut(), rest.is_empty()) {
            *max = max_of(rest);
        }
    }

    /// The largest of them.
    pub(crate) fn largest<const FMA: bool>(maxima: &[f32]) -> f32 {
        max_of(maxima)
    }

    /// The shares of all tokens, and their sums by blocks.
    pub(crate) fn weigh<const FMA: bool>(from: Blocks<'_>, shares: &mut [f32], sums: &mut [f64]) {
        let blocks = from.row.chunks(BLOCK).zip(shares.chunks_mut(BLOCK)).zip(sums);
        for (((row, shares), sum), max) in blocks.zip(from.maxima) {
            if from.scaled(*max) >= FLOOR {
                for (share, logit) in shares.iter_mut().zip(row) {
                    let scaled = from.scaled(*logit);
                    // Not NaN, that is: a share of 0 is what such a token gets.
                    *share = if scaled >= FLOOR { exp::<FMA>(scaled) } else { 0.0 };
                }
                *sum = sum_of(shares);
            } else {
                shares.fill(0.0);
                *sum = 0.0;
            }
        }
    }

    /// Every token that is at least at `bar` after temperature, ids ascending.
    pub(crate) fn gather<const FMA: bool>(
        from: Blocks<'_>,
        bar: f32,
        found: &mut Vec<Candidate>,
    ) {
        found.clear();
        let blocks = from.row.chunks(BLOCK).zip(from.maxima).enumerate();
        for (b, (row, max)) in blocks {
            if from.scaled(*max) < bar {
                continue;
            }
            let mut scaled = [f32::NEG_INFINITY; BLOCK];
            for (to, logit) in scaled.iter_mut().zip(row) {
                *to = from.scaled(*logit);
            }
            for (i, scaled) in scaled.iter().enumerate().filter(|(_, scaled)| **scaled >= bar) {
                let id = (b * BLOCK + i) as u32;
                found.push(Candidate::new(id, *scaled));
            }
        }
    }

    /// Give every candidate its share.
    pub(crate) fn weigh_candidates<const FMA: bool>(candidates: &mut [Candidate]) {
        for candidate in candidates {
            candidate.share = exp::<FMA>(candidate.scaled);
        }
    }
}

/// The first of the largest logits.
pub(crate) fn first_of_largest(row: &[f32], maxima: &[f32], max: f32) -> Option<u32> {
    let block = maxima.iter().position(|of_block| *of_block == max)?;
    let start = block * BLOCK;
    let at = row.get(start..)?.iter().position(|logit| *logit == max)?;
    Some((start + at) as u32)
}
