//! Requests that will arrive later.
//!
//! A quote counts the requests that are in flight, and those that may come: more urgent ones overtake the request, and
//! while other lanes of the machine get requests they keep their part of its time. What will arrive is not known; the
//! best guess is that it is like the recent past. So the last admitted requests of a lane are taken for its next ones,
//! over and over, at even distances: chance would bring them in bursts, and bursts at the wrong moments are worse than
//! none.

use std::collections::VecDeque;

use l5_scheduler::Time;

use super::in_flight::Admitted;

/// Number of arrivals that are kept.
const ARRIVALS: usize = 64;

/// Number of arrivals below which none is expected.
const MIN_ARRIVALS: usize = 4;

/// Seconds after which an arrival says nothing about the next ones.
const MAX_AGE: f64 = 60.0;

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
        let old = self.0.partition_point(|request| now - request.arrival > MAX_AGE);
        let first = self.0.get(old).filter(|_| self.0.len() - old >= MIN_ARRIVALS)?;
        let seconds = now - first.arrival;
        (seconds > 0.0).then(|| (self.0.range(old..), seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_arrivals_count() {
        let mut arrivals = Arrivals::default();
        let at = |second: u32| Admitted { arrival: Time(f64::from(second)), ..Admitted::default() };
        (0..3).for_each(|second| arrivals.add(at(second)));
        assert!(arrivals.recent(Time(3.0)).is_none(), "too few");
        (3..1000).for_each(|second| arrivals.add(at(second)));
        let recent = |now| arrivals.recent(Time(now)).map(|(all, seconds)| (all.count(), seconds));
        assert_eq!(recent(1000.0), Some((60, 60.0)), "a minute");
        assert_eq!(recent(1050.0), Some((10, 60.0)));
        assert_eq!(recent(1100.0), None, "no more requests come");
    }
}
