//! Planning a step while the one before it runs, so that a device does not wait for the planning.
//!
//! ```text
//! one step at a time    host    plan 1          apply 1, plan 2          apply 2, plan 3
//!                       device          step 1                  step 2                  step 3
//!
//! one step ahead        host    plan 1, plan 2  apply 1, plan 3  apply 2, plan 4
//!                       device          step 1 | step 2          | step 3 ..
//! ```
//!
//! The next step is planned as if the running one had ended. All that this takes is known, except the tokens that the
//! running step samples. A row that feeds such a token *awaits* it: the executor knows it first, and feeds it without
//! the host.
//!
//! What the running step really samples is known when it is applied. Then two kinds of rows of the next step, which
//! runs already, turn out to be of no use: those of requests that have ended with a stop token, and those of requests
//! that got more than one token. They do not sample any more ([`StepRow::samples`]), and what they compute is ignored.
//! A request that has ended this way is reported at once, but keeps its blocks and its seat until its last row is over,
//! because that row writes to them.
//!
//! For the same reason a plan takes nothing from the requests of the running step. Where one of them would have to be
//! preempted, nothing is planned ahead, and the next plan is made when the step is over.
//!
//! (In vLLM this is `async_scheduling`. There, requests of the running step can be preempted, and their tokens are
//! dropped.)

use super::events::Happened;
use super::{Scheduler, SchedulerStats};
use crate::composer::Applied;
use crate::requests::Entry;
use crate::{FinishReason, RequestId, StepPlan, StepRow, Time};

/// State of a scheduler that plans ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Whether two steps are open.
    open: bool,
    /// Whether the second one is being planned.
    planning: bool,
    /// Whether it would take something from a request of the first one.
    blocked: bool,
    /// Whether the composer knows of the first one.
    composed: bool,
    lingering: Vec<Lingering>,
}

/// A request whose end was reported while it has a row in the newest step.
#[derive(Clone, Copy, Debug)]
struct Lingering {
    key: u32,
    reason: FinishReason,
    ended: Time,
}

impl Ahead {
    /// Whether a step is being planned ahead.
    pub(super) fn is_planning(&self) -> bool {
        self.planning
    }

    /// The step that is being planned ahead takes something from a request of the running one: it is not to be.
    pub(super) fn block(&mut self) {
        self.blocked = true;
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Number of requests whose end was reported, and which still have blocks and a seat.
    pub(super) fn num_lingering(&self) -> usize {
        self.lingering.len()
    }

    pub(super) fn has_lingering(&self) -> bool {
        !self.lingering.is_empty()
    }
}

impl Scheduler {
    /// Plans the step behind the planned one, while that one runs. `None` if there is no such step or if it cannot be
    /// planned yet:
    ///
    /// - no step is open, it has no rows, or another one was planned ahead already;
    /// - a request of the running step would have to be preempted;
    /// - keys and values are to be loaded or stored, or the running step has begun to: if it fails, what was planned on
    ///   top of it is taken back, and a load that has begun cannot be;
    /// - drafts are on, because the number of accepted ones decides where the next row begins;
    /// - an observer of blocks is set, which gets one step after the other.
    ///
    /// The steps are resolved and applied in their order. A plan that is given up is as if it had not been made, with
    /// the exceptions of [`Scheduler::abandon`]: leases and waiting requests that it ended stay so, and its lookups in
    /// the cache are counted.
    pub fn plan_ahead(&mut self, now: Time) -> Option<&StepPlan> {
        let possible = self.open && !self.step.rows.is_empty() && self.step.ops.is_empty();
        let possible =
            possible && self.config.num_speculative_tokens == 0 && !self.leases.has_to_store();
        let possible = possible && self.write_backs.is_empty();
        if !possible || self.blocks.begin_step_ahead().is_err() {
            return None;
        }
        self.begin_ahead();
        let before = self.stats;
        self.ahead.planning = true;
        self.plan_step(now);
        self.ahead.planning = false;
        let blocked = std::mem::take(&mut self.ahead.blocked);
        if blocked || self.step.rows.is_empty() || !self.step.ops.is_empty() {
            self.write_backs.take_from(&mut self.step);
            self.abandon_newest();
            self.steps -= 1;
            self.stats = SchedulerStats { finished: self.stats.finished, ..before };
            return None;
        }
        Some(&self.step)
    }

    /// Takes back the step that was planned ahead, if there is one. The step that runs is not touched.
    pub fn abandon_ahead(&mut self) {
        if self.ahead.open {
            self.abandon_newest();
        }
    }

    /// Counts the planned step as if it had run, except what it samples.
    fn begin_ahead(&mut self) {
        self.tell_composer();
        self.ahead.composed = true;
        std::mem::swap(&mut self.step, &mut self.running_step);
        self.ahead.open = true;
        for row in &self.running_step.rows {
            let entry = self.requests.at_mut(self.seats.owner(row.seat));
            (entry.planned, entry.in_flight) = (false, true);
            if entry.over {
                continue;
            }
            // exercise l5.ahead
            entry.computed += row.len;
            entry.awaited = usize::from(row.samples);
            // end of exercise
        }
        let preempted = std::mem::take(&mut self.running_step.preempted);
        self.forget_preemptions(&preempted);
        self.running_step.preempted = preempted;
    }

