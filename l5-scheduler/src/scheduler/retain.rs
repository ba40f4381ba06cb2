//! The end of a request, and what becomes of its blocks.

use super::Scheduler;
use crate::{FinishReason, LeaseId, Retain, Time};

impl Scheduler {
    /// A running request has ended with the step that was applied.
    pub(super) fn finish(&mut self, place: u32, reason: FinishReason) {
        let retain = self.policy.retain(&self.requests.at(place).view(), self.step.now);
        match retain {
            Retain::Free => {}
            Retain::PinUntil(_) | Retain::Offload => todo!(),
        }
        self.remove(place, reason);
    }

    /// Leases whose time has come end.
    pub(super) fn end_leases(&mut self, now: Time) {
        if self.leases.is_empty() {
            return;
        }
        let _ = now;
        todo!()
    }

    /// A lease ends: its blocks are free, and found by what they hold.
    pub(super) fn end_lease(&mut self, lease: LeaseId) {
        let _ = lease;
        todo!()
    }

    /// The blocks of a lease have been written elsewhere ([`StepOp::Store`](crate::StepOp::Store)): they are free now. Returns whether there was
    /// such a lease.
    pub fn kv_stored(&mut self, lease: LeaseId) -> bool {
        let _ = lease;
        todo!()
    }
}
