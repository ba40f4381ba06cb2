//! Drafts: tokens that an executor expects a request to continue with, and verifies in one row.
//!
//! ```text
//! after a step   the executor proposes drafts d1 d2 d3          StepOutput::propose
//! plan           the row feeds the newest token t and the drafts: t d1 d2 d3
//! execute        logits behind each of them; tokens are sampled as long as they equal the drafts: d1 d2 x
//! apply          d1 and d2 are accepted: they are computed. x is fed in the next step; d3 is rejected
//! ```
//!
//! A row with drafts computes several tokens at nearly the price of one while the step is bound by memory. Drafts are
//! optional, so they never take anything that another request needs: every running request gets a token of the step
//! before they do, and they get free blocks only. Blocks that only drafts need, planned or rejected ones, are taken
//! back before a lease ends or a request is preempted. What was cached in a free block is lost to a draft as to any
//! other token, so drafts can cost a later request a part of its prefix hit. The keys and values of a rejected draft
//! are overwritten, because its request's number of computed tokens ends before it; its block has no hash, so that no
//! other request can hit it.
//!
//! (Verification of several tokens in one pass is from Leviathan et al. 2023 and Chen et al. 2023; the accounting is
//! that of vLLM's V1 scheduler, in which drafts can also preempt other requests.)

use super::budget::Budget;
use super::{Resolved, Scheduler};
use crate::StepRow;

impl Scheduler {
    /// Adds drafts to the row of this request, which was planned last: as many as there are, as have slots in its own
    /// blocks and in free ones, and at most `most`. Returns their number.
    pub(super) fn offer_drafts(&mut self, key: u32, most: usize, budget: &mut Budget) -> usize {
        let Self { config, requests, blocks, step, draft_blocks, .. } = self;
        let entry = requests.at(key);
        let (Some(row), Some(seq)) = (step.rows.last_mut(), entry.seq) else { return 0 };
        if entry.drafts.is_empty() || !row.samples || row.id != entry.id {
            return 0;
        }
        let table = blocks.table(seq).map_or(0, |table| table.blocks().len());
        let end = row.computed + row.len;
        // exercise l5.drafts
        // The last token that fits `max_model_len` is sampled and never fed.
        let room = config.max_model_len.saturating_sub(end + 1);
        let slots = (table + blocks.num_free()) * config.block_size - end;
        row.drafts = entry.drafts.len().min(most).min(room).min(slots);
        // end of exercise
        row.len += row.drafts;
        let reserved = blocks.reserve(seq, end + row.drafts);
        debug_assert!(reserved.is_ok(), "{reserved:?}");
        *draft_blocks |= reserved.is_ok_and(|new| !new.is_empty());
        step.tokens += row.drafts;
        budget.take(row.drafts);
        row.drafts
    }

    /// Takes back the blocks that only drafts need, while a step is being planned. Planned drafts without a slot are
    /// cut; their tokens of the step remain unused. Returns whether blocks are free now.
    pub(super) fn release_draft_blocks(&mut self) -> bool {
        if !std::mem::take(&mut self.draft_blocks) {
            return false;
        }
        let free = self.blocks.num_free();
        for i in 0..self.step.rows.len() {
            let row = self.step.rows[i];
            let end = row.computed + row.fed();
            let slots = self.release_behind(self.seats.owner(row.seat), end);
            let drafts = row.drafts.min(slots - end);
            self.step.tokens -= row.drafts - drafts;
            let row = &mut self.step.rows[i];
            (row.len, row.drafts) = (row.fed() + drafts, drafts);
            row.blocks_before = row.blocks_before.min(slots / self.config.block_size);
        }
        for i in 0..self.running.len() {
            let entry = self.requests.at(self.running[i]);
            if !entry.planned {
                self.release_behind(self.running[i], entry.computed);
            }
        }
        let freed = self.blocks.num_free() > free;
        self.frees += u64::from(freed);
        freed
    }

    /// Number of blocks that only drafts need.
    pub(super) fn num_draft_blocks(&self) -> usize {
        if !self.draft_blocks {
            return 0;
        }
        let row = |row: &StepRow| (self.seats.owner(row.seat), row.computed + row.fed());
        let rows = self.step.rows.iter().map(row);
        let idle = self.running.iter().map(|key| (*key, self.requests.at(*key)));
        let idle =
            idle.filter(|(_, entry)| !entry.planned).map(|(key, entry)| (key, entry.computed));
        let behind = |(key, tokens): (u32, usize)| {
            let table = self.requests.at(key).seq.and_then(|seq| self.blocks.table(seq).ok());
            let held = table.map_or(0, |table| table.blocks().len());
            held.saturating_sub(self.config.blocks(self.needed_slots(key, tokens)))
        };
        rows.chain(idle).map(behind).sum()
    }

