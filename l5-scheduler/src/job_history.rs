//! A history of leases: for how long the blocks of each step of a job were held, and whether that was of use.
//!
//! Continuum's evaluation records the same of its pins (Li et al. 2025), under the names `pinned_time`, `unpinned_time`
//! and `hit_length`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::scheduler::{KvChange, KvChangeRecord};
use crate::{
    Admitted, JobKey, Lease, LeaseEnd, LeaseId, RequestId, Scheduler, StepObserver, StepResult,
    StepRow, StepView, Time,
};

/// A lease that holds its blocks, or has held them.
#[derive(Clone, Debug, PartialEq)]
pub struct PinnedRequest {
    /// Request whose blocks were held.
    pub request: RequestId,
    /// Job of the request. `None`: it was no step of a job.
    pub job: Option<JobKey>,
    /// Tool that it called, if one was noted.
    pub tool: Option<String>,
    /// Number of blocks.
    pub blocks: usize,
    /// Time at which the lease began.
    pub pinned_time: Time,
    /// Time at which it ended, and why; `None` while it holds its blocks.
    pub unpinned: Option<(Time, LeaseEnd)>,
    /// Number of tokens in these blocks that the job's next request hit in the pool while they were held; 0 if none came.
    pub hit_length: usize,
}

/// Observer of an engine that records its leases. Clones share the history.
///
/// A step takes a lock that is held for a few moves, and does nothing where no lease begins or ends. The history keeps the
/// newest leases, as many as it was made for, and counts the others.
#[derive(Clone, Debug)]
pub struct JobHistory(Arc<Mutex<History>>);

#[derive(Debug)]
struct History {
    capacity: usize,
    /// Leases that hold blocks. The pool bounds their number.
    open: HashMap<LeaseId, PinnedRequest>,
    /// Leases that have ended, in that order.
    ended: VecDeque<Arc<PinnedRequest>>,
    dropped: u64,
    /// Number of leases that began or ended.
    changes: u64,
    /// Number of the first change that was not seen.
    next: u64,
}

/// A copy of the history.
#[derive(Clone, Debug)]
pub struct JobHistorySnapshot {
    /// Leases that have ended, in that order, and behind them those that hold blocks, in the order in which they began.
    pub pinned_requests: Vec<Arc<PinnedRequest>>,
    /// Number of older leases that were forgotten.
    pub dropped: u64,
    /// Number of leases that have begun or ended since the start: another snapshot with this number is the same.
    pub changes: u64,
}

impl JobHistory {
    /// A history of so many leases that have ended.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(History {
            capacity,
            open: HashMap::new(),
            ended: VecDeque::new(),
            dropped: 0,
            changes: 0,
            next: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of leases that have begun or ended.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// The history up to now. Copies pointers while the lock is held.
    pub fn snapshot(&self) -> JobHistorySnapshot {
        let history = self.lock();
        let mut pinned_requests: Vec<_> = history.ended.iter().cloned().collect();
        let mut open: Vec<_> = history.open.iter().collect();
        open.sort_by_key(|(id, _)| **id);
        pinned_requests.extend(open.into_iter().map(|(_, pin)| Arc::new(pin.clone())));
        let History { dropped, changes, .. } = *history;
        JobHistorySnapshot { pinned_requests, dropped, changes }
    }

    /// Records what has happened up to this plan.
    pub fn planned(&self, step: &StepView<'_>, scheduler: &Scheduler) {
        let mut history = self.lock();
        history.take(scheduler);
        if history.open.is_empty() {
            return;
        }
        for row in step.rows().filter(|row| row.row.admitted == Admitted::Now) {
            if let Some(job) = row.request.job_key() {
                history.hit(scheduler, job, row.row);
            }
        }
    }

    /// Records what has happened in a step.
    pub fn applied(&self, scheduler: &Scheduler) {
        self.lock().take(scheduler);
    }
}

impl StepObserver for JobHistory {
    fn planned(&mut self, step: &StepView<'_>, scheduler: &Scheduler) {
        (*self).planned(step, scheduler);
    }

    fn applied(&mut self, _: &StepResult, scheduler: &Scheduler) {
        (*self).applied(scheduler);
    }
}

impl History {
    /// Takes the changes that were not seen.
    fn take(&mut self, scheduler: &Scheduler) {
        for KvChangeRecord { number, at, change } in scheduler.kv_changes(self.next) {
            self.next = number + 1;
            match change {
                KvChange::Leased(lease) => _ = self.open.insert(lease.id, pinned(lease)),
                KvChange::LeaseEnded(lease, why) => self.end(lease, *why, *at),
                KvChange::Loaded { .. } => continue,
            }
            self.changes += 1;
        }
    }

    fn end(&mut self, lease: &Lease, why: LeaseEnd, at: Time) {
        let pin = self.open.remove(&lease.id).unwrap_or_else(|| pinned(lease));
        // A step that was abandoned may have been planned for a later time than the end.
        let unpinned = Some((Time(at.0.max(pin.pinned_time.0)), why));
        self.ended.push_back(Arc::new(PinnedRequest { unpinned, ..pin }));
        while self.ended.len() > self.capacity {
            self.ended.pop_front();
            self.dropped += 1;
        }
    }

    /// Notes what a job's next request hits of the job's leases.
    fn hit(&mut self, scheduler: &Scheduler, job: &JobKey, row: &StepRow) {
        let size = scheduler.config().block_size;
        for lease in scheduler.leases().of_job(job) {
            if let Some(pin) = self.open.get_mut(lease) {
                pin.hit_length = pin.hit_length.max(row.cached.min(pin.blocks * size));
            }
        }
    }
}

fn pinned(lease: &Lease) -> PinnedRequest {
    PinnedRequest {
        request: lease.request,
        job: lease.job_key.clone(),
        tool: lease.tool.clone(),
        blocks: lease.blocks,
        pinned_time: lease.since,
        unpinned: None,
        hit_length: 0,
    }
}
