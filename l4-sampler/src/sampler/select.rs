//! The k likeliest tokens without a sort.
//!
//! The k-th largest of the blocks' maxima is a bar that the k likeliest tokens all reach: k blocks have a token there,
//! which makes k tokens. So only those blocks are read again, and of the few candidates found the first k are selected
//! (quickselect), which takes time linear in their number.

use super::blocks::{Blocks, FLOOR};

/// A token that may be chosen yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Its place in line, as a number: a distance and the token's id. The lowest is first.
    pub(crate) rank: u64,
    /// Its logit after temperature, less the largest.
    pub(crate) scaled: f32,
    /// `e^scaled`, once it has been weighed.
    pub(crate) share: f32,
}

impl Candidate {
    /// A token in line by its distance to the likeliest.
    #[inline(always)]
    pub(crate) fn new(id: u32, scaled: f32) -> Self {
        Self { rank: rank(scaled, id), scaled, share: 0.0 }
    }

    /// The token.
    pub(crate) fn id(&self) -> u32 {
        self.rank as u32
    }
}

/// A distance (its sign does not matter) and an id as one number that sorts as the pair does: without a sign, floats
/// sort as their bits.
#[inline(always)]
pub(crate) fn rank(distance: f32, id: u32) -> u64 {
    // exercise l4.select
    u64::from(distance.abs().to_bits()) << 32 | u64::from(id)
    // end of exercise
}

/// A bar (after temperature) that the `k >= 1` likeliest tokens reach, and few others.
pub(crate) fn bar_of_top_k(from: &Blocks<'_>, k: usize, scratch: &mut Vec<f32>) -> f32 {
    // exercise l4.select
    if k > from.maxima.len() {
        return FLOOR;
    }
    scratch.clear();
    scratch.extend_from_slice(from.maxima);
    let (_, kth, _) = scratch.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    from.scaled(*kth).max(FLOOR)
    // end of exercise
}

/// Drop all but the first `k` in line; their order is lost.
pub(crate) fn keep_first(candidates: &mut Vec<Candidate>, k: usize) {
    // exercise l4.select
    if k < candidates.len() {
        if k > 0 {
            candidates.select_nth_unstable_by_key(k - 1, |candidate| candidate.rank);
        }
        candidates.truncate(k);
    }
    // end of exercise
}
