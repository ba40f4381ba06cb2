//! Shadows of an ensemble: how many there are, and why others are not.

use l6_ensemble::shadow::{NoShadow, ShadowReason};

use super::registry::{Counter, Registry};
use crate::shadows::{NotDispatched, ShadowEnd};

/// Number of the library's reasons against a shadow, and of the server's own.
const SKIPPED: usize = NoShadow::ALL.len() + NotDispatched::ALL.len();

/// Counters of shadows, by their lanes and by reasons.
#[derive(Debug)]
pub struct ShadowCounters {
    dispatched: Vec<[Counter; ShadowReason::ALL.len()]>,
    ended: Vec<[Counter; ShadowEnd::ALL.len()]>,
    skipped: [(&'static str, Counter); SKIPPED],
}

impl ShadowCounters {
    /// Registers all of them, at 0.
    pub(super) fn new(registry: &Registry, lanes: &[&str]) -> Self {
        let dispatched = |specialist: &&str| {
            ShadowReason::ALL.map(|reason| {
                let help = "Shadows that were dispatched, by the specialist that generates them and by why.";
                let labels = [("specialist", *specialist), ("reason", reason.name())];
                registry.counter("strata:shadows_total", help, &labels)
            })
        };
        let ended = |specialist: &&str| {
            ShadowEnd::ALL.map(|end| {
                let help = "Shadows that have ended, by how: completed; or aborted because the primary did not \
                            complete, the lane had no room, the shadow waited too long, clients waited, the server \
                            shuts down, or the engine failed.";
                let labels = [("specialist", *specialist), ("end", end.name())];
                registry.counter("strata:shadows_ended_total", help, &labels)
            })
        };
        let own = NotDispatched::ALL.map(NotDispatched::name);
        let mut names = NoShadow::ALL.iter().map(|why| why.name()).chain(own);
        let skipped = std::array::from_fn(|_| {
            let help = "Routed requests without a shadow, by why.";
            let name = names.next().unwrap_or_default();
            (name, registry.counter("strata:shadows_skipped_total", help, &[("reason", name)]))
        });
        let (all, ends) = (lanes.iter().map(dispatched), lanes.iter().map(ended));
        Self { dispatched: all.collect(), ended: ends.collect(), skipped }
    }

    /// Counts a shadow on a lane.
    pub fn dispatched(&self, lane: usize, reason: ShadowReason) {
        let at = ShadowReason::ALL.iter().position(|known| *known == reason);
        if let (Some(counters), Some(at)) = (self.dispatched.get(lane), at) {
            counters[at].inc();
        }
    }

    /// Counts the end of a shadow on a lane.
    pub fn ended(&self, lane: usize, end: ShadowEnd) {
        let at = ShadowEnd::ALL.iter().position(|known| *known == end);
        if let (Some(counters), Some(at)) = (self.ended.get(lane), at) {
            counters[at].inc();
        }
    }

    /// Counts a request without a shadow.
    pub fn skipped(&self, reason: &str) {
        if let Some((_, counter)) = self.skipped.iter().find(|(known, _)| *known == reason) {
            counter.inc();
        }
    }
}
