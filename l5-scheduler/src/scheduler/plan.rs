//! Planning a step: the loop that calls the policy.

use super::Scheduler;
use super::budget::Budget;
use crate::{Step, StepRow, Time};

impl Scheduler {
    /// Plans the next step, and reserves all that it needs. A planned step that was neither applied nor abandoned is
    /// abandoned first.
    ///
    /// The cost grows with the rows of the step, not with the length of the queue or the size of the pool.
    pub fn plan(&mut self, now: Time) -> &Step {
        self.abandon();
        self.step.clear(self.steps, now);
        self.steps += 1;
        self.stats.steps += 1;
        self.open = true;
        self.lookups = 0;
        self.end_leases(now);
        self.plan_stores();
        let mut budget = Budget::new(&self.config, self.running.len() + self.num_waiting());
        self.plan_running(&mut budget);
        if self.step.preempted.is_empty() || self.policy.continues_after_preemption() {
            self.plan_waiting(&mut budget);
        } else {
            self.held_up = true;
        }
        self.stats.scheduled_tokens += self.step.tokens as u64;
        &self.step
    }

    /// Adds a row to the step.
    pub(super) fn push_row(&mut self, row: StepRow) {
        self.step.tokens += row.len;
        self.step.rows.push(row);
        self.requests.at_mut(self.seats.owner(row.seat)).planned = true;
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
