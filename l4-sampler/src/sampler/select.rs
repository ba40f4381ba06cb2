//! The k most likely tokens, without a sort.
//!
//! The k-th largest of the blocks' maxima is a bar that at least k tokens reach, since k blocks have one. So only those
//! blocks are read again, and the first k of the few candidates are selected (quickselect), which takes time linear in
//! their number.

use super::blocks::Blocks;

/// Order of candidates.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// The more likely token is first.
    Likely,
    /// The token whose logit (after temperature) is nearer to this value is first.
    Near(f32),
}

impl Order {
    /// Value of a token: the larger, the nearer to the front.
    #[inline(always)]
    pub(crate) fn value(self, scaled: f32) -> f32 {
        match self {
            Order::Likely => scaled,
            Order::Near(mean) => -(scaled - mean).abs(),
        }
    }

    /// Largest value that a token of a block with this maximum can have.
    #[inline(always)]
    pub(crate) fn best(self, max: f32) -> f32 {
        match self {
            Order::Near(mean) if max >= mean => 0.0,
            _ => self.value(max),
        }
    }
}

/// A candidate: a token that may still be sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Rank: the lowest is first, and no two are equal.
    pub(crate) rank: u64,
    /// Logit after temperature.
    pub(crate) scaled: f32,
    /// Weight in the distribution.
    pub(crate) share: f32,
}

impl Candidate {
    /// Creates the candidate of a token.
    #[inline(always)]
    pub(crate) fn new(order: Order, id: u32, scaled: f32, share: f32) -> Self {
        Self { rank: rank(order.value(scaled), id), scaled, share }
    }

    /// The token.
    #[inline(always)]
    pub(crate) fn id(&self) -> u32 {
        self.rank as u32
    }
}

/// Rank of a token: the larger its value (never NaN), the lower; of equal values (0 and -0 are equal) the lower id is
/// first.
#[inline(always)]
pub(crate) fn rank(value: f32, id: u32) -> u64 {
    // exercise l4.select
    let bits = (value + 0.0).to_bits(); // -0 + 0 is +0.
    // Positive floats sort as their bits do, negative ones the other way round and below all positive ones.
    let descending = if bits >> 31 == 0 { !bits & 0x7fff_ffff } else { bits };
    u64::from(descending) << 32 | u64::from(id)
    // end of exercise
}

/// A bar (a logit after temperature) that the `k >= 1` most likely tokens reach, and few others.
pub(crate) fn bar_of_top_k(from: &Blocks<'_>, k: usize, shuffled: &mut Vec<f32>) -> f32 {
    // exercise l4.select
    if k > from.maxima.len() {
        return from.floor();
    }
    shuffled.clear();
    shuffled.extend_from_slice(from.maxima);
    let (_, kth, _) = shuffled.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    from.scaled(*kth).max(from.floor())
    // end of exercise
}

/// Drops all but the first `k` candidates; their order is lost.
pub(crate) fn keep_first(candidates: &mut Vec<Candidate>, k: usize) {
    // exercise l4.select
    if k < candidates.len() {
        candidates.select_nth_unstable_by_key(k.saturating_sub(1), |candidate| candidate.rank);
        candidates.truncate(k);
    }
    // end of exercise
}

#[cfg(test)]
mod tests;
