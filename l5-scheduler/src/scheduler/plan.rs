//! Planning a step: the loop that calls the composer and the policy.

use super::Scheduler;
use super::budget::Budget;
use super::compose::Attempt;
use crate::{StepPlan, StepRow, Time};

impl Scheduler {
    /// Plans the next step, and reserves all that it needs. A planned step that was neither applied nor abandoned is
    /// abandoned first.
    ///
    /// The cost grows with the rows of the step, not with the length of the queue or the size of the pool.
    pub fn plan(&mut self, now: Time) -> &StepPlan {
        self.abandon();
        self.plan_step(now);
        &self.step
    }

    /// Plans the newest step.
    pub(super) fn plan_step(&mut self, now: Time) {
        self.now = now;
        self.step.clear(self.steps, now);
        self.steps += 1;
        self.stats.steps += 1;
        self.open = true;
        self.kv_log.begin_plan();
        self.end_leases(now);
        self.plan_stores();
        self.look_at_second_memory();
        self.promote();
        // Not for each attempt: a connector is asked once in a plan about a request that waits for its answer.
        self.lookups.clear();
        for attempt in Attempt::ALL {
            self.compose(attempt);
            self.plan_rows();
            if !self.gives_way() || self.ahead.is_blocked() {
                break;
            }
        }
        self.plan_write_backs();
        self.count_service();
        self.stats.scheduled_tokens += self.step.tokens as u64;
    }

    /// Plans the rows of a step whose shape is decided.
    fn plan_rows(&mut self) {
        let eligible = self.running.len() + self.num_waiting();
        let mut budget = Budget::new(&self.config, eligible, self.step.shape);
        self.plan_running(&mut budget);
        if self.ahead.is_blocked() {
            return;
        }
        if !self.step.preempted.is_empty() && !self.policy.continues_after_preemption() {
            self.held_up = true;
        } else if budget.admits() {
            self.plan_waiting(&mut budget);
        }
    }

    /// Adds a row to the step.
    #[inline]
    pub(super) fn push_row(&mut self, row: StepRow) {
        self.step.tokens += row.len;
        self.step.rows.push(row);
        let entry = self.requests.at_mut(self.seats.owner(row.seat));
        entry.planned = true;
        if self.turn.is_limited() {
            self.turn.note(entry.adapter.as_ref());
        }
    }

    /// Removes a request's row from the step, if it has one.
    pub(super) fn take_row(&mut self, key: u32) -> Option<StepRow> {
        let entry = self.requests.at_mut(key);
        if !std::mem::take(&mut entry.planned) {
            return None;
        }
        let id = entry.id;
        let at = self.step.rows.iter().position(|row| row.id == id)?;
        let row = self.step.rows.remove(at);
        self.step.tokens -= row.len;
        Some(row)
    }
}
