//! Requests whose keys and values are loaded from elsewhere, and which wait with their blocks reserved.
//!
//! ```text
//! waiting ── blocks are reserved, StepOp::Load ──> loading ── kv_arrived ──> arrived ── a later plan ──> running
//! ```
//!
//! A second memory has two halves, as in vLLM. The scheduler's half is a [`KvConnector`]: it knows which tokens there are,
//! and answers at once. The executor's half moves the bytes: a step's [`StepOp::Load`] and [`StepOp::Store`] begin, and
//! [`Executor::poll`](crate::Executor::poll) reports what has ended.
//!
//! While a request loads, its blocks are written by the source, so they cannot be taken from it: it is not preempted,
//! and an abort waits for the load. For this reason a load begins only if the blocks that all loading requests will
//! need beyond their own are free as well. Otherwise each of them could hold half of its blocks and wait for the others
//! for ever. Running requests may take those blocks in the meantime, but a running request ends or can be preempted. A
//! request that was preempted loads again only if no request runs that may preempt it.

use l3_paged_kv::{Admission, PrefixHit, SeqId, TokenChain};

use super::Scheduler;
use super::admission::Outcome;
use super::budget::Budget;
use crate::requests::Loading;
use crate::{FinishReason, LeaseId, Rank, RequestId, SecondMemory, Status, StepOp};

/// Maximum time in seconds that a request waits for an answer of [`KvConnector::matched_tokens`]. Then it is admitted
/// without loading.
pub const MAX_LOOKUP_SECONDS: f64 = 0.1;

/// The scheduler's half of a memory for keys and values outside the pool: DRAM, a disk, another machine.
pub trait KvConnector: Send {
    /// Number of tokens behind token `from` that can be loaded, in whole blocks. It is never asked for the last token,
    /// which is always computed.
    ///
    /// It is called while a step is planned, so it must not wait. A memory that takes time to look begins with the first
    /// call, and returns [`Matched::AskAgain`] until it knows.
    fn matched_tokens(&mut self, id: RequestId, chain: &TokenChain, from: usize) -> Matched;

    /// State of the memory: the blocks that can be copied there and will be kept, and the seconds of a load as measured.
    /// Asked once in each plan, if the executor can store blocks. The default has no room.
    fn second_memory(&mut self) -> SecondMemory {
        SecondMemory::default()
    }
}

/// Answer of a [`KvConnector`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matched {
    /// So many tokens can be loaded.
    Tokens(usize),
    /// It is not known yet: the request waits, and a seat is kept for it. Requests behind it may be admitted to the
    /// other seats. The next plan asks again, for at most [`MAX_LOOKUP_SECONDS`].
    AskAgain,
}

/// Result of trying to begin a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// It has begun.
    Begun,
    /// There is nothing to load, or no room for it.
    None,
    /// The memory does not know yet.
    AskAgain,
}

/// Something that an executor has finished outside of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCompletion {
    /// A [`StepOp::Load`] has ended: keys and values of the request's first `tokens` tokens are in its blocks. Fewer than
    /// it asked for, even 0, if they were lost.
    Loaded {
        /// Request id.
        id: RequestId,
        /// Number of tokens.
        tokens: usize,
    },
    /// A [`StepOp::Store`] has ended, whether or not it succeeded.
    Stored {
        /// Lease that holds the blocks.
        lease: LeaseId,
    },
}

