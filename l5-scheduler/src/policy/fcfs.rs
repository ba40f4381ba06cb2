//! First come, first served.

use super::{Policy, Victim, first_lease};
use crate::lease::Leases;
use crate::{Rank, RequestView};

/// First come, first served: in the order of arrival, and whoever was admitted last gives way. A preempted request comes
/// back before everybody else who waits, so nobody is overtaken for good.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fcfs;

impl Policy for Fcfs {
    fn name(&self) -> &'static str {
        "fcfs"
    }

    fn order(&self, request: &RequestView<'_>) -> Rank {
        Rank { tie: request.ticket(), ..Rank::default() }
    }

    fn victim(
        &self,
        _needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        leases: &Leases,
    ) -> Option<Victim> {
        first_lease(leases).or_else(|| Some(Victim::Running(running.count().checked_sub(1)?)))
    }
}
