//! Giving way: blocks go back, the request waits again, and nothing that it said is lost.

use l3_paged_kv::SeqId;

use super::Scheduler;
use super::budget::Budget;
use crate::{FinishReason, Status};

impl Scheduler {
    /// Preempt a running request in the midst of planning: if it was planned already, its tokens go back to the budget.
    pub(super) fn preempt_planned(&mut self, i: usize, budget: &mut Budget) {
        let place = self.running[i];
        if let Some(row) = self.take_row(place) {
            budget.give_back(row.len);
        }
        self.step.preempted.push(self.requests.at(place).id);
        self.requests.at_mut(place).preempted_now = true;
        self.preempt(i);
    }

    /// The `i`-th of those who run gives its blocks up and waits again, at the front of the queue as far as its policy has
    /// one. It keeps its tokens; what they need is computed again, or found in the cache.
    pub(super) fn preempt(&mut self, i: usize) {
        let place = self.running.remove(i);
        self.front -= 1;
        let ticket = self.front;
        // exercise l5.preempt
        let entry = self.requests.at_mut(place);
        entry.computed = 0;
        entry.status = Status::Waiting;
        entry.preemptions += 1;
        entry.ticket = ticket;
        let seq = entry.seq.take();
        if let Some(seq) = seq {
            self.free_blocks(seq);
        }
        self.enqueue(place);
        // end of exercise
    }

    /// An admission of this step was founded on blocks that will not be computed. It is as if it had not been: the
    /// request waits where it waited.
    pub(super) fn unadmit(&mut self, seq: SeqId) {
        let found = self.running.iter().position(|place| self.requests.at(*place).seq == Some(seq));
        let Some(i) = found else { return };
        let place = self.running.remove(i);
        self.take_row(place);
        let entry = self.requests.at_mut(place);
        entry.seq = None;
        entry.computed = 0;
        entry.status = Status::Waiting;
        self.enqueue(place);
    }

    /// End a request while a step is being planned: the step tells.
    pub(super) fn end_while_planning(&mut self, place: u32, reason: FinishReason) {
        self.step.ended.push((self.requests.at(place).id, reason));
        self.remove(place, reason);
    }
}
