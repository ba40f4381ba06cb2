//! The next step: the loop that policies answer to.

use super::Scheduler;
use super::budget::Budget;
use crate::{Step, StepRow, Time};

impl Scheduler {
    /// Decide who takes part in the next step, and reserve all that it takes. A step that was planned before and neither
    /// applied nor abandoned is abandoned.
    ///
    /// The cost is that of who takes part, however many wait and however large the pool is.
    pub fn plan(&mut self, now: Time) -> &Step {
        self.abandon();
        self.step.clear(self.steps, now);
        self.steps += 1;
        self.stats.steps += 1;
        self.open = true;
        self.end_leases(now);
        self.plan_stores();
        let mut budget = Budget::new(&self.config, self.running.len() + self.num_waiting());
        self.plan_running(&mut budget);
        if self.step.preempted.is_empty() || self.policy.goes_on_after_preemption() {
            self.plan_waiting(&mut budget);
        } else {
            self.held_up = true;
        }
        self.stats.scheduled_tokens += self.step.tokens as u64;
        &self.step
    }

    /// A request takes part with this.
    pub(super) fn push_row(&mut self, row: StepRow) {
        self.step.tokens += row.len;
        self.step.rows.push(row);
        self.requests.at_mut(row.place).planned = true;
    }

    /// A request does not take part after all: its row, if it had one.
    pub(super) fn take_row(&mut self, place: u32) -> Option<StepRow> {
        let entry = self.requests.at_mut(place);
        if !std::mem::take(&mut entry.planned) {
            return None;
        }
        let at = self.step.rows.iter().position(|row| row.place == place)?;
        let row = self.step.rows.remove(at);
        self.step.tokens -= row.len;
        Some(row)
    }
}
