//! The end of a request, and what happens to its blocks.

use std::collections::HashSet;

use l3_paged_kv::SeqId;

use super::Scheduler;
use crate::{FinishReason, LeaseId, Retain, StepOp, Time};

impl Scheduler {
    /// Ends a running request with the step that was applied. The policy decides what happens to its blocks. The lease
    /// of the same job's previous step ends, because this request's blocks contain that one's.
    pub(super) fn finish(&mut self, key: u32, reason: FinishReason) {
        let entry = self.requests.at(key);
        let retain = match reason {
            FinishReason::Stop | FinishReason::Length => {
                self.policy.retain(&entry.view(), self.step.now)
            }
            // No request will continue from here, or should.
            FinishReason::KvExhausted | FinishReason::Aborted | FinishReason::Failed => {
                Retain::Free
            }
        };
        let last = entry.job.as_ref().and_then(|job| self.leases.of_job(&job.id));
        match retain {
            Retain::Free => {}
            Retain::LeaseUntil(until) => self.keep(key, Some(until)),
            Retain::Offload => self.keep(key, None),
        }
        if let Some(last) = last {
            self.end_lease(last);
        }
        self.remove(key, reason);
    }

    /// Holds the blocks of a request that ends in a lease. Only full blocks can be hit, so a partial last block is
    /// freed.
    fn keep(&mut self, key: u32, until: Option<Time>) {
        let entry = self.requests.at_mut(key);
        let blocks = entry.computed / self.config.block_size;
        if blocks == 0 || !self.config.enable_prefix_caching {
            return;
        }
        let Some(seq) = entry.seq else { return };
        let cut = self.blocks.rollback(seq, blocks * self.config.block_size);
        debug_assert!(matches!(cut, Ok(None)), "{cut:?}");
        entry.seq = None;
        let (id, job) = (entry.id, entry.job.clone());
        self.leases.add(id, job, seq, blocks, until);
    }

    /// Ends leases that have expired.
    pub(super) fn end_leases(&mut self, now: Time) {
        while let Some(lease) = self.leases.first()
            && lease.until.is_some_and(|until| until <= now)
        {
            self.end_lease(lease.id);
        }
    }

    /// Ends a lease: its blocks are free, and can still be hit. Returns whether it did: a lease whose blocks are being
    /// stored does not end.
    pub(super) fn end_lease(&mut self, lease: LeaseId) -> bool {
        if self.leases.get(lease).is_none_or(|lease| lease.until.is_none()) {
            return false;
        }
        self.let_go(lease)
    }

    fn let_go(&mut self, lease: LeaseId) -> bool {
        let Some(lease) = self.leases.remove(lease) else { return false };
        self.free_blocks(lease.seq);
        true
    }

    /// Ends all leases that can be ended.
    pub(super) fn end_all_leases(&mut self) {
        while let Some(lease) = self.leases.first() {
            self.end_lease(lease.id);
        }
    }

    /// Plans the stores that are due as part of this step.
    pub(super) fn plan_stores(&mut self) {
        if !self.leases.has_to_store() {
            return;
        }
        for id in self.leases.take_to_store() {
            let Some(lease) = self.leases.get(id) else { continue };
            let Ok(table) = self.blocks.table(lease.seq) else { continue };
            let blocks = table.blocks().to_vec();
            self.step.ops.push(StepOp::Store { lease: id, id: lease.request, blocks });
        }
    }

    /// Tells the scheduler that the blocks of a lease have been stored elsewhere
    /// ([`StepOp::Store`](crate::StepOp::Store)), or will not be: they are free now. Returns whether such a lease was
    /// being stored.
    pub fn kv_stored(&mut self, lease: LeaseId) -> bool {
        self.leases.get(lease).is_some_and(|lease| lease.until.is_none()) && self.let_go(lease)
    }

    /// Blocks that leases hold, shared ones once: without requests, these and the free ones are all but the null block.
    /// Reads every table, so it is for tests and metrics, not for every step.
    pub fn retained_blocks(&self) -> usize {
        let table = |seq: SeqId| self.blocks.table(seq).map_or(&[][..], |table| table.blocks());
        let held = self.leases.iter().flat_map(|lease| table(lease.seq));
        held.collect::<HashSet<_>>().len()
    }
}
