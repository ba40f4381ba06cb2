//! The most urgent first, also where that means to interrupt somebody.

use super::priority::{by_urgency, least_urgent};
use super::{Admit, Policy, Victim, first_lease};
use crate::lease::Leases;
use crate::{Rank, RequestView, SchedulerConfig};

/// The most urgent first, and at once: a waiting request that does not fit takes the blocks and the seat of running
/// requests that are strictly less urgent, if together they have what it needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct StrictPriority;

impl Policy for StrictPriority {
    fn name(&self) -> &'static str {
        "strict-priority"
    }

    fn order(&self, request: &RequestView<'_>) -> Rank {
        by_urgency(request)
    }

    /// Room for its tokens and one more, so that who is let in at others' cost does not stand still after one step.
    fn admit(&self, request: &RequestView<'_>, _config: &SchedulerConfig) -> Admit {
        Admit::WhenFits(request.num_tokens() + 1)
    }

    fn victim(
        &self,
        _needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        leases: &Leases,
    ) -> Option<Victim> {
        first_lease(leases).or_else(|| least_urgent(running))
    }

    fn yields(&self, running: &RequestView<'_>, arrival: &RequestView<'_>) -> bool {
        running.priority() > arrival.priority()
    }

    fn goes_on_after_preemption(&self) -> bool {
        true
    }
}
