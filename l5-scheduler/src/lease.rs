//! Blocks that are kept though nobody runs who uses them: what an agent will ask for again.
//!
//! An agent's steps begin alike: each has everything that was said before it. Between two of them a tool runs, for seconds
//! or minutes, and under load the blocks of the first would long be somebody else's when the second comes. A lease keeps
//! them until a moment, as a wish and not as a right: they go before anybody who runs has to.
//!
//! (Pinning an agent's cache with a time to live is from Li et al. 2025, "Continuum".)

use std::collections::{BTreeSet, HashMap};

use l3_paged_kv::SeqId;

use crate::{Job, RequestId, Time};

/// A lease's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// Blocks of a request that has finished, held until a deadline, until the pool runs dry, or until they are stored
/// elsewhere.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// Whose blocks they were.
    pub request: RequestId,
    /// The job it was a step of.
    pub job: Option<Job>,
    /// When they are free. `None`: when they have been stored, and not before, because somebody reads them.
    pub until: Option<Time>,
    /// Blocks of its table: full ones, as nobody could find another.
    pub blocks: usize,
    pub(crate) seq: SeqId,
}

/// The leases that there are.
#[derive(Debug, Default)]
pub struct Leases {
    by_id: HashMap<LeaseId, Lease>,
    /// Those that have an end, the next to end first.
    by_end: BTreeSet<(Time, LeaseId)>,
    /// The last one of each job.
    by_job: HashMap<String, LeaseId>,
    /// Those whose storing was not asked for yet.
    to_store: Vec<LeaseId>,
    next: u64,
}

impl Leases {
    /// How many.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.by_id.values()
    }

    /// Blocks of all tables, shared ones as often as they are shared.
    pub fn blocks(&self) -> usize {
        self.by_id.values().map(|lease| lease.blocks).sum()
    }

    /// The one that would end first. Those that are being stored are not among them: they cannot be ended.
    pub fn first(&self) -> Option<&Lease> {
        self.soonest().next()
    }

    /// Those that can be ended, the one that would end first before the others.
    pub fn soonest(&self) -> impl Iterator<Item = &Lease> {
        self.by_end.iter().filter_map(|(_, id)| self.by_id.get(id))
    }

    pub(crate) fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.by_id.get(&id)
    }

    /// The last lease of a job.
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

    /// Those whose storing was not asked for yet; now it is.
    pub(crate) fn take_to_store(&mut self) -> Vec<LeaseId> {
        std::mem::take(&mut self.to_store)
    }

    /// Storing was asked for in a step that did not run: ask again.
    pub(crate) fn store_again(&mut self, id: LeaseId) {
        if self.by_id.contains_key(&id) {
            self.to_store.push(id);
        }
    }

    /// Whether anybody's storing is to be asked for.
    pub(crate) fn has_to_store(&self) -> bool {
        !self.to_store.is_empty()
    }

    /// Whether anybody's blocks are being stored, or will be.
    pub(crate) fn is_storing(&self) -> bool {
        self.by_id.len() > self.by_end.len()
    }
}
