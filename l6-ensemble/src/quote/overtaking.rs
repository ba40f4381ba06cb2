//! How far later requests delay those that they overtake.
//!
//! A forecast knows two bounds of a wait: nothing overtakes the request, or others do as far as the door lets them
//! ([`Quote::first_token_range`](super::Quote::first_token_range)). Where the truth is between the two depends on the
//! traffic, and the lane measures it: over the requests that have had their first token, the mean of
//!
//! ```text
//! fraction = (actual - earliest) / (latest - earliest), from 0 to 1
//! ```
//!
//! in which older requests count less. Each priority has its own mean, because those that are less urgent are
//! overtaken by others as well.

use std::collections::BTreeMap;
use std::time::Duration;

/// Factor by which the weight of a request shrinks with each later one: about the last 50 requests count.
const DECAY: f64 = 0.98;

/// Fraction before any request was measured, and its weight in requests.
const PRIOR: (f64, f64) = (0.5, 1.0);

/// Maximum number of priorities with a mean of their own. Clients choose priorities, so the memory needs a bound.
const MAX_PRIORITIES: usize = 16;

/// The mean fractions, as weights and weighted sums.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overtaking {
    all: [f64; 2],
    by_priority: BTreeMap<i64, [f64; 2]>,
}

impl Overtaking {
    /// Notes that a request of this priority had its first token after `actual` seconds.
    pub(crate) fn add(&mut self, priority: i64, range: [Duration; 2], actual: f64) {
        let [earliest, latest] = range.map(|time| time.as_secs_f64());
        let fraction = (actual - earliest) / (latest - earliest);
        if latest <= earliest || !fraction.is_finite() {
            return;
        }
        let add = |[weight, sum]: &mut [f64; 2]| {
            *weight = DECAY * *weight + 1.0;
            *sum = DECAY * *sum + fraction.clamp(0.0, 1.0);
        };
        add(&mut self.all);
        if self.by_priority.len() < MAX_PRIORITIES || self.by_priority.contains_key(&priority) {
            add(self.by_priority.entry(priority).or_default());
        }
    }

    /// The fraction for requests of this priority, from 0 to 1. One that was not seen has the mean of all.
    pub(crate) fn fraction(&self, priority: i64) -> f64 {
        let [weight, sum] = *self.by_priority.get(&priority).unwrap_or(&self.all);
        let (fraction, prior) = PRIOR;
        (sum + fraction * prior) / (weight + prior)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

    #[test]
    fn each_priority_has_its_own_mean() {
        let mut overtaking = Overtaking::default();
        assert_eq!(overtaking.fraction(0), 0.5, "nothing is known");
        for _ in 0..500 {
            overtaking.add(0, RANGE, 1.1);
            overtaking.add(1, RANGE, 1.9);
        }
        let near = |a: f64, b: f64| (a - b).abs() < 0.02;
        assert!(near(overtaking.fraction(0), 0.1) && near(overtaking.fraction(1), 0.9));
        assert!(near(overtaking.fraction(7), 0.5), "the mean of all");
    }

    #[test]
    fn one_request_that_waited_for_minutes_says_no_more_than_another() {
        let mut overtaking = Overtaking::default();
        (0..50).for_each(|_| overtaking.add(0, RANGE, 1.0));
        overtaking.add(0, RANGE, 300.0);
        assert!(overtaking.fraction(0) < 0.1, "{}", overtaking.fraction(0));
    }

    #[test]
    fn the_number_of_priorities_is_bounded_and_a_range_of_nothing_says_nothing() {
        let mut overtaking = Overtaking::default();
        (0..1000).for_each(|priority| overtaking.add(priority, RANGE, 2.0));
        assert_eq!(overtaking.by_priority.len(), MAX_PRIORITIES);
        assert!(overtaking.fraction(999) > 0.9);
        let before = overtaking.all;
        overtaking.add(0, [RANGE[0]; 2], 5.0);
        overtaking.add(0, RANGE, f64::NAN);
        assert_eq!(overtaking.all, before);
    }
}
