//! The end of a request, and what happens to its blocks.

use super::Scheduler;
use super::events::{Happened, policy_context};
use crate::lease::{Lease, LeaseState, NewLease};
use crate::requests::Entry;
use crate::{FinishReason, LeaseEnd, LeaseId, Note, Retain, StepOp, Time};

impl Scheduler {
    /// Ends a running request with the step that was applied at `now`.
    ///
    /// If it has a row in the step that was planned ahead, its end is reported, and the rest follows when that step is
    /// over.
    pub(super) fn finish(&mut self, key: u32, reason: FinishReason, now: Time) {
        if self.requests.at(key).in_step() {
            return self.linger(key, reason, now);
        }
        match reason {
            FinishReason::Stop | FinishReason::Length => self.retain(key, now),
            // No request continues from here, but the step may be tried again from where it began.
            FinishReason::KvExhausted | FinishReason::Aborted | FinishReason::Failed => {}
        }
        self.remove(key, reason);
    }

    /// Asks the retention what happens to a finished request's blocks. Leases of the job's earlier steps end if this
    /// request's blocks contain theirs, or if it was the last step.
    fn retain(&mut self, key: u32, now: Time) {
        self.note_conversation(key);
        let note = self.requests.at_mut(key).note.take();
        let retain = self.ask_retention(key, note.as_ref());
        let tool = note.and_then(|note| note.tool);
        // Before the new lease is one of them; ended after it holds the blocks that it shares with them.
        let (outlived, why) = self.outlived_leases(key);
        match retain {
            Retain::Free => {}
            // This time never comes.
            Retain::LeaseUntil(until) if until.0.is_nan() => {}
            Retain::LeaseUntil(until) => self.keep(key, LeaseState::Until(until), tool, now),
            Retain::Keep => self.keep(key, LeaseState::Kept, tool, now),
            // The store would be planned for ever.
            Retain::Offload if !self.can_store => {}
            Retain::Offload => self.keep(key, LeaseState::Storing, tool, now),
        }
        self.end_all(&outlived, why);
        let job = self.requests.at(key).job_key.as_ref();
        if let Some(surplus) = job.and_then(|job| self.leases.surplus(job)) {
            self.end_lease(surplus, LeaseEnd::Surplus);
        }
        while let Some(displaced) = self.retention.displaced(&self.context())
            && self.end_lease(displaced, LeaseEnd::Displaced)
        {}
    }

    /// Remembers where the conversation of a finished request ends, if jobs are inferred.
    fn note_conversation(&mut self, key: u32) {
        let entry = self.requests.at(key);
        let Some(job) = entry.job.as_ref().filter(|_| self.config.infer_jobs) else { return };
        let size = self.config.block_size;
        let hashes = &entry.chain.hashes()[..entry.computed / size];
        self.inferred.finished(job, hashes, entry.prompt_len / size);
    }

    fn ask_retention(&mut self, key: u32, note: Option<&Note>) -> Retain {
        let finished = self.requests.at(key).view();
        self.retention.retain(&finished, note, &policy_context!(self))
    }

    /// Leases of the same job that a finished request makes useless: all of them if it was the last step, else those
    /// whose tokens it begins with. A step that ran beside it has other tokens, and its lease stays.
    fn outlived_leases(&self, key: u32) -> (Vec<LeaseId>, LeaseEnd) {
        let entry = self.requests.at(key);
        let Some(job) = &entry.job_key else { return (Vec::new(), LeaseEnd::Outlived) };
        let last_step = entry.job.as_ref().is_some_and(|job| job.last_step);
        let leases = self.leases.of_job(job).iter().copied();
        let leases = leases.filter(|lease| last_step || self.begins_with(entry, *lease));
        (leases.collect(), if last_step { LeaseEnd::JobOver } else { LeaseEnd::Outlived })
    }

    /// Whether a request begins with the tokens of a lease. The hash of a block is that of all tokens up to its end.
    fn begins_with(&self, entry: &Entry, lease: LeaseId) -> bool {
        let Some(lease) = self.leases.get(lease) else { return false };
        let table = self.blocks.table(lease.seq).ok();
        let last = table.and_then(|table| table.blocks().last());
        // exercise l5.outlived
        let hash = last.and_then(|block| self.blocks.cache().hash_of(*block));
        hash.is_some() && hash == entry.chain.hashes().get(lease.blocks - 1)
        // end of exercise
    }

