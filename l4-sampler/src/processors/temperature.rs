//! Temperature: how much a difference between two logits counts.

use super::{REMOVED, by_rank, largest, logit};

/// Divide the logits by `t`, counted from the largest one, which becomes 0. At 1 the row stays as it is; at 0 only the
/// likeliest token stays, which is what dividing by ever smaller numbers comes to.
///
/// Probabilities do not depend on where logits are counted from, but numbers do: 30 / 0.0001 still fits an f32, and
/// 1e35 / 0.0001 does not. What is 0 or below can only fall, and a fall to -inf means what it says.
pub fn temperature(row: &mut [f32], t: f32) {
    if t == 1.0 {
        return;
    }
    // exercise l4.filters
    if t == 0.0 {
        for id in by_rank(row).into_iter().skip(1) {
            row[id] = REMOVED;
        }
        return;
    }
    let max = largest(row);
    for x in row {
        // (A removed token stays one: in a row of nothing else, -inf - -inf would be NaN.)
        *x = if logit(*x) == REMOVED { REMOVED } else { (logit(*x) - max) / t };
    }
    // end of exercise
}
