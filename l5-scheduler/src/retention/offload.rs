//! `lmcache`: blocks of finished requests are copied to another memory. Any policy does so where there is one.

use super::Retain;
use crate::{LeaseId, Leaving, Note, PolicyContext, PolicyEvent, RequestView, Retention, Time};

/// Copies the blocks of each finished request to another memory, from which later requests load them, as LMCache does.
/// Where the executor cannot store blocks, they are free.
#[derive(Clone, Copy, Debug, Default)]
pub struct LmCache;

impl Retention for LmCache {
    fn retain(
        &mut self,
        _finished: &RequestView<'_>,
        _note: Option<&Note>,
        _context: &PolicyContext<'_>,
    ) -> Retain {
        Retain::Offload
    }
}

/// Copies to another memory what another retention would free, and what its leases held when they end.
pub(crate) struct OffloadFreed(pub(crate) Box<dyn Retention>);

impl Retention for OffloadFreed {
    fn retain(
        &mut self,
        finished: &RequestView<'_>,
        note: Option<&Note>,
        context: &PolicyContext<'_>,
    ) -> Retain {
        match self.0.retain(finished, note, context) {
            Retain::Free => Retain::Offload,
            other => other,
        }
    }

    fn lease_for(
        &self,
        needy: &RequestView<'_>,
        named: &[LeaseId],
        context: &PolicyContext<'_>,
    ) -> Option<LeaseId> {
        self.0.lease_for(needy, named, context)
    }

    fn displaced(&self, context: &PolicyContext<'_>) -> Option<LeaseId> {
        self.0.displaced(context)
    }

    fn write_back(&self, leaving: &Leaving<'_>, context: &PolicyContext<'_>) -> Option<Time> {
        let own = self.0.write_back(leaving, context);
        own.or_else(|| matches!(leaving, Leaving::Lease(_)).then_some(context.now))
    }

    fn observe(&mut self, event: &PolicyEvent<'_>, context: &PolicyContext<'_>) {
        self.0.observe(event, context);
    }
}
