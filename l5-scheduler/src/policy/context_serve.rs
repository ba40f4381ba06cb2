//! The queue of `context-serve`: that of `continuum`.

use super::{Continuum, Policy, PolicyContext, Victim};
use crate::{LeaseId, Rank, RequestView};

/// Order of agents' steps, and choice of the request that is preempted, as in [`Continuum`]. What differs is its
/// [retention](crate::retention::ContextServe), which holds blocks by what a tool's command says of its duration.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContextServe;

impl Policy for ContextServe {
    fn name(&self) -> &'static str {
        "context-serve"
    }

    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
        Continuum.order(request, context)
    }

    fn orders_by_leases(&self) -> bool {
        Continuum.orders_by_leases()
    }

    fn victim(
        &self,
        needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        lease: Option<LeaseId>,
        context: &PolicyContext<'_>,
    ) -> Option<Victim> {
        Continuum.victim(needy, running, lease, context)
    }
}
