//! The fewest tokens that have a given probability together, without a sort.
//!
//! Top-p and typical-p ask the same question of tokens in two different orders: how many, from the front, are enough? A
//! quickselect finds them, which does not ask "are there k in the front half?" but "is there enough in the front
//! half?". Each question is about half as many candidates as the one before.
//!
//! Most tokens of a row need not become candidates. Two bars close in on the border: tokens above the upper one are
//! kept, tokens below the lower one are dropped, and only those between them are selected from.

use l1_tensor::cpu::Isa;

use super::blocks::{Blocks, gather, mass_from};
use super::select::{Candidate, Order, rank};

/// Number of candidates from which selecting is faster than reading the row again.
const FEW: usize = 512;

/// Number of bisections after which the remaining values are nearly equal.
const QUESTIONS: usize = 12;

/// Sum of the candidates' weights.
pub(crate) fn mass(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.share)).sum()
}

/// Drops all but the fewest candidates, from the front, whose weights sum to `enough` (at least one is kept, and all if
/// they do not sum to that much). Their order is lost.
pub(crate) fn keep_mass(candidates: &mut Vec<Candidate>, enough: f64) {
    // exercise l4.nucleus
    // The first `least` are kept in any case and have the mass `kept`; the result is one of least + 1 ..= most.
    let (mut least, mut most, mut kept) = (0, candidates.len(), 0.0);
    while most - least > 1 {
        let half = (most - least) / 2;
        let (front, _, _) =
            candidates[least..most].select_nth_unstable_by_key(half, |candidate| candidate.rank);
        let with_front = kept + mass(front);
        if with_front >= enough {
            most = least + half;
        } else {
            kept = with_front;
            least += half;
        }
    }
    candidates.truncate(most);
    // end of exercise
}

/// The fewest tokens of a whole row, from the front, whose weights sum to `enough`. None of them may have a value below
/// `lowest`.
pub(crate) fn gather_mass(
    isa: Isa,
    from: &Blocks<'_>,
    shares: &[f32],
    order: Order,
    lowest: f32,
    enough: f64,
    found: &mut Vec<Candidate>,
) {
    found.clear();
    // exercise l4.nucleus
    // Tokens from `high` on are kept: `above` of them, with a mass of `kept`, which is not enough. Tokens below `low`
    // are dropped: those from it on are enough.
    let (mut low, mut high) = (lowest, f32::INFINITY);
    let (mut kept, mut above, mut from_low) = (0.0, 0, shares.len());
    let mut step = order.best(from.top()) - lowest;
    for _ in 0..QUESTIONS {
        if from_low - above <= FEW {
            break;
        }
        step /= 2.0;
        let bar = low + step;
        let (mass, count) = mass_from(isa, *from, shares, order, bar);
        if mass >= enough && count > 0 {
            (low, from_low) = (bar, count);
        } else {
            (high, kept, above) = (bar, mass, count);
        }
    }
    gather(isa, *from, order, low, high, found);
    keep_mass(found, enough - kept);
    if high < f32::INFINITY {
        gather(isa, *from, order, high, f32::INFINITY, found);
    }
    // end of exercise
}

/// Orders the candidates by how near their surprise is to the expected one: see [`by_surprise`].
pub(crate) fn line_up_by_surprise(candidates: &mut [Candidate]) {
    // exercise l4.nucleus
    let of = |c: &Candidate| f64::from(c.share) * f64::from(c.scaled);
    let order = by_surprise(candidates.iter().map(of).sum::<f64>() / mass(candidates));
    for candidate in candidates {
        candidate.rank = rank(order.value(candidate.scaled), candidate.id());
    }
    // end of exercise
}

/// Order of typical-p, from the mean of the logits (weighted by the tokens' weights).
///
/// The surprise of a token is `-ln p`, its expectation is the entropy. With `p = e^scaled / Z` the two differ by
/// `(ln Z - scaled) - (ln Z - mean of scaled)`: neither logarithms nor `Z` are needed, only how far a logit is from the
/// mean of the logits.
pub(crate) fn by_surprise(mean: f64) -> Order {
    Order::Near(mean as f32)
}

#[cfg(test)]
mod tests;
