//! The end of a request, and what becomes of its blocks.

use std::collections::HashSet;

use l3_paged_kv::SeqId;

use super::Scheduler;
use crate::{FinishReason, LeaseId, Retain, StepOp, Time};

impl Scheduler {
    /// A running request has ended with the step that was applied. Its policy says what becomes of its blocks; what was kept
    /// of the same job's last step is not kept any more, as this one had all of it in its own.
    pub(super) fn finish(&mut self, place: u32, reason: FinishReason) {
        let entry = self.requests.at(place);
        let retain = match reason {
            FinishReason::Stop | FinishReason::Length => {
                self.policy.retain(&entry.view(), self.step.now)
            }
            // Nobody will go on from here, or nobody should.
            FinishReason::KvExhausted | FinishReason::Aborted | FinishReason::Failed => {
                Retain::Free
            }
        };
        let last = entry.job.as_ref().and_then(|job| self.leases.of_job(&job.id));
        match retain {
            Retain::Free => {}
            Retain::PinUntil(until) => self.keep(place, Some(until)),
            Retain::Offload => self.keep(place, None),
        }
        if let Some(last) = last {
            self.end_lease(last);
        }
        self.remove(place, reason);
    }

    /// Keep the blocks of a request that ends. Only full blocks are ever found again, so the last one goes if it is not.
    fn keep(&mut self, place: u32, until: Option<Time>) {
        let entry = self.requests.at_mut(place);
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

    /// Leases whose time has come end.
    pub(super) fn end_leases(&mut self, now: Time) {
        while let Some(lease) = self.leases.first()
            && lease.until.is_some_and(|until| until <= now)
        {
            self.end_lease(lease.id);
        }
    }

    /// A lease ends: its blocks are free, and found by what they hold. Returns whether it did: one that is being stored
    /// does not.
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

    /// All leases end that can.
    pub(super) fn end_all_leases(&mut self) {
        while let Some(lease) = self.leases.first() {
            self.end_lease(lease.id);
        }
    }

    /// Ask for what is to be stored: part of the step that is being planned.
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

    /// The blocks of a lease have been written elsewhere ([`StepOp::Store`]), or will not be: they are free now. Returns
    /// whether such a lease was being stored.
    pub fn kv_stored(&mut self, lease: LeaseId) -> bool {
        self.leases.get(lease).is_some_and(|lease| lease.until.is_none()) && self.let_go(lease)
    }

    /// Blocks that leases hold, shared ones once: with nobody there, these and the free ones are all but the null block.
    /// Looks at every table, so it is for tests and for metrics, not for every step.
    pub fn retained_blocks(&self) -> usize {
        let table = |seq: SeqId| self.blocks.table(seq).map_or(&[][..], |table| table.blocks());
        let held = self.leases.iter().flat_map(|lease| table(lease.seq));
        held.collect::<HashSet<_>>().len()
    }
}
