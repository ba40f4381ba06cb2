//! Blocks that are kept though nobody runs who uses them: what an agent will ask for again.

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
    /// When they are free. `None`: when they have been stored.
    pub until: Option<Time>,
    /// Blocks of its table.
    pub blocks: usize,
    pub(crate) seq: SeqId,
}

/// The leases that there are.
#[derive(Debug, Default)]
pub struct Leases {
    leases: Vec<Lease>,
    next: u64,
}

impl Leases {
    /// How many.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Blocks of all tables, shared ones as often as they are shared.
    pub fn blocks(&self) -> usize {
        self.leases.iter().map(|lease| lease.blocks).sum()
    }

    /// The one that would end first; those that are being stored come last.
    pub fn first(&self) -> Option<&Lease> {
        todo!()
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
        self.leases.push(Lease { id, request, job, until, blocks, seq });
        id
    }

    pub(crate) fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        let _ = id;
        todo!()
    }
}
