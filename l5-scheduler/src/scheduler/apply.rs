//! The end of a step: it counts.

use super::{Resolved, Scheduler};
use crate::{FinishReason, RequestId};

impl Scheduler {
    /// The step ran: what it computed is computed and can be found by others, its tokens are part of their requests, and
    /// who ended gives its blocks back, in the order of the step.
    pub fn apply(&mut self, resolved: &Resolved) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        self.blocks.commit_step();
        for row in &self.step.rows {
            let entry = self.requests.at_mut(row.place);
            entry.planned = false;
            // exercise l5.apply
            // What was fed is computed. The token that was chosen is not: it is fed next.
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

    /// End whoever was aborted while the step was open, unless it has ended with the step.
    pub(super) fn end_aborted(&mut self) {
        for id in std::mem::take(&mut self.aborted) {
            let place = self.requests.find(id);
            if let Some(place) = place.filter(|place| self.requests.at(*place).aborted) {
                self.remove(place, FinishReason::Aborted);
            }
        }
    }

    /// Who was preempted while the step was planned may come back in the next one.
    pub(super) fn forget_preemptions(&mut self) {
        for id in &self.step.preempted {
            if let Some(place) = self.requests.find(*id) {
                self.requests.at_mut(place).preempted_now = false;
            }
        }
    }

    /// Requests that have ended since this was asked last, however: place, name and reason. Only now their places may be
    /// somebody else's, so whoever keeps something by place never meets two requests there.
    pub fn take_ended(&mut self) -> std::vec::Drain<'_, (u32, RequestId, FinishReason)> {
        for (place, ..) in &self.ended {
            self.requests.vacate(*place);
        }
        self.ended.drain(..)
    }
}
