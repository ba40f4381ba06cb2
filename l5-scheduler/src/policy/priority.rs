//! Lowest priority value first.

use super::{Policy, PolicyContext, Victim};
use crate::{LeaseId, Rank, RequestView};

/// Lowest priority value first, then earliest arrival; the request with the highest priority value is preempted. As in
/// vLLM, a waiting request never takes blocks from a running one, whatever its priority;
/// [`StrictPriority`](super::StrictPriority) does that.
///
/// As in vLLM, of running requests that are equal in both the one that was admitted first is preempted. Two such
/// requests can preempt each other for ever if they are admitted before all of their tokens fit, that is, with
/// `scheduler_reserve_full_isl` off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Priority;

impl Policy for Priority {
    fn name(&self) -> &'static str {
        "priority"
    }

    fn order(&self, request: &RequestView<'_>, _context: &PolicyContext<'_>) -> Rank {
        by_urgency(request)
    }

    fn victim(
        &self,
        _needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        lease: Option<LeaseId>,
        _context: &PolicyContext<'_>,
    ) -> Option<Victim> {
        lease.map(|_| Victim::Lease).or_else(|| least_urgent(running))
    }
}

/// Rank by priority, arrival and request id.
pub(super) fn by_urgency(request: &RequestView<'_>) -> Rank {
    // exercise l5.queue
    let (class, arrival) = (request.priority(), request.arrival());
    Rank { class, arrival, tie: request.id().0 as i64, ..Rank::default() }
    // end of exercise
}

/// The running request with the highest (priority, arrival); among equals, the one that was admitted first.
pub(super) fn least_urgent(running: &mut dyn Iterator<Item = RequestView<'_>>) -> Option<Victim> {
    // exercise l5.queue
    let mut worst = None;
    for (number, request) in running.enumerate() {
        let key = (request.priority(), request.arrival());
        if worst.is_none_or(|(_, least)| key > least) {
            worst = Some((number, key));
        }
    }
    worst.map(|(number, _)| Victim::Running(number))
    // end of exercise
}
