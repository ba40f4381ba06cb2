//! Requests whose keys and values are loaded from elsewhere, and which wait with their blocks reserved.
//!
//! ```text
//! waiting ── blocks are reserved, StepOp::Load ──> loading ── kv_arrived ──> arrived ── a later plan ──> running
//! ```
//!
//! While a request loads, its blocks are written by the source, so they cannot be taken from it: it is not preempted,
//! and an abort waits for the load. For this reason a load begins only if the blocks that all loading requests will
//! need beyond their own are free as well. Otherwise each of them could hold half of its blocks and wait for the others
//! for ever. Running requests may take those blocks in the meantime, but a running request ends or can be preempted.

use l3_paged_kv::{Admission, PrefixHit, SeqId, TokenChain};

use super::Scheduler;
use super::admission::Outcome;
use super::budget::Budget;
use crate::requests::Loading;
use crate::{FinishReason, Rank, RequestId, Status, StepOp};

/// A source of keys and values outside the pool: DRAM, a disk, another machine.
pub trait KvSource: Send {
    /// Number of tokens behind token `from` that the source can deliver, in whole blocks. It is never asked for the
    /// last token, which is always computed.
    fn available(&mut self, chain: &TokenChain, from: usize) -> usize;
}

impl Scheduler {
    /// Admits requests whose keys and values have arrived, before all waiting ones. Returns the rank of the first one
    /// that does not fit: no request behind it may be admitted.
    pub(super) fn plan_arrived(&mut self, budget: &mut Budget) -> Option<Rank> {
        let mut behind = None;
        while budget.left() > 0 {
            let (rank, key) = self.arrived.next(behind)?;
            match self.try_admit(key, budget) {
                Outcome::Admitted | Outcome::Ended => {}
                Outcome::Skipped => behind = Some(rank),
                Outcome::Blocked => return Some(rank),
            }
        }
        None
    }

    /// Admits a request whose keys and values have arrived. It has blocks already; like any other it needs a seat,
    /// tokens of the step, and room for all of its tokens.
    pub(super) fn admit_arrived(&mut self, key: u32, fits: usize, budget: &mut Budget) -> bool {
        let entry = self.requests.at(key);
        let (computed, loading) = (entry.computed, entry.loading);
        let Some(seq) = entry.seq else { return false };
        let Some(len) = budget.waiting(entry.chain.len() - computed) else { return false };
        let up_to = self.reserved_len(computed + len);
        let missing = self.blocks.table(seq).map_or(0, |table| table.missing(fits.max(up_to)));
        let needed = missing + self.keep_free(self.running.len());
        if self.running.len() >= self.config.seats()
            || !self.free_up(needed, &PrefixHit::default())
            || self.blocks.reserve(seq, up_to).is_err()
        {
            return false;
        }
        self.arrived.remove(self.requests.at(key).rank);
        self.begin(key, seq, computed, len);
        budget.take(len);
        // Only what was not loaded counts as cached.
        if let (Some(row), Some(loading)) = (self.step.rows.last_mut(), loading) {
            row.cached = loading.from;
            self.stats.cached_tokens -= (computed - loading.from) as u64;
        }
        true
    }

