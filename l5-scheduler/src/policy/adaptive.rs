//! The queue of `adaptive`.

use super::continuum::by_job;
use super::{Admit, Fcfs, Policy, PolicyContext, Victim};
use crate::{LeaseId, Rank, RequestView};

/// Share of the pool that must stay free when a request without blocks is admitted.
const SPARE: f64 = 0.02;

/// Share of the computed tokens for chats, and for agents, as long as one of them waits.
const SERVICE_FLOOR: f64 = 0.4;

/// Order of agents' steps as in [`Continuum`](super::Continuum): preempted, leased, others, each by the arrival of the
/// job. A request that was not preempted and whose job has no lease leaves 2% of the pool free when it is admitted
/// beside others, for the growth of those. A running request that grows ends a lease if the
/// [retention](crate::retention::Adaptive) names one, and preempts the request admitted last if not.
///
/// Agents that come back for ever would keep all other requests waiting for ever. So requests without a job get 0.4 of
/// the computed tokens as long as one waits, and so do agents: the request that is owed its turn goes first, and leases
/// end for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive;

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
        let rank = by_job(request, context);
        if context.is_promoted(request) { Rank { class: -1, ..rank } } else { rank }
    }

    fn service_floor(&self) -> f64 {
        SERVICE_FLOOR
    }

    fn orders_by_leases(&self) -> bool {
        true
    }

    fn admit(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Admit {
        let config = context.config;
        if !config.scheduler_reserve_full_isl {
            return Admit::IfBlocksFit(0);
        }
        let resident = request.preemptions() > 0 || context.has_lease(request);
        let first = context.num_running == 0 || context.is_promoted(request);
        let spare = match resident || first {
            true => 0,
            false => (SPARE * config.capacity() as f64).ceil() as usize * config.block_size,
        };
        Admit::IfBlocksFit(request.num_tokens() + spare)
    }

    fn victim(
        &self,
        needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        lease: Option<LeaseId>,
        context: &PolicyContext<'_>,
    ) -> Option<Victim> {
        Fcfs.victim(needy, running, lease, context)
    }
}
