//! A row of logits in blocks: the largest of each, and passes that leave out the blocks that cannot matter.
//!
//! A vocabulary has 150,000 tokens, of which a draw considers fifty. So the row is read once for the largest logit of
//! each block of 64, and what comes after looks at 2,400 maxima to find the few blocks worth reading again.

use l1_tensor::cpu::lanes::{dispatch, exp, max_of};

use super::select::Candidate;
use crate::distribution::{BLOCK, sum_of};

/// A token this far below the likeliest (in nats, after temperature) has a share of 0 in f32.
const FLOOR: f32 = -104.0;

/// A row that only temperature and filters are still to be applied to, with the maxima of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    pub(crate) row: &'a [f32],
    pub(crate) maxima: &'a [f32],
    shift: f32,
    temperature: f32,
    /// The largest logit after temperature.
    top: f32,
}

impl<'a> Blocks<'a> {
    /// A row, its blocks' maxima and the largest of these, which is finite. `temperature` is above 0.
    pub(crate) fn new(row: &'a [f32], maxima: &'a [f32], max: f32, temperature: f32) -> Self {
        // At a temperature of 1 logits stay as they are. At others the difference to the largest is divided: at 1e-4 the
        // quotients of two large logits would be infinite, and their difference NaN.
        let (shift, top) = if temperature == 1.0 { (0.0, max) } else { (max, 0.0) };
        Self { row, maxima, shift, temperature, top }
    }

    /// A logit after temperature.
    #[inline(always)]
    pub(crate) fn scaled(&self, logit: f32) -> f32 {
        (logit - self.shift) / self.temperature
    }

    /// The logit after temperature of a token that is `e^distance` times as likely as the likeliest; rather too low than
    /// too high, and no lower than where shares become 0.
    pub(crate) fn bar(&self, distance: f64) -> f32 {
        let bar = (f64::from(self.top) + distance) as f32;
        bar.next_down().max(self.top + FLOOR)
    }

    /// The share of a token with this logit after temperature.
    #[inline(always)]
    pub(crate) fn share<const FMA: bool>(&self, scaled: f32) -> f32 {
        exp::<FMA>(scaled - self.top)
    }

    /// How much likelier the likeliest token is, as a logarithm: 0 or above.
    pub(crate) fn distance(&self, scaled: f32) -> f64 {
        f64::from(self.top) - f64::from(scaled)
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
        let bar = from.bar(f64::NEG_INFINITY);
        let blocks = from.row.chunks(BLOCK).zip(shares.chunks_mut(BLOCK)).zip(sums);
        for (((row, shares), sum), max) in blocks.zip(from.maxima) {
            if from.scaled(*max) >= bar {
                for (share, logit) in shares.iter_mut().zip(row) {
                    let scaled = from.scaled(*logit);
                    // Below the bar, or NaN.
                    *share = if scaled >= bar { from.share::<FMA>(scaled) } else { 0.0 };
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
    pub(crate) fn weigh_candidates<const FMA: bool>(from: Blocks<'_>, candidates: &mut [Candidate]) {
        for candidate in candidates {
            candidate.share = from.share::<FMA>(candidate.scaled);
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