    /// Holds the blocks of a request that ends in a lease. Only full blocks can be hit, so a partial last block is
    /// freed.
    fn keep(&mut self, key: u32, state: LeaseState, tool: Option<String>, since: Time) {
        let entry = self.requests.at_mut(key);
        let blocks = entry.computed / self.config.block_size;
        if blocks == 0 || !self.config.enable_prefix_caching {
            return;
        }
        let Some(seq) = entry.seq else { return };
        if self.config.num_speculative_tokens > 0 {
            // Blocks that accepted drafts have filled have no hash yet: the next plan would have given them one.
            let end = blocks * self.config.block_size;
            let registered = self.blocks.register(seq, &entry.chain, end);
            debug_assert!(registered.is_ok(), "{registered:?}");
            self.blocks.commit_step();
        }
        let cut = self.blocks.rollback(seq, blocks * self.config.block_size);
        debug_assert!(matches!(cut, Ok(None)), "{cut:?}");
        entry.seq = None;
        let (request, job, job_key) = (entry.id, entry.job.clone(), entry.job_key.clone());
        let new = NewLease { request, job, job_key, tool, since, state, seq };
        let blocks = self.blocks.table(seq).map_or(&[][..], |table| table.blocks());
        let lease = self.leases.add(new, blocks);
        self.frees += 1;
        self.tell(&Happened::Leased(lease));
        if let Some(job) = self.leases.get(lease).and_then(|lease| lease.job_key.clone()) {
            self.rerank_after_lease(Some(&job));
        }
    }

    /// Ends the lease that is the next to expire, of an engine that ends. Returns whether there was one whose blocks the
    /// next step may copy.
    pub(crate) fn end_lease_for_shutdown(&mut self) -> bool {
        let first = self.leases.first().filter(|_| self.can_store).map(|lease| lease.id);
        first.is_some_and(|lease| self.end_lease(lease, LeaseEnd::Shutdown))
    }

    /// Ends leases that have expired. While a step of its job waits, a lease stays, because that step is about to use
    /// its blocks.
    pub(super) fn end_leases(&mut self, now: Time) {
        if self.leases.is_empty() {
            return;
        }
        let expired = |lease: &&Lease| lease.until().is_some_and(|until| until <= now);
        if self.leases.first().is_none_or(|lease| !expired(&lease)) {
            return;
        }
        let due = self.leases.soonest().take_while(expired);
        let due =
            due.filter(|lease| lease.job_key.as_ref().is_none_or(|job| !self.requests.waits(job)));
        let due: Vec<LeaseId> = due.map(|lease| lease.id).collect();
        for lease in due {
            self.end_lease(lease, LeaseEnd::Expired);
        }
    }

    /// Ends a lease: its blocks are free, and can still be hit. Returns whether it did: a lease whose blocks are being
    /// stored does not end.
    pub(super) fn end_lease(&mut self, lease: LeaseId, why: LeaseEnd) -> bool {
        if self.leases.get(lease).is_none_or(|lease| !lease.can_end()) {
            return false;
        }
        self.let_go(lease, why)
    }

    fn let_go(&mut self, lease: LeaseId, why: LeaseEnd) -> bool {
        let Some(seq) = self.leases.get(lease).map(|lease| lease.seq) else { return false };
        let blocks = self.blocks.table(seq).map_or(&[][..], |table| table.blocks());
        let Some(lease) = self.leases.remove(lease, blocks) else { return false };
        self.write_back_lease(&lease, why);
        self.free_blocks(seq);
        self.tell(&Happened::LeaseEnded(&lease, why));
        self.rerank_after_lease(lease.job_key.as_ref());
        true
    }

    /// Plans the stores that are due as part of this step.
    pub(super) fn plan_stores(&mut self) {
        if !self.leases.has_to_store() {
            return;
        }
        for id in self.leases.take_to_store() {
            let Some(lease) = self.leases.get(id) else { continue };
            let Ok(table) = self.blocks.table(lease.seq) else { continue };
            let (blocks, request) = (table.blocks().to_vec(), lease.request);
            let cache = self.blocks.cache();
            let hashes: Option<Vec<_>> =
                blocks.iter().map(|block| cache.hash_of(*block).copied()).collect();
            // Blocks in a lease keep their hashes: they are not free, and the cache is not reset meanwhile.
            debug_assert!(hashes.is_some(), "a block of a lease has no hash");
            match hashes {
                Some(hashes) => {
                    self.step.ops.push(StepOp::Store { lease: id, id: request, blocks, hashes });
                }
                None => _ = self.let_go(id, LeaseEnd::Stored),
            }
        }
    }

    /// Tells the scheduler that the blocks of a lease have been stored elsewhere
    /// ([`StepOp::Store`](crate::StepOp::Store)), or will not be: they are free now. Returns whether such a lease was
    /// being stored.
    pub fn kv_stored(&mut self, lease: LeaseId) -> bool {
        self.leases.get(lease).is_some_and(|lease| !lease.can_end())
            && self.let_go(lease, LeaseEnd::Stored)
    }

    /// Blocks that leases hold, shared ones once: without requests, these and the free ones are all but the null block.
    pub fn retained_blocks(&self) -> usize {
        self.leases.blocks()
    }
}
