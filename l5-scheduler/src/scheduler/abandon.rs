//! A step that never was.

use super::Scheduler;
use crate::{Admitted, FinishReason, RequestId, Status, StepOp};

impl Scheduler {
    /// The step did not run and will not: the model failed, or somebody planned it only to see it. Blocks that it took go
    /// back to where they came from, hashes are withdrawn, and whoever it admitted waits again where it waited. Does nothing
    /// when no step is planned.
    ///
    /// What was given up is not taken back, as others may have it by now: who was preempted stays so, who ended stays so, and
    /// so do leases. Fetching that the step asked for must not go on, its blocks are somebody else's; storing is asked for
    /// again in the next step.
    pub fn abandon(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let gone = self.blocks.abandon_step();
        let rows = std::mem::take(&mut self.step.rows);
        // exercise l5.abandon
        for row in &rows {
            let entry = self.requests.at_mut(row.place);
            entry.planned = false;
            if row.admitted == Admitted::Before {
                continue;
            }
            self.running.retain(|place| *place != row.place);
            if entry.seq.is_some_and(|seq| gone.contains(&seq)) {
                entry.seq = None;
                entry.computed = 0;
                entry.status = Status::Waiting;
                self.waiting.insert(entry.rank, row.place);
            } else {
                // It had its blocks before, and what was fetched into them is still there.
                entry.status = Status::WaitingForKv;
                self.arrived.insert(entry.rank, row.place);
            }
        }
        // end of exercise
        for op in std::mem::take(&mut self.step.ops) {
            match op {
                StepOp::Load { id, .. } => self.stop_loading(id),
                StepOp::Store { lease, .. } => self.leases.store_again(lease),
                StepOp::Copy(_) => {}
            }
        }
        self.step.tokens = 0;
        self.forget_preemptions();
        self.end_aborted();
    }

    /// A request whose fetching will not take place has no blocks any more.
    fn stop_loading(&mut self, id: RequestId) {
        let Some(place) = self.requests.find(id) else { return };
        self.back_to_queue(place);
        if self.requests.at(place).aborted {
            self.remove(place, FinishReason::Aborted);
        }
    }
}
