//! The queue of `continuum`: jobs that were begun are brought to their ends.

use super::{Policy, PolicyContext, Victim};
use crate::{Job, LeaseId, Rank, RequestView};

/// Order of agents' steps: first those that were preempted, then those whose job has a lease (their blocks are held as
/// long as they wait), then all others; in each class by the arrival of the job's first step. From Li et al. 2025,
/// "Continuum" (arXiv 2511.02230). Its [retention](crate::retention::Continuum) says which jobs have leases.
///
/// Preempted is the request whose job arrived last, of those whose job will come back; if there are none, of the others.
/// (A last step gives its blocks back for good when it is done.) As long as several requests run, leases do not end for
/// one that grows, since the retention names none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Continuum;

impl Policy for Continuum {
    fn name(&self) -> &'static str {
        "continuum"
    }

    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
        by_job(request, context)
    }

    fn orders_by_leases(&self) -> bool {
        true
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
        let key = |request: &RequestView<'_>| {
            let returns = matches!(request.job(), Some(Job { last_step: false, .. }));
            (returns, request.job_arrival())
        };
        // Of equal requests the one that was admitted last.
        let last = running.enumerate().max_by_key(|(_, request)| key(request));
        last.map(|(number, _)| Victim::Running(number))
    }
}

/// Preempted, leased, other requests; each by the arrival of the job.
pub(super) fn by_job(request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
    let class = match (request.preemptions() > 0, context.has_lease(request)) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    };
    Rank { class, arrival: request.job_arrival(), tie: request.ticket(), ..Rank::default() }
}
