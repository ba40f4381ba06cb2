//! The end of a step: its results become part of the requests.

use l3_paged_kv::trace::BlockOp;

use super::{Resolved, ResolvedRow, Scheduler};
use crate::{FinishReason, RequestId, StepRow, Time};

impl Scheduler {
    /// Applies the step that is [due](Scheduler::due), which ran until `now`: its tokens count as computed, its blocks can be hit, output tokens are
    /// appended to their requests, and requests that have ended free their blocks, in the order of the rows. The others
    /// keep their new drafts.
    pub fn apply(&mut self, resolved: &Resolved, now: Time) {
        if !self.open {
            return;
        }
        self.measure_prefill(now);
        self.now = now;
        if !self.is_ahead() {
            self.tell_composer();
        }
        let (rows, preempted, ahead) = self.close_due();
        for row in &rows {
            let entry = self.requests.at_mut(self.seats.owner(row.seat));
            if ahead {
                // It counts as computed since the next step was planned.
                (entry.in_flight, entry.awaited) = (false, 0);
                continue;
            }
            entry.planned = false;
            if entry.over {
                continue;
            }
            // exercise l5.apply
            // The request's tokens that were fed are computed. The sampled token is not: it is fed in the next step.
            let fed = row.fed();
            entry.computed += fed;
            // end of exercise
        }
        self.count_accepted(&rows, resolved);
        let observed = if self.blocks.is_observed() { rows.as_slice() } else { &[] };
        for &StepRow { seat, computed: from, .. } in observed {
            let entry = self.requests.at(self.seats.owner(seat));
            if let Some(seq) = entry.seq {
                self.blocks.note(&BlockOp::Wrote { seq, from, to: entry.computed });
            }
        }
        self.blocks.commit_step();
        if !preempted.is_empty() {
            self.forget_preemptions(&preempted);
        }
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
        if ahead {
            self.settle_ahead();
        }
        if self.ahead.has_lingering() {
            self.end_lingering();
        }
        if !self.aborted.is_empty() {
            self.end_aborted();
        }
        self.reuse(rows, preempted, ahead);
    }

    /// Ends requests that were aborted while a step with a row of them was open, unless they have ended with it.
    pub(super) fn end_aborted(&mut self) {
        let mut nth = 0;
        while let Some(id) = self.aborted.get(nth) {
            let key = self.requests.find(*id).filter(|key| self.requests.at(*key).aborted);
            if key.is_some_and(|key| self.requests.at(key).in_step()) {
                nth += 1;
                continue;
            }
            self.aborted.remove(nth);
            if let Some(key) = key {
                self.remove(key, FinishReason::Aborted);
            }
        }
    }

    /// Requests that were preempted in a step can be admitted again in the next one.
    pub(super) fn forget_preemptions(&mut self, preempted: &[RequestId]) {
        for id in preempted {
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
