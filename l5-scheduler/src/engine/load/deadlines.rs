//! Deadlines of the unfinished requests of an engine.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::AtomicSeconds;
use crate::{RequestId, Time};

/// Deadline of a request, by the clock of the gauge. The id makes it unique.
pub(crate) type Deadline = (Time, RequestId);

/// Deadlines of unfinished requests, from their submission to their end. Steps do not touch them: the lock is taken
/// when a request with a deadline arrives or ends, and the earliest deadline is read without it.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// In order, so that the end of a request needs no scan of the others.
    unfinished: Mutex<BTreeSet<Deadline>>,
    earliest: AtomicSeconds,
}

impl Deadlines {
    pub(super) fn add(&self, deadline: Deadline) {
        self.change(|unfinished| unfinished.insert(deadline));
    }

    pub(super) fn remove(&self, deadline: Deadline) {
        self.change(|unfinished| unfinished.remove(&deadline));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<Deadline>) -> bool) {
        let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut unfinished);
        // Before the lock is released: two threads publish in the order of their changes.
        self.earliest.set(unfinished.first().map(|(deadline, _)| deadline.seconds()));
    }

    /// Earliest deadline of an unfinished request.
    pub(super) fn earliest(&self) -> Option<Time> {
        self.earliest.get().map(Time)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    proptest! {
        /// Against a scan of all unfinished requests, after each arrival and each end, whatever its reason. Deadlines
        /// are often equal, and many requests have none.
        #[test]
        fn the_earliest_deadline_is_the_least_of_those_that_remain(
            events in prop::collection::vec(
                (any::<bool>(), prop::option::of(0_u8..6), any::<Index>()), 0..60,
            ),
        ) {
            let deadlines = Deadlines::default();
            let mut unfinished: Vec<(RequestId, Option<Time>)> = Vec::new();
            for (number, (arrives, deadline, which)) in (0..).zip(events) {
                if arrives {
                    let (id, deadline) = (RequestId(number), deadline.map(|at| Time(f64::from(at))));
                    deadline.into_iter().for_each(|at| deadlines.add((at, id)));
                    unfinished.push((id, deadline));
                } else if !unfinished.is_empty() {
                    let (id, deadline) = unfinished.swap_remove(which.index(unfinished.len()));
                    deadline.into_iter().for_each(|at| deadlines.remove((at, id)));
                }
                let naive = unfinished.iter().filter_map(|(_, deadline)| *deadline).min();
                prop_assert_eq!(deadlines.earliest(), naive);
            }
        }
    }
}
