//! The k likeliest tokens without a sort.
//!
//! The k-th largest of the blocks' maxima is a bar that the k likeliest tokens all reach: k blocks have a token there,
//! which makes k tokens. So only those blocks are read again, and of the few candidates found the first k are selected
//! (quickselect), which takes time linear in their number.

use super::blocks::Blocks;

/// Who is in front.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// The likelier one.
    Likely,
    /// The one whose logit (after temperature) is nearer to this.
    Near(f32),
}

impl Order {
    /// The larger, the farther to the front.
    #[inline(always)]
    pub(crate) fn value(self, scaled: f32) -> f32 {
        match self {
            Order::Likely => scaled,
            Order::Near(mean) => -(scaled - mean).abs(),
        }
    }

    /// No token of a block with this maximum has a larger value.
    #[inline(always)]
    pub(crate) fn best(self, max: f32) -> f32 {
        match self {
            Order::Near(mean) if max >= mean => 0.0,
            _ => self.value(max),
        }
    }
}

/// A token that may be chosen yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Its place in line: the lowest is first, and no two are the same.
    pub(crate) rank: u64,
    /// Its logit after temperature.
    pub(crate) scaled: f32,
    /// Its share of the distribution.
    pub(crate) share: f32,
}

impl Candidate {
    /// A token in line.
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

/// The place in line of a token: the larger its value (never NaN), the lower; of equal ones (0 and -0 are) the lower id
/// is in front.
#[inline(always)]
pub(crate) fn rank(value: f32, id: u32) -> u64 {
    // exercise l4.select
    let bits = (value + 0.0).to_bits(); // -0 + 0 is +0.
    // Positive floats sort as their bits do, negative ones the other way round and all below.
    let descending = if bits >> 31 == 0 { !bits & 0x7fff_ffff } else { bits };
    u64::from(descending) << 32 | u64::from(id)
    // end of exercise
}

/// A bar (a logit after temperature) that the `k >= 1` likeliest tokens reach, and few others.
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

/// Drop all but the first `k` in line; their order is lost.
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
