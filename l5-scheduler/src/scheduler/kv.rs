//! Keys and values that are fetched from elsewhere, while the request waits with its blocks in hand.
//!
//! ```text
//! waiting ── its blocks are taken, StepOp::Load ──> loading ── kv_arrived ──> arrived ── its next plan ──> running
//! ```
//!
//! Somebody else writes into the blocks of a request that is loading, so nothing takes them from it: no preemption, and no
//! abort before the writer is done. That is why fetching begins only if what all of them will need beside their blocks is
//! free as well: otherwise each of them could have half of its blocks and wait for the others' for ever. Whatever runs can
//! take that room in the meantime, but whatever runs ends, or can be preempted.

use l3_paged_kv::{Admission, PrefixHit, SeqId, TokenChain};

use super::Scheduler;
use super::admission::Outcome;
use super::budget::Budget;
use crate::requests::Loading;
use crate::{FinishReason, Rank, RequestId, Status, StepOp};

/// Another memory of keys and values: DRAM, a disk, another machine.
pub trait KvSource: Send {
    /// How many of a request's tokens behind `from` it could deliver: whole blocks, counted in tokens. The last token is always
    /// computed, so it is not asked for.
    fn available(&mut self, chain: &TokenChain, from: usize) -> usize;
}

impl Scheduler {
    /// Requests whose keys and values have arrived begin before those who wait. Returns the place in the queue of one for
    /// whom there is no room: nobody behind it may begin.
    pub(super) fn plan_arrived(&mut self, budget: &mut Budget) -> Option<Rank> {
        let mut behind = None;
        while budget.left() > 0 {
            let (rank, place) = self.arrived.next(behind)?;
            match self.ask(place, budget) {
                Outcome::Admitted | Outcome::Ended => {}
                Outcome::Skipped => behind = Some(rank),
                Outcome::Nobody => return Some(rank),
            }
        }
        None
    }

    /// Begin with a request whose keys and values have arrived. It has blocks already; as any other it takes a seat and
    /// tokens of the step, and only if all of its tokens fit.
    pub(super) fn admit_arrived(&mut self, place: u32, fits: usize, budget: &mut Budget) -> bool {
        let entry = self.requests.at(place);
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
        self.arrived.remove(self.requests.at(place).rank);
        self.begin(place, seq, computed, len);
        budget.take(len);
        // Only that was in the cache which was not fetched.
        if let (Some(row), Some(loading)) = (self.step.rows.last_mut(), loading) {
            row.cached = loading.from;
            self.stats.cached_tokens -= (computed - loading.from) as u64;
        }
        true
    }

    /// Begin to fetch what the pool does not have of a waiting request and somebody else does: blocks for it are taken, and
    /// the request waits with them. Returns whether it does; if not, it can still be computed.
    pub(super) fn begin_loading(&mut self, place: u32, fits: usize) -> bool {
        if self.requests.at(place).status != Status::Waiting {
            return false;
        }
        let Some(mut source) = self.kv_source.take() else { return false };
        let entry = self.requests.at(place);
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
            must_fit_len: fits.max(self.requests.at(place).chain.len()),
            keep_free: self.keep_free(self.running.len()) + self.promised_to_loads(),
            resumed: self.requests.at(place).preemptions > 0,
        };
        let Some(seq) = self.admit_blocks(place, &hit, want) else { return false };
        let entry = self.requests.at_mut(place);
        self.waiting.remove(entry.rank);
        entry.status = Status::WaitingForKv;
        entry.seq = Some(seq);
        entry.computed = hit.tokens;
        entry.loading = Some(Loading { from: hit.tokens, to, arrived: false });
        let (id, rank) = (entry.id, entry.rank);
        self.loading.insert(rank, place);
        let table = self.blocks.table(seq).map_or(&[][..], |table| table.blocks());
        let blocks = table.get(hit.blocks.len()..).unwrap_or_default().to_vec();
        self.step.ops.push(StepOp::Load { id, from: hit.tokens, to, blocks });
        true
    }

    /// Blocks that requests who load, or have loaded and not begun, will still need for their tokens.
    fn promised_to_loads(&self) -> usize {
        let places = self.loading.places().chain(self.arrived.places());
        let missing = places.map(|place| {
            let entry = self.requests.at(place);
            let table = entry.seq.and_then(|seq| self.blocks.table(seq).ok());
            table.map_or(0, |table| table.missing(entry.chain.len() + 1))
        });
        missing.sum()
    }

    /// Keys and values of a request's first `tokens` tokens are in its blocks now: those that it asked for, or fewer when
    /// something went wrong on the way, even 0. It begins with the next step that has room for it, and computes the rest.
    /// Returns whether it was loading.
    ///
    /// Must be told of every [`StepOp::Load`] that was executed, sooner or later, also of those whose request was aborted:
    /// until then its blocks are not safe to give to anybody.
    pub fn kv_arrived(&mut self, id: RequestId, tokens: usize) -> bool {
        let Some(place) = self.requests.find(id) else { return false };
        let entry = self.requests.at_mut(place);
        let Some(loading) = entry.in_flight() else { return false };
        if entry.aborted {
            self.remove(place, FinishReason::Aborted);
            return true;
        }
        // What was found in the pool is there whatever happened.
        let size = self.config.block_size;
        entry.loading = Some(Loading { arrived: true, ..loading });
        entry.computed = (tokens.min(loading.to) / size * size).max(entry.computed);
        let rank = entry.rank;
        self.loading.remove(rank);
        self.arrived.insert(rank, place);
        true
    }

    /// A request that waits with blocks loses them, and waits without.
    pub(super) fn back_to_queue(&mut self, place: u32) {
        let entry = self.requests.at_mut(place);
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
        self.waiting.insert(rank, place);
    }

    /// Fetching that this step asks for would go to blocks that have just been freed: it does not ask.
    pub(super) fn unload(&mut self, seq: SeqId) {
        let place = self.loading.places().find(|place| self.requests.at(*place).seq == Some(seq));
        let Some(place) = place else { return };
        let gone = self.requests.at(place).id;
        self.step.ops.retain(|op| !matches!(op, StepOp::Load { id, .. } if *id == gone));
        self.back_to_queue(place);
    }

    /// Those who wait with blocks that nobody writes into give them up.
    pub(super) fn give_up_arrived(&mut self) {
        while let Some((_, place)) = self.arrived.next(None) {
            let seq = self.requests.at(place).seq;
            self.back_to_queue(place);
            if let Some(seq) = seq {
                self.free_blocks(seq);
            }
        }
    }
}
