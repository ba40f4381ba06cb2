//! The end of a step: it counts, or it never was.

use super::{Resolved, Scheduler};
use crate::{FinishReason, RequestId, Status};

impl Scheduler {
    /// The step ran: its tokens are part of their requests, what it computed can be found by others, and who ended gives
    /// its blocks back, in the order of the step.
    pub fn apply(&mut self, resolved: &Resolved) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        self.blocks.commit_step();
        self.advance();
        for (place, _, tokens, finish) in resolved.rows() {
            self.stats.sampled_tokens += tokens.len() as u64;
            // exercise l5.apply
            for token in tokens {
                self.requests.at_mut(place).chain.push(*token);
            }
            if let Some(reason) = finish {
                self.finish(place, reason);
            }
            // end of exercise
        }
        self.end_aborted();
    }

    /// What the step has computed is computed.
    fn advance(&mut self) {
        for row in &self.step.rows {
            let entry = self.requests.at_mut(row.place);
            entry.planned = false;
            // exercise l5.apply
            entry.computed += row.len;
            // end of exercise
        }
        self.forget_preemptions();
    }

    /// The step did not run and will not: blocks that it took go back, hashes are withdrawn, whoever it admitted waits
    /// again where it waited. Whoever it preempted stays so. Does nothing when no step is planned.
    pub fn abandon(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let gone = self.blocks.abandon_step();
        // exercise l5.abandon
        for row in std::mem::take(&mut self.step.rows) {
            let entry = self.requests.at_mut(row.place);
            entry.planned = false;
            if entry.seq.is_some_and(|seq| gone.contains(&seq)) {
                entry.seq = None;
                entry.computed = 0;
                entry.status = Status::Waiting;
                self.running.retain(|place| *place != row.place);
                self.enqueue(row.place);
            }
        }
        // end of exercise
        self.step.tokens = 0;
        self.forget_preemptions();
        self.end_aborted();
    }

    /// End whoever was aborted while the step was open.
    fn end_aborted(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            let place = self.running[i];
            match self.requests.at(place).aborted {
                true => self.remove(place, FinishReason::Aborted),
                false => i += 1,
            }
        }
    }

    /// Who was preempted while the step was planned may come back in the next one.
    fn forget_preemptions(&mut self) {
        for id in &self.step.preempted {
            if let Some(place) = self.requests.find(*id) {
                self.requests.at_mut(place).preempted_now = false;
            }
        }
    }

    /// Requests that have ended since this was asked last, however: place, name and reason.
    pub fn take_ended(&mut self) -> std::vec::Drain<'_, (u32, RequestId, FinishReason)> {
        self.ended.drain(..)
    }
}
