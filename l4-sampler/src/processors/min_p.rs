//! Min-p: a threshold relative to the most likely token.

use super::{REMOVED, largest, logit};

/// Keeps tokens that are at least `p` times as likely as the most likely one. 0 is off, 1 keeps only its equals.
///
/// A quotient of two probabilities is `e` to the difference of their logits, so no sum is needed.
///
/// (Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", 2024)
pub fn min_p(row: &mut [f32], p: f32) {
    if p <= 0.0 {
        return;
    }
    // exercise l4.filters
    let max = f64::from(largest(row));
    for x in row {
        if (f64::from(logit(*x)) - max).exp() < f64::from(p) {
            *x = REMOVED;
        }
    }
    // end of exercise
}