    /// Begins to load the tokens of a waiting request that the source has and the pool has not: reserves blocks for
    /// them and lets the request wait with them. Returns whether it did; if not, the request can still be admitted.
    pub(super) fn begin_loading(&mut self, key: u32, fits: usize) -> bool {
        if self.requests.at(key).status != Status::Waiting {
            return false;
        }
        let Some(mut source) = self.kv_source.take() else { return false };
        let entry = self.requests.at(key);
        let free_seat = self.running.len() < self.config.seats();
        let mut found = None;
        if entry.reads_cache && free_seat {
            let size = self.config.block_size;
            let hit = self.blocks.lookup(&entry.chain);
            let most = (entry.chain.len() - 1) / size * size;
            let there = source.available(&entry.chain, hit.tokens) / size * size;
            let to = hit.tokens.saturating_add(there).min(most);
            found = (to > hit.tokens).then_some((hit, to));
        }
        self.kv_source = Some(source);
        let Some((hit, to)) = found else { return false };
        let want = Admission {
            up_to_len: to,
            must_fit_len: fits.max(self.requests.at(key).chain.len()),
            keep_free: self.keep_free(self.running.len()) + self.promised_to_loads(),
            resumed: self.requests.at(key).preemptions > 0,
        };
        let Some(seq) = self.admit_blocks(key, &hit, want) else { return false };
        let entry = self.requests.at_mut(key);
        self.waiting.remove(entry.rank);
        entry.status = Status::WaitingForKv;
        entry.seq = Some(seq);
        entry.computed = hit.tokens;
        entry.loading = Some(Loading { from: hit.tokens, to, arrived: false });
        let (id, rank) = (entry.id, entry.rank);
        self.loading.insert(rank, key);
        let table = self.blocks.table(seq).map_or(&[][..], |table| table.blocks());
        let blocks = table.get(hit.blocks.len()..).unwrap_or_default().to_vec();
        self.step.ops.push(StepOp::Load { id, from: hit.tokens, to, blocks });
        true
    }

    /// Blocks that loading and arrived requests will need beyond those that they have.
    fn promised_to_loads(&self) -> usize {
        let keys = self.loading.keys().chain(self.arrived.keys());
        let missing = keys.map(|key| {
            let entry = self.requests.at(key);
            let table = entry.seq.and_then(|seq| self.blocks.table(seq).ok());
            table.map_or(0, |table| table.missing(entry.chain.len() + 1))
        });
        missing.sum()
    }

    /// Tells the scheduler that the keys and values of a request's first `tokens` tokens are in its blocks: as many as
    /// were asked for, or fewer (even 0) if the load failed. The request runs in the next step that has room for it,
    /// and computes the other tokens. Returns whether it was loading.
    ///
    /// Must be called for every [`StepOp::Load`](crate::StepOp::Load) that was executed, also if its request was
    /// aborted: until then its blocks cannot be reused.
    pub fn kv_arrived(&mut self, id: RequestId, tokens: usize) -> bool {
        let Some(key) = self.requests.find(id) else { return false };
        let entry = self.requests.at_mut(key);
        let Some(loading) = entry.in_flight() else { return false };
        if entry.aborted {
            self.remove(key, FinishReason::Aborted);
            return true;
        }
        // Tokens that were hit in the pool are there in any case.
        let size = self.config.block_size;
        entry.loading = Some(Loading { arrived: true, ..loading });
        entry.computed = (tokens.min(loading.to) / size * size).max(entry.computed);
        let rank = entry.rank;
        self.loading.remove(rank);
        self.arrived.insert(rank, key);
        true
    }

    /// Frees the blocks of a request that waits with blocks, and returns it to the waiting queue.
    pub(super) fn back_to_queue(&mut self, key: u32) {
        let entry = self.requests.at_mut(key);
        if entry.status != Status::WaitingForKv {
            return;
        }
        entry.status = Status::Waiting;
        entry.seq = None;
        entry.computed = 0;
        entry.loading = None;
        let rank = entry.rank;
        self.loading.remove(rank);
        self.arrived.remove(rank);
        self.waiting.insert(rank, key);
    }

    /// Removes the load of a request whose blocks have just been freed from the step.
    pub(super) fn unload(&mut self, seq: SeqId) {
        let key = self.loading.keys().find(|key| self.requests.at(*key).seq == Some(seq));
        let Some(key) = key else { return };
        let gone = self.requests.at(key).id;
        self.step.ops.retain(|op| !matches!(op, StepOp::Load { id, .. } if *id == gone));
        self.back_to_queue(key);
    }

    /// Frees the blocks of all requests that have arrived and do not run.
    pub(super) fn give_up_arrived(&mut self) {
        while let Some((_, key)) = self.arrived.next(None) {
            let seq = self.requests.at(key).seq;
            self.back_to_queue(key);
            if let Some(seq) = seq {
                self.free_blocks(seq);
            }
        }
    }
}
