//! How a row of logits is read.

use super::REMOVED;

/// What a logit counts as: NaN as -inf, +inf as the largest finite number, all others as themselves.
#[inline(always)]
pub fn logit(x: f32) -> f32 {
    if x.is_nan() { REMOVED } else { x.min(f32::MAX) }
}

/// The largest logit; -inf if no token is left.
pub fn largest(row: &[f32]) -> f32 {
    row.iter().fold(REMOVED, |max, x| max.max(logit(*x)))
}

/// Probabilities: `e^x`, made to sum to 1. All 0 if no token is left.
///
/// The largest logit is subtracted first, which changes nothing but that `e^x` cannot be too large.
pub fn softmax(row: &[f32]) -> Vec<f64> {
    let max = largest(row);
    if max == REMOVED {
        return vec![0.0; row.len()];
    }
    let mut probs: Vec<f64> =
        row.iter().map(|x| (f64::from(logit(*x)) - f64::from(max)).exp()).collect();
    let total: f64 = probs.iter().sum();
    for p in &mut probs {
        *p /= total;
    }
    probs
}

/// All token ids, likeliest first, equal ones by id.
pub fn by_rank(row: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..row.len()).collect();
    // The sort is stable: equal logits stay in the order of their ids. (Added to 0, so that -0 is 0.)
    let key = |id: usize| logit(row[id]) + 0.0;
    ids.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
    ids
}
