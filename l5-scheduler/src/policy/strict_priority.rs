//! Lowest priority value first, then earliest deadline, with preemption of running requests.

use super::priority::by_urgency;
use super::{Admit, Policy, PolicyContext, Victim};
use crate::{LeaseId, Rank, RequestView, Time};

/// Lowest priority value first, at once: a waiting request that does not fit preempts running requests with a strictly
/// higher priority value, if together they free the blocks and the seat that it needs.
///
/// Requests of one priority are in the order of their deadlines, and those without a deadline come after those with
/// one; equal deadlines are in the order of arrival. (Earliest deadline first, Jackson 1955: of requests that have all
/// arrived, this order meets all deadlines on one machine if any order does.) It decides which request is admitted
/// next, and takes nothing from a running request of the same priority.
///
/// Under overload earliest deadline first can miss every deadline: it serves the request that is about to be late
/// before those that could still be in time. Admission must refuse what cannot be in time. It also starves requests
/// without a deadline while those with one keep all seats taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct StrictPriority;

impl Policy for StrictPriority {
    fn name(&self) -> &'static str {
        "strict-priority"
    }

    fn order(&self, request: &RequestView<'_>, _context: &PolicyContext<'_>) -> Rank {
        Rank { deadline: deadline(request), ..by_urgency(request) }
    }

    /// Blocks for all of its tokens and one more: a request that is admitted at the cost of others must not stall after
    /// one step.
    fn admit(&self, request: &RequestView<'_>, _context: &PolicyContext<'_>) -> Admit {
        Admit::IfBlocksFit(request.num_tokens() + 1)
    }

    fn victim(
        &self,
        _needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        lease: Option<LeaseId>,
        _context: &PolicyContext<'_>,
    ) -> Option<Victim> {
        lease.map(|_| Victim::Lease).or_else(|| last_in_order(running))
    }

    fn may_preempt(&self, running: &RequestView<'_>, arrival: &RequestView<'_>) -> bool {
        running.priority() > arrival.priority()
    }

    fn continues_after_preemption(&self) -> bool {
        true
    }
}

/// Deadline of a request, or infinity.
fn deadline(request: &RequestView<'_>) -> Time {
    request.deadline().unwrap_or(Time(f64::INFINITY))
}

/// The running request with the highest (priority, deadline, arrival); among equals, the one that was admitted first.
fn last_in_order(running: &mut dyn Iterator<Item = RequestView<'_>>) -> Option<Victim> {
    let mut last = None;
    for (number, request) in running.enumerate() {
        let key = (request.priority(), deadline(&request), request.arrival());
        if last.is_none_or(|(_, greatest)| key > greatest) {
            last = Some((number, key));
        }
    }
    last.map(|(number, _)| Victim::Running(number))
}
