//! The most urgent first.

use super::{Policy, Victim, first_lease};
use crate::lease::Leases;
use crate::{Rank, RequestView};

/// The most urgent first, among equals whoever came first; the least urgent gives way. As in vLLM, a waiting request
/// never takes blocks from one that runs, however urgent it is: for that there is
/// [`StrictPriority`](super::StrictPriority).
#[derive(Clone, Copy, Debug, Default)]
pub struct Priority;

impl Policy for Priority {
    fn name(&self) -> &'static str {
        "priority"
    }

    fn order(&self, request: &RequestView<'_>) -> Rank {
        by_urgency(request)
    }

    fn victim(
        &self,
        _needy: &RequestView<'_>,
        running: &mut dyn Iterator<Item = RequestView<'_>>,
        leases: &Leases,
    ) -> Option<Victim> {
        first_lease(leases).or_else(|| least_urgent(running))
    }
}

/// By priority, arrival and name.
pub(super) fn by_urgency(request: &RequestView<'_>) -> Rank {
    // exercise l5.queue
    Rank { class: request.priority(), arrival: request.arrival(), tie: request.id().0 as i64 }
    // end of exercise
}

/// The running request of the highest (priority, arrival); of several that share it, the one that was admitted first.
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
