//! Typical-p: tokens whose surprise is near the expected one.

use super::{REMOVED, softmax};

/// Keeps the fewest tokens whose probabilities sum to at least `p`, beginning with those whose surprise `-ln prob` is
/// nearest to the expected one, the entropy; the token that crosses `p` stays. 1 is off.
///
/// So where the model is unsure, the most likely token may be removed: it is less surprising than typical text. (Of two
/// tokens equally near, the one with the lower id comes first.)
///
/// (Meister, Pimentel, Wiher, Cotterell, "Locally Typical Sampling", 2023)
pub fn typical_p(row: &mut [f32], p: f32) {
    if p >= 1.0 {
        return;
    }
    // exercise l4.filters
    let probs = softmax(row);
    // A token without probability does not occur, so it adds no surprise.
    let mut ids: Vec<usize> = (0..row.len()).filter(|id| probs[*id] > 0.0).collect();
    let entropy: f64 = ids.iter().map(|id| -probs[*id] * probs[*id].ln()).sum();
    let distance = |id: usize| (-probs[id].ln() - entropy).abs();
    ids.sort_by(|a, b| distance(*a).total_cmp(&distance(*b)));
    let mut before = 0.0;
    let mut kept = vec![false; row.len()];
    for (rank, id) in ids.into_iter().enumerate() {
        kept[id] = rank == 0 || before < f64::from(p);
        before += probs[id];
    }
    for (x, kept) in row.iter_mut().zip(kept) {
        if !kept {
            *x = REMOVED;
        }
    }
    // end of exercise
}
