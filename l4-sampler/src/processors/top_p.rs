//! Top-p (nucleus sampling): as many of the most likely tokens as reach a probability.

use super::{REMOVED, by_rank, softmax};

/// Keeps the fewest of the most likely tokens whose probabilities sum to at least `p`: a token stays if those before it
/// sum to less. So the token that crosses `p` stays, and at least one token stays. 1 is off.
///
/// (Holtzman, Buys, Du, Forbes, Choi, "The Curious Case of Neural Text Degeneration", 2020)
pub fn top_p(row: &mut [f32], p: f32) {
    if p >= 1.0 {
        return;
    }
    // exercise l4.filters
    let probs = softmax(row);
    let mut before = 0.0;
    for (rank, id) in by_rank(row).into_iter().enumerate() {
        if rank > 0 && before >= f64::from(p) {
            row[id] = REMOVED;
        }
        before += probs[id];
    }
    // end of exercise
}