impl Scheduler {
    /// Admits requests whose keys and values have arrived, before all waiting ones. Returns the rank of the first one
    /// that does not fit, or is out of turn: no request behind it may be admitted.
    pub(super) fn plan_arrived(&mut self, budget: &mut Budget) -> Option<Rank> {
        let mut behind = None;
        // Without tokens none can be admitted, unless a preemption gives tokens of this step back.
        while budget.left() > 0 || self.policy.continues_after_preemption() {
            let (rank, key) = self.arrived.next(behind)?;
            match self.try_admit(key, budget) {
                Outcome::Admitted | Outcome::Ended => {}
                Outcome::Skipped => behind = Some(rank),
                Outcome::Blocked => {
                    self.held_up = true;
                    return Some(rank);
                }
                Outcome::OutOfTurn => return Some(rank),
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
        if self.free_seats() == 0
            || !self.free_up(key, needed, &PrefixHit::default())
            || self.blocks.reserve(seq, up_to).is_err()
        {
            return false;
        }
        self.arrived.remove(self.requests.at(key).rank);
        self.begin(key, seq, computed, len);
        budget.take(len);
        // Its blocks were out of reach while it waited. Now it can be preempted.
        self.stuck_for_good = None;
        // Only what was not loaded counts as cached.
        if let (Some(row), Some(loading)) = (self.step.rows.last_mut(), loading) {
            row.cached = loading.from;
            self.stats.cached_tokens -= (computed - loading.from) as u64;
        }
        true
    }

    /// Begins to load the tokens of a waiting request that the source has and the pool has not: reserves blocks for
    /// them and lets the request wait with them. If it does not begin, the request can still be admitted.
    pub(super) fn begin_loading(&mut self, key: u32, fits: usize) -> Load {
        let entry = self.requests.at(key);
        // A request for which there is no seat is not looked up.
        if entry.status != Status::Waiting || !entry.reads_cache || self.free_seats() == 0 {
            return Load::None;
        }
        if self.connector.is_none() || self.may_be_preempted_again(key) {
            return Load::None;
        }
        let entry = self.requests.at(key);
        let Some(connector) = &mut self.connector else { return Load::None };
        let size = self.config.block_size;
        let hit = self.blocks.lookup(&entry.chain);
        let most = (entry.chain.len() - 1) / size * size;
        if most <= hit.tokens {
            return Load::None;
        }
        let matched = connector.matched_tokens(entry.id, &entry.chain, hit.tokens);
        let to = match matched {
            Matched::Tokens(tokens) => hit.tokens.saturating_add(tokens / size * size).min(most),
            Matched::AskAgain => return self.ask_again(key),
        };
        if to == hit.tokens {
            return Load::None;
        }
        let want = Admission {
            up_to_len: to,
            must_fit_len: fits.max(self.reserved_len(self.requests.at(key).chain.len())),
            keep_free: self.keep_free(self.running.len()) + self.promised_to_loads(),
            resumed: self.requests.at(key).preemptions > 0,
        };
        if self.ahead.is_planning() {
            let needed = self.blocks.blocks_to_admit(&hit, want.must_fit_len.max(to));
            if !self.may_free_up(key, needed + want.keep_free, &hit) {
                return Load::None;
            }
            // A load is part of a step that is planned when no other one runs.
            self.ahead.block();
            return Load::AskAgain;
        }
        let Some(seq) = self.admit_blocks(key, &hit, want) else { return Load::None };
        let entry = self.requests.at_mut(key);
        entry.asked = None;
        self.waiting.remove(entry.rank);
        entry.status = Status::WaitingForKv;
        entry.seq = Some(seq);
        entry.computed = hit.tokens;
        entry.loading = Some(Loading { from: hit.tokens, to, arrived: false });
        let (id, rank) = (entry.id, entry.rank);
        self.leave_service(key);
        self.loading.insert(rank, key);
        let table = self.blocks.table(seq).map_or(&[][..], |table| table.blocks());
        let blocks = table.get(hit.blocks.len()..).unwrap_or_default().to_vec();
        let hashes = self.requests.at(key).chain.hashes();
        let hashes = hashes.get(hit.tokens / size..to / size).unwrap_or_default().to_vec();
        debug_assert_eq!(blocks.len(), hashes.len(), "blocks of a load, and their hashes");
        self.step.ops.push(StepOp::Load { id, from: hit.tokens, to, blocks, hashes });
        Load::Begun
    }

    /// Whether a request was preempted, and another one runs that may preempt it. While it loads it cannot be preempted,
    /// so the two could take the same blocks from each other for ever.
    fn may_be_preempted_again(&self, key: u32) -> bool {
        let request = self.requests.at(key).view();
        let mut running = self.running.iter().map(|key| self.requests.at(*key).view());
        request.preemptions() > 0 && running.any(|other| self.policy.may_preempt(&request, &other))
    }

    /// Lets a request wait for the answer of the connector, unless it has waited for too long.
    fn ask_again(&mut self, key: u32) -> Load {
        let now = self.step.now;
        let asked = *self.requests.at_mut(key).asked.get_or_insert(now);
        if now - asked >= MAX_LOOKUP_SECONDS {
            return Load::None;
        }
        self.lookups.push(key);
        Load::AskAgain
    }

    /// Whether every free seat is kept for a request that waits for an answer of the connector. The requests behind
    /// those wait, too: if they were admitted, they would take these seats, though they came later and were not looked
    /// up.
    pub(super) fn seats_are_kept(&self) -> bool {
        self.is_looking_up() && self.lookups.len() >= self.free_seats()
    }

    /// Whether the last plan left a request waiting for an answer of the connector.
    pub(crate) fn is_looking_up(&self) -> bool {
        !self.lookups.is_empty()
    }

    /// Whether keys and values are being loaded, looked up or stored.
    pub(crate) fn is_moving_blocks(&self) -> bool {
        self.loading.len() > 0 || self.is_looking_up() || self.leases.is_storing()
    }

    /// Applies what an executor has finished outside of a step. Returns whether it was under way.
    pub fn kv_completed(&mut self, completion: KvCompletion) -> bool {
        match completion {
            KvCompletion::Loaded { id, tokens } => self.kv_arrived(id, tokens),
            KvCompletion::Stored { lease } => self.kv_stored(lease),
        }
    }

    /// Blocks that loading and arrived requests will need beyond those that they have.
    fn promised_to_loads(&self) -> usize {
        let keys = self.loading.keys().chain(self.arrived.keys());
        let missing = keys.map(|key| {
            let entry = self.requests.at(key);
            let table = entry.seq.and_then(|seq| self.blocks.table(seq).ok());
            let tokens = entry.chain.len();
            let tokens = self.reserved_len(tokens).max(tokens + 1);
            table.map_or(0, |table| table.missing(tokens))
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
        let Some(loading) = entry.load_in_flight() else { return false };
        if entry.aborted {
            self.remove(key, FinishReason::Aborted);
            return true;
        }
        // Tokens that were hit in the pool are there in any case.
        let size = self.config.block_size;
        entry.loading = Some(Loading { arrived: true, ..loading });
        entry.computed = (tokens.min(loading.to) / size * size).max(entry.computed);
        let rank = entry.rank;
        self.kv_log.loaded(self.now, id, entry.computed);
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
