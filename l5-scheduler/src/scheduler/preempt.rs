//! Preemption: a running request gives up its blocks and waits again; its tokens are kept.

use l3_paged_kv::SeqId;

use super::Scheduler;
use super::budget::Budget;
use super::events::Happened;
use super::running::Outcome;
use crate::{FinishReason, LeaseEnd, LeaseId, Status, Victim};

impl Scheduler {
    /// Frees blocks for the running request `needy`, whose index in `running` is `i`, by preempting the policy's victim
    /// or ending leases. Returns the outcome for `needy` if that is decided; `None` if it can try again. `i` stays
    /// the index of `needy`.
    pub(super) fn reclaim_blocks(
        &mut self,
        needy: u32,
        i: &mut usize,
        budget: &mut Budget,
    ) -> Option<Outcome> {
        if self.release_draft_blocks() {
            return None;
        }
        let leases = self.leases_for_growth(needy);
        let victim = self.victim(needy, leases.first().copied());
        if self.ahead.is_planning() && matches!(victim, Some(Victim::Running(_))) {
            self.ahead.block();
            return Some(Outcome::Skipped);
        }
        // exercise l5.preempt
        match victim {
            None => Some(Outcome::Skipped),
            Some(Victim::Lease) => {
                (!self.end_all(&leases, LeaseEnd::ForRunning)).then_some(Outcome::Skipped)
            }
            Some(Victim::Running(number)) => {
                let itself = self.running[number] == needy;
                self.preempt_planned(number, budget);
                if number < *i {
                    *i -= 1;
                }
                itself.then_some(Outcome::Preempted)
            }
        }
        // end of exercise
    }

    /// The policy's choice of what frees blocks for this request.
    fn victim(&self, needy: u32, lease: Option<LeaseId>) -> Option<Victim> {
        let needy = self.requests.at(needy).view();
        let mut running = self.running.iter().map(|key| self.requests.at(*key).view());
        self.policy.victim(&needy, &mut running, lease, &self.context())
    }

    /// Preempts the `i`-th running request during planning. If it has a row in the step, the row is removed, and its
    /// tokens return to the budget.
    pub(super) fn preempt_planned(&mut self, i: usize, budget: &mut Budget) {
        let key = self.running[i];
        let id = self.requests.at(key).id;
        let tokens = self.step.tokens;
        self.write_back_request(key);
        // exercise l5.preempt
        self.take_row(key);
        self.step.preempted.push(id);
        self.requests.at_mut(key).preempted_now = true;
        self.preempt(i);
        // Not only its own tokens: requests that were admitted because they hit its blocks lose their rows, too.
        budget.give_back(tokens - self.step.tokens);
        // end of exercise
    }

    /// Preempts the `i`-th running request: frees its blocks and returns it to the queue, in front of all others if the
    /// policy orders by tickets. It keeps its tokens; their keys and values are computed again, or hit in the cache.
    pub(super) fn preempt(&mut self, i: usize) {
        self.stats.preemptions += 1;
        let key = self.running[i];
        self.requests.at_mut(key).loading = None;
        // exercise l5.preempt
        self.running.remove(i);
        self.free_seat(key);
        self.front -= 1;
        let entry = self.requests.at_mut(key);
        // Ahead of all waiting requests, also of those that were preempted earlier, because they were admitted later.
        entry.ticket = self.front;
        entry.status = Status::Waiting;
        entry.computed = 0;
        entry.preemptions += 1;
        let seq = entry.seq.take();
        if let Some(seq) = seq {
            self.free_blocks(seq);
        }
        self.enqueue(key);
        // end of exercise
        self.tell(&Happened::Preempted(key));
    }

    /// Takes back an admission of this step that had hit blocks which will not be computed. The request waits at its
    /// old rank.
    pub(super) fn unadmit(&mut self, seq: SeqId) {
        let found = self.running.iter().position(|key| self.requests.at(*key).seq == Some(seq));
        let Some(i) = found else { return self.unload(seq) };
        let key = self.running.remove(i);
        self.take_row(key);
        self.free_seat(key);
        let entry = self.requests.at_mut(key);
        entry.seq = None;
        entry.computed = 0;
        entry.status = Status::Waiting;
        self.enqueue(key);
    }

    /// Ends a request during planning; the step reports it.
    pub(super) fn end_while_planning(&mut self, key: u32, reason: FinishReason) {
        self.step.ended.push((self.requests.at(key).id, reason));
        self.remove(key, reason);
    }
}
