//! Lowest priority value first, with preemption of running requests.

use super::priority::{by_urgency, least_urgent};
use super::{Admit, Policy, PolicyContext, Victim};
use crate::{LeaseId, Rank, RequestView};

/// Lowest priority value first, at once: a waiting request that does not fit preempts running requests with a strictly
/// higher priority value, if together they free the blocks and the seat that it needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct StrictPriority;

impl Policy for StrictPriority {
    fn name(&self) -> &'static str {
        "strict-priority"
    }

    fn order(&self, request: &RequestView<'_>, _context: &PolicyContext<'_>) -> Rank {
        by_urgency(request)
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
        lease.map(|_| Victim::Lease).or_else(|| least_urgent(running))
    }

    fn may_preempt(&self, running: &RequestView<'_>, arrival: &RequestView<'_>) -> bool {
        running.priority() > arrival.priority()
    }

    fn continues_after_preemption(&self) -> bool {
        true
    }
}
