//! Temperature: scaling of the differences between logits.

use super::{REMOVED, by_rank, largest, logit};

/// Divides the logits by `t`, relative to the largest one, which becomes 0. At 1 the row is unchanged; at 0 only the
/// most likely token stays, the limit of small temperatures.
///
/// Probabilities do not depend on a constant added to all logits, but overflow does: 30 / 0.0001 fits an f32, and 1e35
/// / 0.0001 does not. Relative to the largest one, logits are at most 0 and can only reach -inf, which is correct.
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
        // (A removed token stays removed: in a row of nothing else, -inf - -inf would be NaN.)
        *x = if logit(*x) == REMOVED { REMOVED } else { (logit(*x) - max) / t };
    }
    // end of exercise
}
