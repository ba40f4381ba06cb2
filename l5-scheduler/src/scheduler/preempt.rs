//! Giving way: blocks go back, the request waits again, and nothing that it said is lost.

use l3_paged_kv::SeqId;

use super::Scheduler;
use super::budget::Budget;
use super::running::Outcome;
use crate::{FinishReason, Status, Victim};

impl Scheduler {
    /// Somebody's blocks go, so that the running request `needy`, the `i`-th, can have its next ones. Returns what becomes of
    /// `needy` if that is decided now; `None` if it can ask again. `i` stays its number among those who run.
    pub(super) fn give_way(
        &mut self,
        needy: u32,
        i: &mut usize,
        budget: &mut Budget,
    ) -> Option<Outcome> {
        let victim = self.victim(needy);
        // exercise l5.preempt
        match victim {
            None => Some(Outcome::SitsOut),
            Some(Victim::Lease(lease)) => (!self.end_lease(lease)).then_some(Outcome::SitsOut),
            Some(Victim::Running(number)) => {
                let itself = self.running[number] == needy;
                self.preempt_planned(number, budget);
                if number < *i {
                    *i -= 1;
                }
                itself.then_some(Outcome::GaveWay)
            }
        }
        // end of exercise
    }

    /// Whose blocks go when this request cannot have its next ones.
    fn victim(&self, needy: u32) -> Option<Victim> {
        let needy = self.requests.at(needy).view();
        let mut running = self.running.iter().map(|place| self.requests.at(*place).view());
        self.policy.victim(&needy, &mut running, &self.leases)
    }

    /// Preempt the `i`-th of those who run in the midst of planning. If it was planned already, it does not take part after
    /// all, and the step's tokens are there for others.
    pub(super) fn preempt_planned(&mut self, i: usize, budget: &mut Budget) {
        let place = self.running[i];
        let id = self.requests.at(place).id;
        let tokens = self.step.tokens;
        // exercise l5.preempt
        self.take_row(place);
        self.step.preempted.push(id);
        self.requests.at_mut(place).preempted_now = true;
        self.preempt(i);
        // Not only its own tokens: whoever was admitted on the strength of its blocks is out, too.
        budget.give_back(tokens - self.step.tokens);
        // end of exercise
    }

    /// The `i`-th of those who run gives its blocks up and waits again, at the front of the queue as far as its policy has
    /// one. It keeps its tokens; what they need is computed again, or found in the cache.
    pub(super) fn preempt(&mut self, i: usize) {
        self.stats.preemptions += 1;
        // exercise l5.preempt
        let place = self.running.remove(i);
        self.front -= 1;
        let entry = self.requests.at_mut(place);
        // Before everybody else who waits, those that were preempted earlier included: they were admitted later.
        entry.ticket = self.front;
        entry.status = Status::Waiting;
        entry.computed = 0;
        entry.preemptions += 1;
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
        let Some(i) = found else { return self.unload(seq) };
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
