//! Top-p, the nucleus: as many tokens as it takes.

use super::{REMOVED, by_rank, softmax};

/// Keep the fewest of the likeliest tokens that together have at least the probability `p`: a token stays if those
/// before it have less. So the one that crosses `p` stays, and one token always does. 1 is off.
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
