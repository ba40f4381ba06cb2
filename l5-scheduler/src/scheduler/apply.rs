//! The end of a step: its results become part of the requests.

use l3_paged_kv::trace::BlockOp;

use super::{Resolved, Scheduler};
use crate::{FinishReason, RequestId, StepRow};

impl Scheduler {
    /// Applies a step that ran: its tokens count as computed, its blocks can be hit, output tokens are appended to
    /// their requests, and requests that have ended free their blocks, in the order of the rows.
    pub fn apply(&mut self, resolved: &Resolved) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        for &StepRow { place, computed: from, len, .. } in &self.step.rows {
            if let Some(seq) = self.requests.at(place).seq {
                self.blocks.note(&BlockOp::Wrote { seq, from, to: from + len });
            }
        }
        self.blocks.commit_step();
        for row in &self.step.rows {
            let entry = self.requests.at_mut(row.place);
            entry.planned = false;
            // exercise l5.apply
            // The tokens that were fed are computed. The sampled token is not: it is fed in the next step.
            let fed = row.len;
            entry.computed += fed;
            // end of exercise
        }
        self.forget_preemptions();
        // exercise l5.apply
        for (place, _, tokens, finish) in resolved.rows() {
            self.stats.sampled_tokens += tokens.len() as u64;
            let entry = self.requests.at_mut(place);
            for token in tokens {
                entry.chain.push(*token);
            }
            if let Some(reason) = finish {
                self.finish(place, reason);
            }
        }
        // end of exercise
        self.end_aborted();
    }

    /// Ends requests that were aborted while the step was open, unless they have ended with it.
    pub(super) fn end_aborted(&mut self) {
        for id in std::mem::take(&mut self.aborted) {
            let place = self.requests.find(id);
            if let Some(place) = place.filter(|place| self.requests.at(*place).aborted) {
                self.remove(place, FinishReason::Aborted);
            }
        }
    }

    /// Requests that were preempted during planning can be admitted again in the next step.
    pub(super) fn forget_preemptions(&mut self) {
        for id in &self.step.preempted {
            if let Some(place) = self.requests.find(*id) {
                self.requests.at_mut(place).preempted_now = false;
            }
        }
    }

    /// Takes the requests that have ended since the last call, for whatever reason: table index, id and reason. Only
    /// now an index can be reused by another request, so state that is kept by index never mixes two requests.
    pub fn take_ended(&mut self) -> std::vec::Drain<'_, (u32, RequestId, FinishReason)> {
        for (place, ..) in &self.ended {
            self.requests.vacate(*place);
        }
        self.ended.drain(..)
    }
}
