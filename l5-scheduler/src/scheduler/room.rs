//! Preempting running requests for a waiting one (`strict-priority`).
//!
//! [`Gone`] predicts, before anything changes, which blocks would be free if some sequences were gone. That is not the
//! sum of their tables: a block that two of them share is free once, a block that a third sequence uses is not free,
//! and a block that the waiting request has hit is no gain, since that request will hold it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use l3_paged_kv::{BlockHash, BlockId, BlockManager, PrefixHit, SeqId};

use super::Scheduler;
use super::budget::Budget;
use crate::{Admitted, StepRow};

/// Prediction of which blocks would be free if some sequences gave up theirs.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// For each of their blocks, the number of users that it would lose.
    users: HashMap<BlockId, u32>,
    /// Number of blocks that would have no users.
    freed: usize,
    /// Blocks that would not be computed in this step, though other requests could hit them now.
    lost: HashSet<BlockId>,
    /// Running requests among them, in the order in which they were chosen.
    victims: Vec<u32>,
}

impl Gone {
    /// Adds a sequence.
    pub(super) fn add(&mut self, blocks: &BlockManager, seq: SeqId) {
        for &block in table(blocks, seq) {
            let users = self.users.entry(block).or_default();
            *users += 1;
            let all = blocks.pool().ref_count(block).unwrap_or_default();
            self.freed += usize::from(*users == all);
        }
    }

    /// Number of blocks that would be free.
    pub(super) fn freed(&self) -> usize {
        self.freed
    }

    /// Whether one of a sequence's blocks would be free.
    pub(super) fn frees_any(&self, blocks: &BlockManager, seq: SeqId) -> bool {
        table(blocks, seq).iter().any(|block| self.users_left(blocks, *block) == 0)
    }

    /// Number of users that a block would have.
    fn users_left(&self, blocks: &BlockManager, block: BlockId) -> u32 {
        let users = blocks.pool().ref_count(block).unwrap_or_default();
        users - self.users.get(&block).copied().unwrap_or_default()
    }

    /// Number of blocks of a hit that would be free, were they not hit.
    pub(super) fn freed_of(&self, blocks: &BlockManager, hit: &PrefixHit) -> usize {
        let freed = |block: &&BlockId| {
            self.users.contains_key(block) && self.users_left(blocks, **block) == 0
        };
        hit.blocks.iter().filter(freed).count()
    }
}

fn table(blocks: &BlockManager, seq: SeqId) -> &[BlockId] {
    blocks.table(seq).map_or(&[], |table| table.blocks())
}

impl Scheduler {
    /// Preempts running requests for a waiting one that does not fit, if the policy allows it and if together they free
    /// what it needs: blocks for `fits` tokens, and a seat. Leases end first, those that the retention names for it.
    /// Returns whether a request was preempted.
    pub(super) fn preempt_for(&mut self, key: u32, fits: usize, budget: &mut Budget) -> bool {
        if self.preemptable(key).is_empty() {
            return false;
        }
        self.release_draft_blocks();
        let (needed, hit) = self.needed(key, fits, budget, &Gone::default());
        let now = self.stuck_now(key, needed, &hit);
        if self.is_stuck_for_good(&now) {
            return false;
        }
        let (without, all) = self.without_leases(key);
        if self.would_fit(key, fits, budget, &without) {
            // Only tokens of this step are missing, and the next step has others.
            return false;
        }
        if self.ahead.is_planning() {
            self.ahead.block();
            return false;
        }
        let made = self.make_room(key, fits, budget, without);
        if !made && all && self.is_hopeless(key, fits, budget) {
            self.stuck_for_good = Some(now);
        }
        made
    }

    /// Preempts running requests for a waiting one, in a prediction that begins with the leases gone.
    ///
    /// The victims are the last requests in the order of the queue, and no more than needed. A request is no victim
    /// while other requests have hit the blocks that it computes in this very step: they would lose their rows too, and
    /// they were admitted before this waiting request. A step later nothing depends on it.
    fn make_room(&mut self, key: u32, fits: usize, budget: &mut Budget, mut gone: Gone) -> bool {
        let mut yielding = self.preemptable(key);
        // exercise l5.strict
        yielding.sort_by_key(|key| Reverse(self.requests.at(*key).rank));
        let mut tokens = *budget;
        for victim in yielding {
            if self.is_depended_on(victim, &gone) {
                continue;
            }
            self.suppose_gone(victim, &mut gone, &mut tokens);
            if self.would_fit(key, fits, &tokens, &gone) {
                let enough = self.would_begin(key, &tokens, &gone);
                let victims = if enough { gone.victims } else { Vec::new() };
                for victim in &victims {
                    if let Some(i) = self.running.iter().position(|other| other == victim) {
                        self.preempt_planned(i, budget);
                    }
                }
                return enough;
            }
        }
        false
        // end of exercise
    }

    /// Running requests that may be preempted for a waiting one, in the order of admission.
    fn preemptable(&self, key: u32) -> Vec<u32> {
        let arrival = self.requests.at(key).view();
        let may_preempt =
            |key: &u32| self.policy.may_preempt(&self.requests.at(*key).view(), &arrival);
        self.running.iter().copied().filter(may_preempt).collect()
    }

