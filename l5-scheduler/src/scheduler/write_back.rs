//! Write-back: contents of blocks that are about to leave the pool are copied to the memory behind it.
//!
//! A lease that ends for another request, and a running request that is preempted, free their blocks while a step is
//! planned or applied. Nothing is written to these blocks before the next step runs, so that step begins with the copy
//! ([`StepOp::WriteBack`]), and no request waits for blocks meanwhile. (The blocks of a finished request that are stored
//! are different: a lease holds them until they are, because no request needs them at once.)

use l3_paged_kv::{BlockId, SeqId};

use super::Scheduler;
use crate::retention::Leaving;
use crate::{Admitted, Lease, LeaseEnd, SecondMemory, StepOp, StepPlan, Time};

/// Copies that the next step begins with.
#[derive(Debug, Default)]
pub(super) struct WriteBacks {
    ops: Vec<StepOp>,
}

impl WriteBacks {
    /// Whether a copy is due.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Forgets all copies: the contents may have been overwritten, or do not count any more.
    pub(super) fn clear(&mut self) {
        self.ops.clear();
    }

    /// Takes the copies of a step that will not run. Its blocks are as they were, so the next step copies them.
    pub(super) fn take_from(&mut self, step: &mut StepPlan) {
        let copies = step.ops.extract_if(.., |op| matches!(op, StepOp::WriteBack { .. }));
        self.ops.extend(copies);
    }
}

impl Scheduler {
    /// Copies the blocks of a lease that ends for this reason, if the retention says so.
    pub(super) fn write_back_lease(&mut self, lease: &Lease, why: LeaseEnd) {
        let leaves = match why {
            LeaseEnd::Expired | LeaseEnd::ForWaiting | LeaseEnd::ForRunning => true,
            LeaseEnd::Surplus | LeaseEnd::Displaced | LeaseEnd::Shutdown => true,
            // They are in the blocks of another request, of no use, or copied.
            LeaseEnd::Outlived | LeaseEnd::JobOver | LeaseEnd::Reset | LeaseEnd::Stored => false,
        };
        if !leaves || !self.can_store {
            return;
        }
        if let Some(until) = self.retention.write_back(&Leaving::Lease(lease), &self.context()) {
            self.push_write_back(lease.seq, lease.blocks, until);
        }
    }

    /// Copies the computed blocks of a running request that is about to be preempted, if the retention says so.
    pub(super) fn write_back_request(&mut self, key: u32) {
        if !self.can_store {
            return;
        }
        let entry = self.requests.at(key);
        let (id, blocks) = (entry.id, entry.computed / self.config.block_size);
        let Some(seq) = entry.seq.filter(|_| blocks > 0) else { return };
        // Blocks that it has hit in this plan may be those that another row of this step would compute.
        let mut rows = self.step.rows.iter();
        if rows.any(|row| row.id == id && row.admitted != Admitted::Before) {
            return;
        }
        let leaving = Leaving::Request(entry.view());
        if let Some(until) = self.retention.write_back(&leaving, &self.context()) {
            self.push_write_back(seq, blocks, until);
        }
    }

    fn push_write_back(&mut self, seq: SeqId, blocks: usize, keep_until: Time) {
        let table = self.blocks.table(seq).map_or(&[][..], |table| table.blocks());
        let cache = self.blocks.cache();
        let hashed = table.iter().take(blocks).map_while(|block| {
            let hash = cache.hash_of(*block)?;
            Some((*block, *hash))
        });
        let (blocks, hashes): (Vec<BlockId>, Vec<_>) = hashed.unzip();
        if !blocks.is_empty() {
            self.write_backs.ops.push(StepOp::WriteBack { blocks, hashes, keep_until });
        }
    }

    /// Puts the copies that are due at the head of the planned step.
    pub(super) fn plan_write_backs(&mut self) {
        if !self.write_backs.is_empty() {
            self.step.ops.splice(0..0, self.write_backs.ops.drain(..));
        }
    }

    /// Asks the connector for the state of the memory behind the pool. Where the time of a load was not measured, the cost
    /// model says it.
    pub(super) fn look_at_second_memory(&mut self) {
        let Some(connector) = self.connector.as_mut().filter(|_| self.can_store) else { return };
        let SecondMemory { room, load_seconds_per_block: measured } = connector.second_memory();
        let load_seconds_per_block = measured.or_else(|| {
            let cost = self.cost.as_ref()?;
            let bytes = cost.kv_bytes_per_token * self.config.block_size as f64;
            Some(bytes / cost.load_bytes_per_second.unwrap_or(f64::INFINITY))
        });
        self.second_memory = Some(SecondMemory { room, load_seconds_per_block });
    }
}
