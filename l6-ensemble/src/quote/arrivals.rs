//! Requests that will arrive later.
//!
//! A quote counts the requests that are in flight, and those that may come: more urgent ones overtake the request, and
//! while other lanes of the machine get requests they keep their part of its time. What will arrive is not known; the
//! best guess is that it is like the recent past. So the last admitted requests of a lane are taken for its next ones,
//! over and over, at even distances: chance would bring them in bursts, and bursts at the wrong moments are worse than
//! none.
//!
//! Not all of the past goes on. A client that sends its next request when it has the last response sends nothing while
//! this request is in flight. Such a *closed loop* of `n` clients is told from independent arrivals by what a request
//! finds when it arrives: the requests of the `n - 1` others, where a request that arrives independently finds the mean
//! number in flight (the arrival theorem of Lavenberg and Reiser 1980, "Stationary state probabilities at arrival
//! instants for closed queueing networks"). The ratio of the two is the part of the arrivals that is expected to go on.

use std::collections::VecDeque;

use l5_scheduler::{RequestId, Time};

use super::in_flight::Admitted;

/// Number of arrivals that are kept.
const ARRIVALS: usize = 64;

/// Number of arrivals below which none is expected.
const MIN_ARRIVALS: usize = 4;

/// Seconds after which an arrival says nothing about the next ones.
const MAX_AGE: f64 = 60.0;

/// A request that was admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    id: RequestId,
    pub request: Admitted,
    /// Time of its end and number of output tokens, once it has ended.
    pub end: Option<(Time, usize)>,
}

impl Arrival {
    /// Seconds that it has been in flight.
    pub(crate) fn seconds(&self, now: Time) -> f64 {
        (self.end.map_or(now, |(at, _)| at) - self.request.arrival).max(0.0)
    }
}

/// The requests that were admitted last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals(VecDeque<Arrival>);

impl Arrivals {
    pub(crate) fn add(&mut self, id: RequestId, request: Admitted) {
        if self.0.len() == ARRIVALS {
            self.0.pop_front();
        }
        self.0.push_back(Arrival { id, request, end: None });
    }

    /// Notes the end of a request.
    pub(crate) fn end(&mut self, id: RequestId, at: Time, output: usize) {
        let open = self.0.iter_mut().rev().find(|own| own.id == id && own.end.is_none());
        open.into_iter().for_each(|own| own.end = Some((at, output)));
    }

    /// The last arrivals, and the seconds in which they came. `None` if they are too few.
    pub(crate) fn recent(&self, now: Time) -> Option<(impl Iterator<Item = &Arrival>, f64)> {
        let old = self.0.partition_point(|own| now - own.request.arrival > MAX_AGE);
        let first = self.0.get(old).filter(|_| self.0.len() - old >= MIN_ARRIVALS)?;
        let seconds = now - first.request.arrival;
        (seconds > 0.0).then(|| (self.0.range(old..), seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(arrivals: &mut Arrivals, seconds: std::ops::Range<u32>) {
        for second in seconds {
            let arrival = Time(f64::from(second));
            arrivals.add(RequestId(second.into()), Admitted { arrival, ..Admitted::default() });
        }
    }

    #[test]
    fn only_the_last_arrivals_count() {
        let mut arrivals = Arrivals::default();
        add(&mut arrivals, 0..3);
        assert!(arrivals.recent(Time(3.0)).is_none(), "too few");
        add(&mut arrivals, 3..1000);
        let recent = |now| arrivals.recent(Time(now)).map(|(all, seconds)| (all.count(), seconds));
        assert_eq!(recent(1000.0), Some((60, 60.0)), "a minute");
        assert_eq!(recent(1050.0), Some((10, 60.0)));
        assert_eq!(recent(1100.0), None, "no more requests come");
    }

    #[test]
    fn an_arrival_keeps_what_became_of_it() {
        let mut arrivals = Arrivals::default();
        add(&mut arrivals, 0..4);
        arrivals.end(RequestId(1), Time(3.5), 7);
        arrivals.end(RequestId(1), Time(9.0), 9);
        let (all, _) = arrivals.recent(Time(5.0)).unwrap();
        let seconds: Vec<_> = all.map(|own| (own.seconds(Time(5.0)), own.end)).collect();
        assert_eq!(seconds[0], (5.0, None));
        assert_eq!(seconds[1], (2.5, Some((Time(3.5), 7))));
    }
}
