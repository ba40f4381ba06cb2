//! First come, first served.

use super::{Policy, PolicyContext, Victim};
use crate::{LeaseId, Rank, RequestView};

/// First come, first served: requests are admitted in the order of arrival, and the request admitted last is preempted.
/// A preempted request goes back to the front of the queue, so no request is overtaken for good.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fcfs;

impl Policy for Fcfs {
    fn name(&self) -> &'static str {
        "fcfs"
    }

    fn order(&self, request: &RequestView<'_>, _context: &PolicyContext<'_>) -> Rank {
        // exercise l5.queue
        Rank { tie: request.ticket(), ..Rank::default() }
        // end of exercise
    }

    fn victim(
        &self,
        _needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        lease: Option<LeaseId>,
        _context: &PolicyContext<'_>,
    ) -> Option<Victim> {
        if lease.is_some() {
            return Some(Victim::Lease);
        }
        // exercise l5.queue
        let last = running.count().checked_sub(1)?;
        Some(Victim::Running(last))
        // end of exercise
    }
}
