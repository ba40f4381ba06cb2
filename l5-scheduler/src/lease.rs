//! Leases: blocks that are held for no running request, because an agent's next step will need them.
//!
//! Each step of an agent begins with all tokens of the step before it. Between two of them a tool runs, for seconds or
//! minutes, and under load the blocks of the first would be evicted before the second arrives. A lease holds them until
//! a given time. It is a hint, not a guarantee: leases end before a running request is preempted.
//!
//! (Pinning an agent's cache with a time to live is from Li et al. 2025, "Continuum".)

mod holders;

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use l3_paged_kv::{BlockId, SeqId};

use crate::{Job, JobKey, RequestId, Time};
use holders::Holders;

/// Maximum number of leases of one job. A job has several if its steps overlap and do not begin with each other; a
/// further one ends the oldest that can be ended. Leases that are being stored can be more.
const MAX_LEASES_PER_JOB: usize = 8;

/// Lease id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// When the blocks of a lease are freed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LeaseState {
    /// At this time, or earlier if the pool needs them.
    Until(Time),
    /// When the pool needs them.
    Kept,
    /// When they are stored elsewhere. The pool cannot have them before that.
    Storing,
}

/// Blocks of a finished request that are still held.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Lease id.
    pub id: LeaseId,
    /// Request id of the finished request.
    pub request: RequestId,
    /// Step of an agent's job that the request was.
    pub job: Option<Job>,
    /// Time at which the request finished.
    pub since: Time,
    /// When the blocks are freed.
    pub state: LeaseState,
    /// Number of blocks. Only full blocks are held, since no other block can be hit.
    pub blocks: usize,
    /// Tool that the request called, if the executor noted one.
    pub tool: Option<String>,
    /// Key of the job.
    pub job_key: Option<JobKey>,
    pub(crate) seq: SeqId,
}

impl Lease {
    /// Time at which the blocks are freed, if it is known.
    pub fn until(&self) -> Option<Time> {
        match self.state {
            LeaseState::Until(until) => Some(until),
            LeaseState::Kept | LeaseState::Storing => None,
        }
    }

    /// Whether the pool can have the blocks before their time.
    pub fn can_end(&self) -> bool {
        self.state != LeaseState::Storing
    }

    /// Position among the leases that can be ended: the next to expire first, then those without an expiry.
    fn order(&self) -> Option<(Time, LeaseId)> {
        match self.state {
            LeaseState::Until(until) => Some((until, self.id)),
            LeaseState::Kept => Some((Time(f64::INFINITY), self.id)),
            LeaseState::Storing => None,
        }
    }
}

/// A lease that is about to be made.
pub(crate) struct NewLease {
    pub request: RequestId,
    pub job: Option<Job>,
    pub job_key: Option<JobKey>,
    pub tool: Option<String>,
    pub since: Time,
    pub state: LeaseState,
    pub seq: SeqId,
}

/// All leases of a scheduler.
#[derive(Debug, Default)]
pub struct Leases {
    by_id: HashMap<LeaseId, Lease>,
    /// Leases that can be ended, in the order of [`Lease::order`].
    by_end: BTreeSet<(Time, LeaseId)>,
    /// Leases of each job, the oldest first.
    by_job: HashMap<JobKey, Vec<LeaseId>>,
    /// Leases whose blocks must be stored, with no [`StepOp::Store`](crate::StepOp::Store) planned yet.
    to_store: Vec<LeaseId>,
    /// Blocks of all leases.
    holders: Holders,
    next: u64,
}

