//! The end of a step: its results become part of the requests.

use l3_paged_kv::trace::BlockOp;

use super::{Resolved, ResolvedRow, Scheduler};
use crate::composer::Applied;
use crate::{FinishReason, RequestId, StepRow, Time};

impl Scheduler {
    /// Applies a step that ran until `now`: its tokens count as computed, its blocks can be hit, output tokens are
    /// appended to their requests, and requests that have ended free their blocks, in the order of the rows. The others
    /// keep their new drafts.
    pub fn apply(&mut self, resolved: &Resolved, now: Time) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        self.now = now;
        if !self.is_idle() {
            self.composer.applied(&Applied { step: &self.step, turn: self.turn.turn() });
        }
        for row in &self.step.rows {
            let entry = self.requests.at_mut(self.seats.owner(row.seat));
            entry.planned = false;
            // exercise l5.apply
            // The request's tokens that were fed are computed. The sampled token is not: it is fed in the next step.
            let fed = row.fed();
            entry.computed += fed;
            // end of exercise
        }
        self.count_accepted(resolved);
        for &StepRow { seat, computed: from, .. } in &self.step.rows {
            let entry = self.requests.at(self.seats.owner(seat));
            if let Some(seq) = entry.seq {
                self.blocks.note(&BlockOp::Wrote { seq, from, to: entry.computed });
            }
        }
        self.blocks.commit_step();
        self.forget_preemptions();
        for (seat, note) in &resolved.notes {
            self.requests.at_mut(self.seats.owner(*seat)).note = Some(note.clone());
        }
        // exercise l5.apply
        for ResolvedRow { seat, tokens, finish, .. } in resolved.rows() {
            self.stats.sampled_tokens += tokens.len() as u64;
            let key = self.seats.owner(seat);
            let entry = self.requests.at_mut(key);
            for token in tokens {
                entry.chain.push(*token);
            }
            if let Some(reason) = finish {
                self.finish(key, reason, now);
            }
        }
        // end of exercise
        self.keep_drafts(resolved);
        self.end_aborted();
    }

    /// Ends requests that were aborted while the step was open, unless they have ended with it.
    pub(super) fn end_aborted(&mut self) {
        for id in std::mem::take(&mut self.aborted) {
            let key = self.requests.find(id);
            if let Some(key) = key.filter(|key| self.requests.at(*key).aborted) {
                self.remove(key, FinishReason::Aborted);
            }
        }
    }

    /// Requests that were preempted during planning can be admitted again in the next step.
    pub(super) fn forget_preemptions(&mut self) {
        for id in &self.step.preempted {
            if let Some(key) = self.requests.find(*id) {
                self.requests.at_mut(key).preempted_now = false;
            }
        }
    }

    /// Takes the requests that have ended since the last call, for whatever reason. Only now another request can have
    /// such an id, so what a caller keeps by id never mixes two requests.
    pub fn take_ended(&mut self) -> std::vec::Drain<'_, (RequestId, FinishReason)> {
        for (id, _) in &self.ended {
            self.requests.release_id(*id);
        }
        self.ended.drain(..)
    }
}
