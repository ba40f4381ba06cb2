//! Takes a planned step back.

use super::Scheduler;
use crate::{Admitted, FinishReason, RequestId, Status, StepOp};

impl Scheduler {
    /// Takes what is planned back, because it did not run: the model failed, or the step was planned only to be looked
    /// at. Blocks that it reserved return to where they came from, their hashes are withdrawn, and the requests that it
    /// admitted wait again at their old rank. Does nothing when no step is planned. Of two open steps, both are taken
    /// back.
    ///
    /// Preemptions, ended requests and ended leases are not undone, because other requests may have their blocks by
    /// now. A load that the step asked for must not be executed, since its blocks have other owners; a store is planned
    /// again in the next step.
    pub fn abandon(&mut self) {
        while self.open {
            self.abandon_newest();
        }
        self.forget_composition();
    }

    /// Takes the newest step back.
    pub(super) fn abandon_newest(&mut self) {
        let gone = self.blocks.abandon_step();
        self.frees += 1;
        let rows = std::mem::take(&mut self.step.rows);
        // exercise l5.abandon
        for row in &rows {
            let key = self.seats.owner(row.seat);
            self.requests.at_mut(key).planned = false;
            if row.admitted == Admitted::Before {
                continue;
            }
            self.running.retain(|other| *other != key);
            self.free_seat(key);
            let entry = self.requests.at_mut(key);
            if entry.seq.is_some_and(|seq| gone.contains(&seq)) {
                entry.seq = None;
                entry.computed = 0;
                entry.status = Status::Waiting;
                self.waiting.insert(entry.rank, key);
            } else {
                // Its blocks are those of an earlier admission, and what was loaded into them is still there.
                entry.status = Status::WaitingForKv;
                self.arrived.insert(entry.rank, key);
            }
        }
        // end of exercise
        if self.policy.orders_by_leases() {
            // A lease may have begun or ended while they were not in the queue.
            for row in rows.iter().filter(|row| row.admitted != Admitted::Before) {
                if let Some(key) = self.requests.find(row.id) {
                    self.rerank_request(key);
                }
            }
        }
        for op in std::mem::take(&mut self.step.ops) {
            match op {
                StepOp::Load { id, .. } => self.stop_loading(id),
                StepOp::Store { lease, .. } => self.leases.store_again(lease),
                // The step may have run in part, and have overwritten them.
                StepOp::WriteBack { .. } => {}
            }
        }
        self.step.tokens = 0;
        let preempted = std::mem::take(&mut self.step.preempted);
        self.forget_preemptions(&preempted);
        self.step.preempted = preempted;
        if self.is_ahead() {
            self.end_ahead();
        } else {
            self.open = false;
        }
        self.end_lingering();
        self.end_aborted();
    }

    /// Takes back a load that the step had asked for: the request has no blocks any more.
    fn stop_loading(&mut self, id: RequestId) {
        let Some(key) = self.requests.find(id) else { return };
        self.back_to_queue(key);
        if self.requests.at(key).aborted {
            self.remove(key, FinishReason::Aborted);
        }
    }
}
