//! Requests that will arrive later and be served earlier.
//!
//! A quote counts the requests that are ahead at the moment. Under earliest deadline first a request that has time is
//! overtaken by later ones that have none, and under priorities by later ones that are more urgent. The queue ahead of
//! it then shrinks more slowly than the lane works: at the rate `1 - u`, where `u` is the fraction of the lane's time
//! that recent arrivals took which would be ahead of it. (With a constant `u` that is the classical wait `W / (1 - u)`
//! of a priority queue, Cobham 1954.) As its deadline comes closer, fewer new requests have an earlier one, so `u`
//! falls with time.

use std::collections::VecDeque;

use l5_scheduler::Time;

use super::in_flight::Admitted;

/// Number of arrivals from which `u` is estimated.
const ARRIVALS: usize = 128;

/// Number of arrivals below which no request is supposed to be overtaken.
const MIN_ARRIVALS: usize = 16;

/// Maximum of `u`: a request that is overtaken all the time waits very long, and not for ever.
const MAX_FRACTION: f64 = 0.98;

/// The requests that were admitted last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals(VecDeque<Admitted>);

impl Arrivals {
    pub(crate) fn add(&mut self, request: Admitted) {
        if self.0.len() == ARRIVALS {
            self.0.pop_front();
        }
        self.0.push_back(request);
    }

    /// The last arrivals, and the seconds in which they came. `None` if they are too few.
    pub(crate) fn recent(&self, now: Time) -> Option<(impl Iterator<Item = &Admitted>, f64)> {
        let first = self.0.front().filter(|_| self.0.len() >= MIN_ARRIVALS)?;
        let seconds = now - first.arrival;
        (seconds > 0.0).then(|| (self.0.iter(), seconds))
    }
}

/// Fraction of the lane's time that goes to arrivals which are ahead of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overtakers {
    /// Seconds from the arrival to the deadline, and fraction of the time, by descending deadlines. A request of
    /// another class, which is ahead whatever the deadlines are, has a deadline of minus infinity.
    by_deadline: Vec<(f64, f64)>,
}

impl Overtakers {
    /// `fractions` of the time by deadlines.
    pub(crate) fn new(mut by_deadline: Vec<(f64, f64)>) -> Self {
        by_deadline.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        Self { by_deadline }
    }

    /// Seconds until `backlog` seconds of work have been done ahead of a request, while only requests that are ahead
    /// whatever their deadlines are overtake it.
    pub(crate) fn wait_for_urgent(&self, backlog: f64) -> f64 {
        let urgent = self.by_deadline.iter().rev();
        let urgent = urgent.take_while(|(deadline, _)| *deadline == f64::NEG_INFINITY);
        let fraction: f64 = urgent.map(|(_, fraction)| fraction).sum();
        backlog / (1.0 - fraction.clamp(0.0, MAX_FRACTION))
    }

    /// Seconds until `backlog` seconds of work have been done ahead of a request with `left` seconds to its deadline
    /// (infinite without one), while others overtake it.
    pub(crate) fn wait(&self, backlog: f64, left: f64) -> f64 {
        let ahead = self.by_deadline.iter().skip_while(|(deadline, _)| *deadline >= left);
        let mut fraction: f64 = ahead.clone().map(|(_, fraction)| fraction).sum();
        let (mut waited, mut backlog) = (0.0, backlog);
        for (deadline, own) in ahead {
            let rate = 1.0 - fraction.clamp(0.0, MAX_FRACTION);
            // From this time on, arrivals with this deadline are behind the request.
            let until = left - deadline;
            if backlog <= rate * (until - waited) {
                return waited + backlog / rate;
            }
            backlog -= rate * (until - waited);
            (waited, fraction) = (until, fraction - own);
        }
        waited + backlog
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-9, "{got}, not {want}");
    }

    #[test]
    fn without_overtakers_the_wait_is_the_work_ahead() {
        near(Overtakers::default().wait(3.0, 10.0), 3.0);
    }

    #[test]
    fn urgent_arrivals_take_their_fraction_of_the_time() {
        let overtakers = Overtakers::new(vec![(f64::NEG_INFINITY, 0.5), (f64::NEG_INFINITY, 0.25)]);
        near(overtakers.wait(3.0, f64::INFINITY), 12.0);
        near(overtakers.wait(0.0, f64::INFINITY), 0.0);
        near(overtakers.wait_for_urgent(3.0), 12.0);
    }

    #[test]
    fn arrivals_overtake_until_their_deadline_would_be_later() {
        // For 4 s, arrivals with 6 s to their deadline are ahead of a request that has 10 s.
        let overtakers = Overtakers::new(vec![(20.0, 0.9), (6.0, 0.5)]);
        near(overtakers.wait(1.0, 10.0), 2.0);
        near(overtakers.wait(2.0, 10.0), 4.0);
        near(overtakers.wait(3.0, 10.0), 5.0);
        near(overtakers.wait(3.0, 6.0), 3.0);
        near(overtakers.wait_for_urgent(3.0), 3.0);
    }

    #[test]
    fn a_request_that_is_overtaken_all_the_time_has_a_finite_wait() {
        let wait = Overtakers::new(vec![(5.0, 1.2)]).wait(1.0, f64::INFINITY);
        assert!(wait.is_finite() && wait > 10.0, "{wait}");
    }

    proptest! {
        #[test]
        fn more_work_and_more_overtakers_never_shorten_the_wait(
            overtakers in prop::collection::vec((0.1_f64..20.0, 0.0_f64..0.3), 0..8),
            more in (0.1_f64..20.0, 0.0_f64..0.3),
            (backlog, extra) in (0.0_f64..10.0, 0.0_f64..5.0),
            left in prop_oneof![0.1_f64..30.0, Just(f64::INFINITY)],
        ) {
            let wait = |all: &[(f64, f64)], backlog| Overtakers::new(all.to_vec()).wait(backlog, left);
            let before = wait(&overtakers, backlog);
            prop_assert!(before >= backlog * (1.0 - 1e-9));
            prop_assert!(wait(&overtakers, backlog + extra) >= before * (1.0 - 1e-9));
            let with_more = [&overtakers[..], &[more]].concat();
            prop_assert!(wait(&with_more, backlog) >= before * (1.0 - 1e-9));
        }
    }

    #[test]
    fn only_the_last_arrivals_count() {
        let mut arrivals = Arrivals::default();
        for second in 0..15 {
            arrivals.add(Admitted { arrival: Time(f64::from(second)), ..Admitted::default() });
        }
        assert!(arrivals.recent(Time(20.0)).is_none(), "too few");
        for second in 15..1000 {
            arrivals.add(Admitted { arrival: Time(f64::from(second)), ..Admitted::default() });
        }
        let (recent, seconds) = arrivals.recent(Time(1000.0)).expect("enough");
        assert_eq!((recent.count(), seconds), (ARRIVALS, ARRIVALS as f64));
    }
}
