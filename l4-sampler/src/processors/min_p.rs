//! Min-p: a floor that rises with the model's confidence.

use super::{REMOVED, largest, logit};

/// Keep tokens at least `p` times as likely as the likeliest. 0 is off, 1 keeps only what equals the likeliest.
///
/// A quotient of two probabilities is `e` to the difference of their logits, so nothing needs to be summed.
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