    /// Makes the running step the newest one again, after that was abandoned.
    pub(super) fn end_ahead(&mut self) {
        std::mem::swap(&mut self.step, &mut self.running_step);
        self.ahead.open = false;
        for row in &self.step.rows {
            let entry = self.requests.at_mut(self.seats.owner(row.seat));
            (entry.planned, entry.in_flight) = (true, false);
            if !entry.over {
                (entry.computed, entry.awaited) = (row.computed, 0);
            }
        }
    }

    /// The step whose result is due next.
    pub(super) fn due_step(&self) -> &StepPlan {
        if self.ahead.open { &self.running_step } else { &self.step }
    }

    /// Whether two steps are open.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead.open
    }

    /// Closes the step that is due, and takes its rows and the requests that it preempted. Returns whether another step
    /// was planned ahead of its end.
    pub(super) fn close_due(&mut self) -> (Vec<StepRow>, Vec<RequestId>, bool) {
        let ahead = std::mem::take(&mut self.ahead.open);
        self.open = ahead;
        self.ahead.composed = false;
        let step = self.closed_step(ahead);
        (std::mem::take(&mut step.rows), std::mem::take(&mut step.preempted), ahead)
    }

    /// Returns the memory of a step that was closed.
    pub(super) fn reuse(&mut self, rows: Vec<StepRow>, preempted: Vec<RequestId>, ahead: bool) {
        let step = self.closed_step(ahead);
        (step.rows, step.preempted) = (rows, preempted);
    }

    /// The step that was closed.
    fn closed_step(&mut self, ahead: bool) -> &mut StepPlan {
        if ahead { &mut self.running_step } else { &mut self.step }
    }

    /// Reports the newest step to the composer, unless it knows of it already.
    pub(super) fn tell_composer(&mut self) {
        if self.ahead.composed || self.is_idle() {
            return;
        }
        if let Some(composer) = &mut self.composer {
            composer.applied(&Applied { step: &self.step, turn: self.turn.turn() });
        }
    }

    /// All steps were abandoned: the composer is told of the next one.
    pub(super) fn forget_composition(&mut self) {
        self.ahead.composed = false;
    }

    /// Whether a request ends with the token that is being sampled for it, whatever that is.
    pub(super) fn is_about_to_end(&self, entry: &Entry) -> bool {
        if entry.awaited == 0 {
            return false;
        }
        // exercise l5.ahead
        let generated = entry.generated() + entry.awaited;
        generated >= entry.max_tokens || entry.num_tokens() >= self.config.max_model_len
        // end of exercise
    }

    /// Whether a request of a step that is planned ahead is at the end of the pool: it ends, when the running step is
    /// over.
    pub(super) fn ends_ahead(&mut self, tokens: usize) -> bool {
        let ends = self.ahead.planning && self.config.blocks(tokens) > self.config.capacity();
        self.ahead.blocked |= ends;
        ends
    }

    /// Compares the step that was planned ahead with what the step before it has sampled: rows that are of no use do not
    /// sample. Blocks that the others fill get their hashes now that their tokens are known.
    pub(super) fn settle_ahead(&mut self) {
        let Self { step, requests, seats, blocks, .. } = self;
        for row in step.rows.iter_mut().filter(|row| row.awaits) {
            let entry = requests.at(seats.owner(row.seat));
            row.samples = still_samples(entry, row);
            if let Some(seq) = entry.seq.filter(|_| !entry.over) {
                let registered = blocks.register(seq, &entry.chain, row.computed + row.len);
                debug_assert!(registered.is_ok(), "{registered:?}");
            }
        }
    }

    /// Reports the end of a request that has a row in the newest step. Its blocks are free when that step is over.
    pub(super) fn linger(&mut self, key: u32, reason: FinishReason, ended: Time) {
        self.running.retain(|other| *other != key);
        self.tell(&Happened::Finished(key, reason));
        let entry = self.requests.at_mut(key);
        entry.over = true;
        let id = entry.id;
        self.requests.retire(key);
        self.report_end(id, reason);
        self.ahead.lingering.push(Lingering { key, reason, ended });
    }

    /// Frees the blocks and seats of requests that have ended, and whose last row is over now.
    pub(super) fn end_lingering(&mut self) {
        let mut nth = 0;
        while let Some(&Lingering { key, reason, ended }) = self.ahead.lingering.get(nth) {
            if self.requests.at(key).in_step() {
                nth += 1;
            } else {
                self.ahead.lingering.remove(nth);
                self.finish(key, reason, ended);
            }
        }
    }
}

/// Whether the sample of a row counts that was planned before its token was known.
fn still_samples(entry: &Entry, row: &StepRow) -> bool {
    // exercise l5.ahead
    !entry.over && entry.chain.len() == row.computed + row.len
    // end of exercise
}
