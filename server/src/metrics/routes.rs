//! Routes of an ensemble, by specialist and by what decided.

use super::registry::{Counter, Registry};

/// What can decide a route.
const DECIDERS: [&str; 8] = [
    "specialist",
    "model",
    "declared_intent",
    "rule",
    "classifier",
    "rejected",
    "unrouted",
    "fallback",
];

/// A counter for each lane and each of what can decide a route.
#[derive(Debug)]
pub struct RouteCounters(Vec<[Counter; DECIDERS.len()]>);

impl RouteCounters {
    pub(super) fn new<'a>(registry: &Registry, lanes: impl Iterator<Item = &'a str>) -> Self {
        let lane = |name| {
            DECIDERS.map(|by| {
                let help = "Requests by the specialist that serves them and by what decided: the client, a declared \
                            intent, a rule, the classifier, the fallback of the ensemble (rejected: the classifier \
                            found no specialist; unrouted: nothing decided), or that of a specialist.";
                registry.counter("strata:routes_total", help, &[("model_name", name), ("by", by)])
            })
        };
        Self(lanes.map(lane).collect())
    }

    /// Counts a route to a lane.
    pub fn count(&self, lane: usize, by: &str) {
        let at = DECIDERS.iter().position(|known| *known == by);
        if let (Some(counters), Some(at)) = (self.0.get(lane), at) {
            counters[at].inc();
        }
    }
}