    /// Whether a waiting request would not fit even without all leases and all requests that it may preempt. If it has
    /// hit what one of those computes in this step, this cannot be said: without that one it has a smaller hit.
    fn is_hopeless(&self, key: u32, fits: usize, budget: &Budget) -> bool {
        let (mut gone, mut tokens) = (Gone::default(), *budget);
        for lease in self.leases.soonest() {
            gone.add(&self.blocks, lease.seq);
        }
        for victim in self.preemptable(key) {
            self.suppose_gone(victim, &mut gone, &mut tokens);
        }
        let (_, hit) = self.start(key, &Gone::default());
        let keeps_hit = hit.blocks.iter().all(|block| !gone.lost.contains(block));
        keeps_hit && !self.would_fit(key, fits, &tokens, &gone)
    }

    /// Whether a request that would stay has hit what this running request computes in this step.
    fn is_depended_on(&self, victim: u32, gone: &Gone) -> bool {
        // Only requests admitted in this step can use a block whose hash was registered in it.
        self.pending(victim).iter().any(|block| gone.users_left(&self.blocks, *block) > 1)
    }

    /// Adds a victim to the prediction.
    fn suppose_gone(&self, victim: u32, gone: &mut Gone, tokens: &mut Budget) {
        gone.lost.extend(self.pending(victim));
        if let Some(seq) = self.requests.at(victim).seq {
            gone.add(&self.blocks, seq);
        }
        tokens.give_back(self.row_of(victim).map_or(0, |row| row.len));
        gone.victims.push(victim);
    }

    /// Whether a waiting request would find a seat and blocks.
    fn would_fit(&self, key: u32, fits: usize, tokens: &Budget, gone: &Gone) -> bool {
        let left = self.running.len() - gone.victims.len();
        let seats = self.free_seats() + gone.victims.len();
        let (needed, hit) = self.needed(key, fits, tokens, gone);
        seats > 0
            && needed + gone.freed_of(&self.blocks, &hit) + self.keep_free(left)
                <= self.blocks.num_free() + gone.freed
    }

    /// Number of blocks that a waiting request needs, not counting those of its cache hit that only others of the
    /// prediction hold; and that hit.
    fn needed(&self, key: u32, fits: usize, tokens: &Budget, gone: &Gone) -> (usize, PrefixHit) {
        let entry = self.requests.at(key);
        let (computed, hit) = self.start(key, gone);
        let wanted = entry.chain.len() - computed;
        let len = tokens.waiting(wanted).unwrap_or(wanted);
        let up_to = self.reserved_len(computed + len).max(fits);
        let needed = match entry.seq {
            Some(seq) => self.blocks.table(seq).map_or(0, |table| table.missing(up_to)),
            None => self.blocks.blocks_to_admit(&hit, up_to),
        };
        (needed, hit)
    }

    /// Whether a waiting request would find tokens in this step, too.
    fn would_begin(&self, key: u32, tokens: &Budget, gone: &Gone) -> bool {
        let (computed, _) = self.start(key, gone);
        tokens.waiting(self.requests.at(key).chain.len() - computed).is_some()
    }

    /// The token at which a waiting request would begin, and its cache hit.
    fn start(&self, key: u32, gone: &Gone) -> (usize, PrefixHit) {
        let entry = self.requests.at(key);
        if entry.seq.is_some() || !entry.reads_cache {
            return (entry.computed, PrefixHit::default());
        }
        let mut hit = self.blocks.lookup(&entry.chain);
        if !gone.lost.is_empty() {
            let found = hit.blocks.iter().zip(entry.chain.hashes()).enumerate();
            let found = found.map_while(|(i, (block, hash))| match gone.lost.contains(block) {
                false => Some(*block),
                true => self.also_pending(i, hash, gone),
            });
            hit.blocks = found.collect();
            hit.tokens = hit.blocks.len() * self.config.block_size;
        }
        (hit.tokens, hit)
    }

    /// The `i`-th block of another request with the same contents. If the block that was hit is pending in this step
    /// and would be lost, so is every such block: of blocks with one hash, lookup returns the first that had it.
    fn also_pending(&self, i: usize, hash: &BlockHash, gone: &Gone) -> Option<BlockId> {
        let mut others = self.step.rows.iter().filter_map(|row| {
            let block =
                *table(&self.blocks, self.requests.at(self.seats.owner(row.seat)).seq?).get(i)?;
            (self.blocks.cache().hash_of(block) == Some(hash)).then_some(block)
        });
        others.find(|block| !gone.lost.contains(block))
    }

    /// Blocks of a running request that get their hash in this step: those that it fills, and those that were loaded
    /// for it.
    fn pending(&self, key: u32) -> Vec<BlockId> {
        let Some(row) = self.row_of(key).filter(|_| self.config.enable_prefix_caching) else {
            return Vec::new();
        };
        let entry = self.requests.at(key);
        let before = if row.admitted == Admitted::Before { row.computed } else { row.cached };
        let end = (row.computed + row.len).min(entry.chain.len());
        let blocks = entry.seq.map_or(&[][..], |seq| table(&self.blocks, seq));
        let range = before / self.config.block_size..end / self.config.block_size;
        blocks.get(range).unwrap_or_default().to_vec()
    }

    /// A request's row in the step that is being planned.
    fn row_of(&self, key: u32) -> Option<&StepRow> {
        let entry = self.requests.at(key);
        entry.planned.then(|| self.step.rows.iter().find(|row| row.id == entry.id)).flatten()
    }

    /// Blocks that must stay free when a request is admitted beside `others` running ones: the watermark, or none if it
    /// is alone.
    pub(super) fn keep_free(&self, others: usize) -> usize {
        if others == 0 { 0 } else { self.config.watermark_blocks() }
    }
}
