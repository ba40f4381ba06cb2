//! The queue of `lmcache`: first come, first served.

use super::{Fcfs, Policy, PolicyContext, Victim};
use crate::{LeaseId, Rank, RequestView};

/// First come, first served, as [`Fcfs`]. What differs is its [retention](crate::retention::LmCache), which stores the
/// blocks of finished requests in another memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct LmCache;

impl Policy for LmCache {
    fn name(&self) -> &'static str {
        "lmcache"
    }

    fn order(&self, request: &RequestView<'_>, context: &PolicyContext<'_>) -> Rank {
        Fcfs.order(request, context)
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
