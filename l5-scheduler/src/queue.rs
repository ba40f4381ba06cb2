//! Who waits, in the order in which they will be asked.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::Time;

/// A place in the queue: what a policy says of a request once, when it joins. Fields are compared from the first on,
/// lower goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// What counts most.
    pub class: i64,
    /// Then who came first.
    pub arrival: Time,
    /// Then this, which no two requests share: a ticket or a name.
    pub tie: i64,
}

/// The waiting requests by rank. Whoever is first is found at once and anybody can leave, however many wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingQueue {
    by_rank: BTreeMap<Rank, u32>,
}

impl WaitingQueue {
    pub(crate) fn len(&self) -> usize {
        self.by_rank.len()
    }

    pub(crate) fn insert(&mut self, rank: Rank, place: u32) {
        let before = self.by_rank.insert(rank, place);
        debug_assert!(before.is_none(), "two requests of rank {rank:?}");
    }

    pub(crate) fn remove(&mut self, rank: Rank) -> Option<u32> {
        self.by_rank.remove(&rank)
    }

    /// Who is first behind a rank, or first of all.
    pub(crate) fn next(&self, behind: Option<Rank>) -> Option<(Rank, u32)> {
        // exercise l5.queue
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_rank.range((from, Bound::Unbounded)).next().map(|(rank, place)| (*rank, *place))
        // end of exercise
    }

    /// Everybody, in order.
    pub(crate) fn places(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_rank.values().copied()
    }
}
