//! Passes over a row of logits that skip blocks by their maxima.
//!
//! A vocabulary has 150,000 tokens, of which sampling considers about fifty. So the row is read once for the largest
//! logit of each block of 64, and later passes read 2,400 maxima to find the few blocks that must be read again.

use std::hint::black_box;

use l1_tensor::cpu::lanes::{accumulate, dispatch, exp, fold_lanes, max_of};

use super::select::{Candidate, Order};
use crate::distribution::{BLOCK, sum_of};

/// Distance to the most likely token (in nats, after temperature) from which a weight is 0 in f32.
const FLOOR: f32 = -104.0;

/// A row after penalties and bans, with the maxima of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    pub(crate) row: &'a [f32],
    pub(crate) maxima: &'a [f32],
    shift: f32,
    temperature: f32,
    /// Largest logit after temperature.
    top: f32,
}

impl<'a> Blocks<'a> {
    /// Creates the blocks of a row from its blocks' maxima and the largest of these, which is finite. `temperature` is
    /// above 0.
    pub(crate) fn new(row: &'a [f32], maxima: &'a [f32], max: f32, temperature: f32) -> Self {
        // At a temperature of 1 logits stay as they are. At others the difference to the largest is divided: at 1e-4
        // the quotients of two large logits would be infinite, and their difference NaN.
        let (shift, top) = if temperature == 1.0 { (0.0, max) } else { (max, 0.0) };
        Self { row, maxima, shift, temperature, top }
    }

    /// A logit after temperature.
    #[inline(always)]
    pub(crate) fn scaled(&self, logit: f32) -> f32 {
        (logit - self.shift) / self.temperature
    }

    /// Logit after temperature of a token that is `e^distance` times as likely as the most likely one; rounded down.
    pub(crate) fn bar(&self, distance: f64) -> f32 {
        ((f64::from(self.top) + distance) as f32).next_down().max(self.floor())
    }

    /// Logit below which a token's weight is 0.
    #[inline(always)]
    pub(crate) fn floor(&self) -> f32 {
        self.top + FLOOR
    }

    /// Largest logit after temperature.
    pub(crate) fn top(&self) -> f32 {
        self.top
    }

    /// Weight of a token with this logit after temperature.
    #[inline(always)]
    fn share<const FMA: bool>(&self, scaled: f32) -> f32 {
        exp::<FMA>(scaled - self.top)
    }
}

dispatch! {
    /// Largest logit of each block, ignoring NaN.
    pub(crate) fn block_maxima<const FMA: bool>(row: &[f32], maxima: &mut [f32]) {
        let (blocks, rest) = row.as_chunks::<BLOCK>();
        for (max, block) in maxima.iter_mut().zip(blocks) {
            // Behind a black box, or the compiler would process sixteen blocks at once and gather their elements from
            // all over the row, which takes four times as long.
            *max = max_of(black_box(block.as_slice()));
        }
        if let (Some(max), false) = (maxima.last_mut(), rest.is_empty()) {
            *max = max_of(rest);
        }
    }

    /// Largest of the maxima.
    pub(crate) fn largest<const FMA: bool>(maxima: &[f32]) -> f32 {
        max_of(maxima)
    }

    /// Weights of all tokens, and their sums by block.
    pub(crate) fn weigh<const FMA: bool>(from: Blocks<'_>, shares: &mut [f32], sums: &mut [f64]) {
        let floor = from.floor();
        let blocks = from.row.chunks(BLOCK).zip(shares.chunks_mut(BLOCK)).zip(sums);
        for (((row, shares), sum), max) in blocks.zip(from.maxima) {
            if from.scaled(*max) >= floor {
                for (share, logit) in shares.iter_mut().zip(row) {
                    let scaled = from.scaled(*logit);
                    // False for NaN.
                    *share = if scaled >= floor { from.share::<FMA>(scaled) } else { 0.0 };
                }
                *sum = sum_of(shares);
            } else {
                shares.fill(0.0);
                *sum = 0.0;
            }
        }
    }

    /// Mean of the logits after temperature, weighted by the tokens' weights.
    pub(crate) fn mean_logit<const FMA: bool>(from: Blocks<'_>, shares: &[f32]) -> f64 {
        let (mut total, mut sum) = (0.0, 0.0);
        for (row, shares) in from.row.chunks(BLOCK).zip(shares.chunks(BLOCK)) {
            let mut weighted = [0.0; BLOCK];
            for ((weighted, logit), share) in weighted.iter_mut().zip(row).zip(shares) {
                // A token without weight may have a logit of -inf, and 0 * -inf is NaN.
                *weighted = if *share > 0.0 { from.scaled(*logit) * *share } else { 0.0 };
            }
            total += sum_of(shares);
            sum += sum_of(&weighted);
        }
        sum / total
    }

    /// Sum of the weights of the tokens whose value is at least `bar`, and their number.
    pub(crate) fn mass_from<const FMA: bool>(
        from: Blocks<'_>,
        shares: &[f32],
        order: Order,
        bar: f32,
    ) -> (f64, usize) {
        let (mut mass, mut count) = (0.0, 0);
        let blocks = from.row.chunks(BLOCK).zip(shares.chunks(BLOCK));
        for ((row, shares), max) in blocks.zip(from.maxima) {
            if order.best(from.scaled(*max)) < bar {
                continue;
            }
            let mut kept = [0.0; BLOCK];
            for ((kept, logit), share) in kept.iter_mut().zip(row).zip(shares) {
                *kept = if order.value(from.scaled(*logit)) >= bar { *share } else { 0.0 };
            }
            mass += sum_of(&kept);
            let lanes = accumulate(&kept, 0u32, |n, share| n + u32::from(share > 0.0));
            count += fold_lanes(lanes, |a, b| a + b) as usize;
        }
        (mass, count)
    }

    /// Appends the tokens whose value is at least `bar` and below `below` to `found`, ids ascending.
    pub(crate) fn gather<const FMA: bool>(
        from: Blocks<'_>,
        order: Order,
        bar: f32,
        below: f32,
        found: &mut Vec<Candidate>,
    ) {
        for (b, (row, max)) in from.row.chunks(BLOCK).zip(from.maxima).enumerate() {
            if order.best(from.scaled(*max)) < bar {
                continue;
            }
            let mut scaled = [f32::NAN; BLOCK];
            let mut shares = [0.0; BLOCK];
            for ((scaled, share), logit) in scaled.iter_mut().zip(&mut shares).zip(row) {
                *scaled = from.scaled(*logit);
                *share = from.share::<FMA>(*scaled);
            }
            // Written always, kept only where it counts: no branch that could be mispredicted.
            let (mut places, mut n) = ([0u8; BLOCK], 0);
            for (i, scaled) in scaled.iter().enumerate() {
                let value = order.value(*scaled);
                places[n % BLOCK] = i as u8;
                n += usize::from(value >= bar && value < below);
            }
            found.extend(places.iter().take(n).map(|i| {
                let i = usize::from(*i) % BLOCK;
                Candidate::new(order, (b * BLOCK + i) as u32, scaled[i], shares[i])
            }));
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
