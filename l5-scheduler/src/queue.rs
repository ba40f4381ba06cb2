//! The waiting queue, in the order in which requests are admitted.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::Time;

/// Position of a request in the waiting queue, as its policy computes it when the request joins. Fields are compared in
/// their order; the lowest rank is first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// First key: for instance the priority.
    pub class: i64,
    /// Second key: the deadline, or infinity for a request without one. A policy that ignores deadlines leaves it at 0.
    pub deadline: Time,
    /// Third key: time of arrival.
    pub arrival: Time,
    /// Last key, which must be unique: a ticket or a request id.
    pub tie: i64,
}

/// Waiting requests by rank. Finding the next one and removing any one take logarithmic time.
#[derive(Debug, Default)]
pub(crate) struct WaitingQueue {
    by_rank: BTreeMap<Rank, u32>,
}

impl WaitingQueue {
    pub(crate) fn len(&self) -> usize {
        self.by_rank.len()
    }

    pub(crate) fn insert(&mut self, rank: Rank, key: u32) {
        let before = self.by_rank.insert(rank, key);
        debug_assert!(before.is_none(), "two requests of rank {rank:?}");
    }

    pub(crate) fn remove(&mut self, rank: Rank) -> Option<u32> {
        self.by_rank.remove(&rank)
    }

    /// The first request after rank `behind`; without it, the first of all.
    pub(crate) fn next(&self, behind: Option<Rank>) -> Option<(Rank, u32)> {
        // The usual case of a steady engine, which asks several times a step.
        if self.by_rank.is_empty() {
            return None;
        }
        // exercise l5.queue
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_rank.range((from, Bound::Unbounded)).next().map(|(rank, key)| (*rank, *key))
        // end of exercise
    }

    /// Keys of all requests, in the order of the queue.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_rank.values().copied()
    }
}