impl Leases {
    /// Number of leases.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are no leases.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All leases, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.by_id.values()
    }

    /// Number of blocks that leases hold; a block that several leases share counts once.
    pub fn blocks(&self) -> usize {
        self.holders.len()
    }

    /// Whether a lease holds this block.
    pub(crate) fn holds(&self, block: BlockId) -> bool {
        self.holders.contains(block)
    }

    /// Number of leases that can be ended.
    pub(crate) fn num_endable(&self) -> usize {
        self.by_end.len()
    }

    /// The lease that expires first. Leases whose blocks are being stored are left out: they cannot be ended.
    pub fn first(&self) -> Option<&Lease> {
        self.soonest().next()
    }

    /// Leases that can be ended, in the order of expiry; behind them those without one, the oldest first.
    pub fn soonest(&self) -> impl Iterator<Item = &Lease> {
        self.by_end.iter().filter_map(|(_, id)| self.by_id.get(id))
    }

    /// Time at which the next lease expires.
    pub fn next_deadline(&self) -> Option<Time> {
        self.first()?.until()
    }

    /// The lease that follows lease `after` in the order of [`Leases::soonest`]; the first one without `after`.
    pub fn next_to_expire(&self, after: Option<LeaseId>) -> Option<&Lease> {
        let Some(after) = after else { return self.first() };
        let behind = (Bound::Excluded(self.get(after)?.order()?), Bound::Unbounded);
        self.by_end.range(behind).find_map(|(_, id)| self.by_id.get(id))
    }

    /// The lease that comes before lease `before` in the order of [`Leases::soonest`]; the last one without `before`.
    pub fn last_to_expire(&self, before: Option<LeaseId>) -> Option<&Lease> {
        let end = match before {
            None => Bound::Unbounded,
            Some(before) => Bound::Excluded(self.get(before)?.order()?),
        };
        self.by_end
            .range((Bound::Unbounded, end))
            .next_back()
            .and_then(|(_, id)| self.by_id.get(id))
    }

    /// A lease.
    pub fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.by_id.get(&id)
    }

    /// Leases of a job, the oldest first.
    pub fn of_job(&self, job: &JobKey) -> &[LeaseId] {
        self.by_job.get(job).map_or(&[], Vec::as_slice)
    }

    /// Adds a lease of these blocks.
    pub(crate) fn add(&mut self, new: NewLease, blocks: &[BlockId]) -> LeaseId {
        let NewLease { request, job, job_key, tool, since, state, seq } = new;
        let id = LeaseId(self.next);
        self.next += 1;
        let lease =
            Lease { id, request, job, since, state, blocks: blocks.len(), tool, job_key, seq };
        match lease.order() {
            Some(order) => _ = self.by_end.insert(order),
            None => self.to_store.push(id),
        }
        self.holders.hold(blocks);
        if let Some(key) = &lease.job_key {
            self.by_job.entry(key.clone()).or_default().push(id);
        }
        self.by_id.insert(id, lease);
        id
    }

    /// The oldest lease of a job that can be ended, if the job has too many.
    pub(crate) fn surplus(&self, job: &JobKey) -> Option<LeaseId> {
        let of_job = self.of_job(job);
        if of_job.len() <= MAX_LEASES_PER_JOB {
            return None;
        }
        let can_end = |id: &&LeaseId| self.by_id.get(*id).is_some_and(Lease::can_end);
        of_job.iter().find(can_end).copied()
    }

    /// Removes a lease, of these blocks.
    pub(crate) fn remove(&mut self, id: LeaseId, blocks: &[BlockId]) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        match lease.order() {
            Some(order) => _ = self.by_end.remove(&order),
            None => self.to_store.retain(|other| *other != id),
        }
        self.holders.release(blocks);
        if let Some(key) = &lease.job_key
            && let Some(of_job) = self.by_job.get_mut(key)
        {
            of_job.retain(|other| *other != id);
            if of_job.is_empty() {
                self.by_job.remove(key);
            }
        }
        Some(lease)
    }

    /// Takes the leases whose storing must be planned.
    pub(crate) fn take_to_store(&mut self) -> Vec<LeaseId> {
        std::mem::take(&mut self.to_store)
    }

    /// The step that was to store this lease did not run: plans it again.
    pub(crate) fn store_again(&mut self, id: LeaseId) {
        if self.by_id.contains_key(&id) {
            self.to_store.push(id);
        }
    }

    /// Whether any lease waits for its storing to be planned.
    pub(crate) fn has_to_store(&self) -> bool {
        !self.to_store.is_empty()
    }

    /// Whether any lease is being stored, or will be.
    pub fn is_storing(&self) -> bool {
        self.by_id.len() > self.by_end.len()
    }
}
