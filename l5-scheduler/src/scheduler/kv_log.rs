//! A log of what happens to blocks outside of steps, for observers: leases, and loads that have ended.

use std::collections::VecDeque;

use super::Scheduler;
use super::events::Happened;
use crate::lease::Leases;
use crate::{Lease, LeaseEnd, RequestId, Time};

/// Something that happened to blocks outside of the pool's normal use.
#[derive(Clone, Debug)]
pub enum KvChange {
    /// A lease was made.
    Leased(Lease),
    /// A lease has ended.
    LeaseEnded(Lease, LeaseEnd),
    /// Keys and values of the request's first `tokens` tokens are in its blocks: what it has loaded has arrived, or was
    /// lost.
    Loaded {
        /// Request id.
        id: RequestId,
        /// Number of tokens.
        tokens: usize,
    },
}

/// A change, and when it happened.
#[derive(Clone, Debug)]
pub struct KvChangeRecord {
    /// Number of the change, from 0.
    pub number: u64,
    /// Time of the plan or of the end of the step in which it happened; between two steps, the end of the first one.
    pub at: Time,
    /// The change.
    pub change: KvChange,
}

/// The changes since the last plan but one.
///
/// An observer looks at least once between two plans, so it misses none; and memory is bounded by what two steps bring
/// about.
#[derive(Debug, Default)]
pub(super) struct KvLog {
    records: VecDeque<KvChangeRecord>,
    /// Number of the next change.
    next: u64,
    /// Number of the first change since the last plan began.
    since_plan: u64,
}

impl KvLog {
    /// Forgets what was there when the last plan began.
    pub(super) fn begin_plan(&mut self) {
        while self.records.front().is_some_and(|record| record.number < self.since_plan) {
            self.records.pop_front();
        }
        self.since_plan = self.next;
    }

    fn push(&mut self, at: Time, change: KvChange) {
        self.records.push_back(KvChangeRecord { number: self.next, at, change });
        self.next += 1;
    }

    /// Notes the end of a load.
    pub(super) fn loaded(&mut self, at: Time, id: RequestId, tokens: usize) {
        self.push(at, KvChange::Loaded { id, tokens });
    }

    /// Notes what happened to a lease.
    pub(super) fn happened(&mut self, at: Time, happened: &Happened<'_>, leases: &Leases) {
        match *happened {
            Happened::Leased(id) => {
                if let Some(lease) = leases.get(id) {
                    self.push(at, KvChange::Leased(lease.clone()));
                }
            }
            Happened::LeaseEnded(lease, why) => {
                self.push(at, KvChange::LeaseEnded(lease.clone(), why));
            }
            Happened::Arrived(_) | Happened::Preempted(_) | Happened::Finished(..) => {}
        }
    }
}

impl Scheduler {
    /// Changes of number `from` and later, the oldest first. Those are kept that happened since the last plan but one began:
    /// an observer that looks in [`StepObserver::planned`](crate::StepObserver::planned) and in
    /// [`applied`](crate::StepObserver::applied) misses none.
    pub fn kv_changes(&self, from: u64) -> impl Iterator<Item = &KvChangeRecord> {
        let records = &self.kv_log.records;
        let first = records.front().map_or(0, |record| record.number);
        records.range(
            usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX).min(records.len())..,
        )
    }
}