    /// Number of accepted drafts at each position of a row, the first one first: how fast acceptance falls along a row.
    pub fn accepted_by_position(&self) -> &[u64] {
        &self.accepted_by_position
    }

    /// Number of slots that a request needs for its first `tokens` tokens and for its load, without drafts.
    fn needed_slots(&self, key: u32, tokens: usize) -> usize {
        // A load can bring fewer tokens than it has blocks for: the others are for the request's own tokens, too.
        let loaded = self.requests.at(key).loading.map_or(0, |loading| loading.to);
        self.reserved_len(tokens).max(loaded)
    }

    /// Frees a request's blocks behind those of its first `tokens` tokens and of its load. Returns its number of slots.
    fn release_behind(&mut self, key: u32, tokens: usize) -> usize {
        let Some(seq) = self.requests.at(key).seq else { return tokens };
        let slots = self.config.blocks(self.needed_slots(key, tokens)) * self.config.block_size;
        let cut = self.blocks.rollback(seq, slots);
        debug_assert!(matches!(cut, Ok(None)), "{cut:?}");
        let Ok(table) = self.blocks.table(seq) else { return tokens };
        table.capacity()
    }

    /// Counts the accepted drafts of a step as computed, and drops the others.
    pub(super) fn count_accepted(&mut self, rows: &[StepRow], resolved: &Resolved) {
        if self.config.num_speculative_tokens == 0 {
            return;
        }
        let mut resolved = resolved.rows().peekable();
        for row in rows {
            let tokens =
                resolved.next_if(|next| next.seat == row.seat).map_or(&[][..], |r| r.tokens);
            if !row.samples {
                continue;
            }
            let entry = self.requests.at_mut(self.seats.owner(row.seat));
            let drafts = &entry.drafts[..row.drafts];
            entry.computed += num_computed(drafts, tokens);
            let accepted = num_accepted(drafts, tokens);
            self.stats.cut_draft_tokens += (entry.drafts.len() - row.drafts) as u64;
            entry.drafts.clear();
            self.stats.drafted_rows += u64::from(row.drafts > 0);
            self.stats.draft_tokens += row.drafts as u64;
            self.stats.accepted_tokens += accepted as u64;
            self.accepted_by_position.iter_mut().take(accepted).for_each(|count| *count += 1);
        }
    }

    /// Keeps the drafts that were proposed in a step, for the next one.
    pub(super) fn keep_drafts(&mut self, resolved: &Resolved) {
        if self.config.num_speculative_tokens == 0 {
            return;
        }
        for (id, seat, drafts) in resolved.drafts() {
            // A request that has ended in this step has left its seat.
            let entry = self.requests.get_mut(self.seats.owner(seat));
            let Some(entry) = entry.filter(|entry| entry.id == id) else { continue };
            // Room for all drafts is made once.
            entry.drafts.reserve_exact(self.config.num_speculative_tokens);
            // exercise l5.drafts
            // One more token is sampled behind the drafts.
            let most = entry.max_tokens.saturating_sub(entry.generated() + 1);
            let most = most.min(self.config.num_speculative_tokens);
            entry.drafts.extend_from_slice(&drafts[..drafts.len().min(most)]);
            // end of exercise
        }
    }
}

/// Number of accepted drafts: those that equal the sampled `tokens`, from the first on.
pub(crate) fn num_accepted(drafts: &[u32], tokens: &[u32]) -> usize {
    let mut pairs = drafts.iter().zip(tokens);
    pairs.position(|(draft, token)| draft != token).unwrap_or(drafts.len().min(tokens.len()))
}

/// Number of drafts that count as computed: the accepted ones, without the last token. That one is fed in the next
/// step, as every newest token is. It equals a draft only if it ends the output or if a guide forced it.
pub(crate) fn num_computed(drafts: &[u32], tokens: &[u32]) -> usize {
    // exercise l5.drafts
    num_accepted(drafts, tokens).min(tokens.len().saturating_sub(1))
    // end of exercise
}
