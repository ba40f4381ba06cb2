//! The fewest tokens that have a given mass together, without a sort.
//!
//! Top-p and typical-p ask the same thing of candidates that stand in two different lines: how many, from the front, are
//! enough? A quickselect finds it that asks a different question than usual: not "are there k in the front half?" but
//! "is there enough in the front half?". Each question is about half as many candidates as the one before.

use super::select::{Candidate, rank};

/// The sum of the candidates' shares.
pub(crate) fn mass(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.share)).sum()
}

/// Drop all but the fewest, from the front of the line, whose shares sum up to `enough` (at least one is kept, and all
/// when there is not that much). Their order is lost.
pub(crate) fn keep_mass(candidates: &mut Vec<Candidate>, enough: f64) {
    // exercise l4.nucleus
    // The first `least` are kept in any case, and have this mass; the answer is one of least + 1 ..= most.
    let (mut least, mut most, mut kept) = (0, candidates.len(), 0.0);
    while most - least > 1 {
        let middle = (most - least) / 2;
        let (front, _, _) =
            candidates[least..most].select_nth_unstable_by_key(middle, |candidate| candidate.rank);
        let with_front = kept + mass(front);
        if with_front >= enough {
            most = least + middle;
        } else {
            kept = with_front;
            least += middle;
        }
    }
    candidates.truncate(most);
    // end of exercise
}

/// Put the candidates in line by how near their surprise is to the expected one.
///
/// The surprise of a token is `-ln p`, its expectation is the entropy. With `p = e^scaled / Z` the two differ by
/// `(ln Z - scaled) - (ln Z - mean of scaled)`: neither logarithms nor `Z` are needed, only how far a logit is from the
/// mean of the logits.
pub(crate) fn line_up_by_surprise(candidates: &mut [Candidate]) {
    // exercise l4.nucleus
    let of = |c: &Candidate| f64::from(c.share) * f64::from(c.scaled);
    let mean = candidates.iter().map(of).sum::<f64>() / mass(candidates);
    for candidate in candidates {
        let distance = (f64::from(candidate.scaled) - mean).abs() as f32;
        candidate.rank = rank(-distance, candidate.id());
    }
    // end of exercise
}
