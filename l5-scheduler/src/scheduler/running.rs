//! Running requests are planned first: their next tokens, and blocks for them.

use l3_paged_kv::{KvError, SeqId};

use super::Scheduler;
use super::budget::Budget;
use crate::{Admitted, Composed, FinishReason, StepRow};

/// Result of reserving blocks for a running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It has its blocks; its table had this many before.
    Fits(usize),
    /// It has no row in this step.
    Skipped,
    /// It was preempted itself.
    Preempted,
    /// It has ended: the pool is too small for its next token.
    Ended,
}

impl Scheduler {
    /// Plans the running requests, in the order of their admission.
    pub(super) fn plan_running(&mut self, budget: &mut Budget) {
        let (mut i, mut drafts) = (0, self.config.step_drafts());
        while i < self.running.len() && budget.left() > 0 && !self.ahead.is_blocked() {
            let key = self.running[i];
            let len = self.next_len(key, budget);
            if len == 0 {
                i += 1;
                continue;
            }
            match self.grow(key, len, &mut i, budget) {
                Outcome::Fits(blocks_before) => {
                    self.plan_row(key, len, blocks_before, budget);
                    i += 1;
                    if self.config.num_speculative_tokens > 0 {
                        // Each request behind this one can have its token.
                        let behind = self.running.len() - i;
                        let most = budget.left().saturating_sub(behind).min(drafts);
                        drafts -= self.offer_drafts(key, most, budget);
                    }
                }
                Outcome::Skipped => i += 1,
                // The request behind it has its index now.
                Outcome::Ended => {}
                Outcome::Preempted if self.policy.continues_after_preemption() => {}
                Outcome::Preempted => break,
            }
        }
    }

    /// Number of tokens that a running request gets in this step; 0 for none.
    fn next_len(&self, key: u32, budget: &Budget) -> usize {
        let entry = self.requests.at(key);
        if entry.aborted || self.is_about_to_end(entry) {
            return 0;
        }
        if !budget.takes(entry.decodes()) || !self.turn.allows(entry.adapter.as_ref()) {
            return 0;
        }
        let so_far = Composed { requests: self.step.rows.len(), tokens: self.step.tokens };
        if !self.policy.compose(&entry.view(), &so_far) {
            return 0;
        }
        // exercise l5.running
        let wanted = entry.num_tokens() - entry.computed;
        // The last token that fits `max_model_len` is sampled and never fed.
        let most = self.config.max_model_len.saturating_sub(entry.computed + 1);
        budget.running(wanted).min(most)
        // end of exercise
    }

    /// Reserves blocks for a running request's next `len` tokens, preempting others if needed. `i` is its index in
    /// `running`; it moves when a request before it is preempted.
    fn grow(&mut self, key: u32, len: usize, i: &mut usize, budget: &mut Budget) -> Outcome {
        let entry = self.requests.at(key);
        let (computed, seq) = (entry.computed, entry.seq);
        let Some(seq) = seq else { return Outcome::Skipped };
        if self.ends_ahead(computed + len) {
            return Outcome::Skipped;
        }
        // Most tokens have a slot in the blocks that the request holds.
        let end = computed + len;
        if let Ok(table) = self.blocks.table(seq)
            && table.capacity() >= self.reserved_len(end)
        {
            return Outcome::Fits(table.blocks().len());
        }
        // exercise l5.running
        if self.config.blocks(computed + len) > self.config.capacity() {
            // It would not fit even alone, so no other request is preempted for it.
            self.end_while_planning(key, FinishReason::KvExhausted);
            return Outcome::Ended;
        }
        let up_to = self.reserved_len(computed + len);
        loop {
            match self.reserve(seq, up_to) {
                Ok(blocks_before) => return Outcome::Fits(blocks_before),
                Err(KvError::NoFreeBlocks { .. }) => {}
                Err(e) => {
                    debug_assert!(false, "{e}");
                    return Outcome::Skipped;
                }
            }
            if let Some(outcome) = self.reclaim_blocks(key, i, budget) {
                return outcome;
            }
        }
        // end of exercise
    }

    /// Reserves blocks for a sequence's first `up_to` tokens. Returns the number of blocks that it had before.
    fn reserve(&mut self, seq: SeqId, up_to: usize) -> Result<usize, KvError> {
        let before = self.blocks.table(seq)?.blocks().len();
        self.blocks.reserve(seq, up_to)?;
        Ok(before)
    }

    /// Slots for so many tokens and the lookahead behind them, as far as the model's length and the pool allow.
    pub(super) fn reserved_len(&self, tokens: usize) -> usize {
        let most = self.config.max_model_len.min(self.config.capacity() * self.config.block_size);
        tokens.saturating_add(self.config.num_lookahead_tokens).min(most).max(tokens)
    }

    /// Adds the row of a running request that has its blocks.
    #[inline]
    fn plan_row(&mut self, key: u32, len: usize, blocks_before: usize, budget: &mut Budget) {
        let Self { requests, blocks, .. } = self;
        let entry = requests.at(key);
        let (Some(seq), Some(seat)) = (entry.seq, entry.seat) else { return };
        // exercise l5.running
        let (start, end) = (entry.computed, entry.computed + len);
        let complete = end == entry.num_tokens();
        let registered = blocks.register(seq, &entry.chain, end);
        debug_assert!(registered.is_ok(), "{registered:?}");
        let row = StepRow {
            id: entry.id,
            seat,
            computed: start,
            len,
            drafts: 0,
            samples: complete,
            awaits: entry.awaited > 0,
            admitted: Admitted::Before,
            cached: 0,
            blocks_before,
        };
        budget.take(len);
        self.push_row(row);
        // end of exercise
    }
}
