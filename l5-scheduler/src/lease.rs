//! Leases: blocks that are held for no running request, because an agent's next step will need them.
//!
//! Each step of an agent begins with all tokens of the step before it. Between two of them a tool runs, for seconds or
//! minutes, and under load the blocks of the first would be evicted before the second arrives. A lease holds them until
//! a given time. It is a hint, not a guarantee: leases end before a running request is preempted.
//!
//! (Pinning an agent's cache with a time to live is from Li et al. 2025, "Continuum".)

use std::collections::{BTreeSet, HashMap};

use l3_paged_kv::SeqId;

use crate::{Job, RequestId, Time};

/// Lease id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// Blocks of a finished request, held until a given time, until the pool needs them, or until they are stored
/// elsewhere.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Lease id.
    pub id: LeaseId,
    /// Request id of the finished request.
    pub request: RequestId,
    /// Step of an agent's job that the request was.
    pub job: Option<Job>,
    /// Time at which the blocks are freed. `None`: they are being stored elsewhere, and are freed when that is done.
    pub until: Option<Time>,
    /// Number of blocks. Only full blocks are held, since no other block can be hit.
    pub blocks: usize,
    pub(crate) seq: SeqId,
}

/// All leases of a scheduler.
#[derive(Debug, Default)]
pub struct Leases {
    by_id: HashMap<LeaseId, Lease>,
    /// Leases with an expiry, the next to expire first.
    by_end: BTreeSet<(Time, LeaseId)>,
    /// Newest lease of each job.
    by_job: HashMap<String, LeaseId>,
    /// Leases whose blocks must be stored, with no [`StepOp::Store`](crate::StepOp::Store) planned yet.
    to_store: Vec<LeaseId>,
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

    /// Blocks of all leases; a block that two leases share counts twice.
    pub fn blocks(&self) -> usize {
        self.by_id.values().map(|lease| lease.blocks).sum()
    }

    /// The lease that expires first. Leases whose blocks are being stored are left out: they cannot be ended.
    pub fn first(&self) -> Option<&Lease> {
        self.soonest().next()
    }

    /// Leases that can be ended, in the order of expiry.
    pub fn soonest(&self) -> impl Iterator<Item = &Lease> {
        self.by_end.iter().filter_map(|(_, id)| self.by_id.get(id))
    }

    pub(crate) fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.by_id.get(&id)
    }

    /// Newest lease of a job.
    pub(crate) fn of_job(&self, job: &str) -> Option<LeaseId> {
        self.by_job.get(job).copied()
    }

    pub(crate) fn add(
        &mut self,
        request: RequestId,
        job: Option<Job>,
        seq: SeqId,
        blocks: usize,
        until: Option<Time>,
    ) -> LeaseId {
        let id = LeaseId(self.next);
        self.next += 1;
        match until {
            Some(until) => _ = self.by_end.insert((until, id)),
            None => self.to_store.push(id),
        }
        if let Some(job) = &job {
            self.by_job.insert(job.id.clone(), id);
        }
        self.by_id.insert(id, Lease { id, request, job, until, blocks, seq });
        id
    }

    pub(crate) fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        match lease.until {
            Some(until) => _ = self.by_end.remove(&(until, id)),
            None => self.to_store.retain(|other| *other != id),
        }
        if let Some(job) = &lease.job
            && self.by_job.get(&job.id) == Some(&id)
        {
            self.by_job.remove(&job.id);
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
    pub(crate) fn is_storing(&self) -> bool {
        self.by_id.len() > self.by_end.len()
    }
}
