//! Reading a row of logits.

use super::REMOVED;

/// Value of a logit: NaN counts as -inf, +inf as the largest finite number.
#[inline(always)]
pub fn logit(x: f32) -> f32 {
    if x.is_nan() { REMOVED } else { x.min(f32::MAX) }
}

/// Largest logit; -inf if no token is left.
pub fn largest(row: &[f32]) -> f32 {
    row.iter().fold(REMOVED, |max, x| max.max(logit(*x)))
}

/// Probabilities: `e^x`, normalised. All 0 if no token is left.
///
/// The largest logit is subtracted first, which changes nothing except that `e^x` cannot overflow.
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

/// All token ids, most likely first, equal ones by id.
pub fn by_rank(row: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..row.len()).collect();
    // The sort is stable: equal logits stay in the order of their ids. (0 is added, so that -0 is 0.)
    let key = |id: usize| logit(row[id]) + 0.0;
    ids.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
    ids
}
