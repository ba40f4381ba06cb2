//! Routes of an ensemble, by specialist and by what decided.

use super::registry::{Counter, Registry};
use super::shadows::ShadowCounters;

/// What can decide a route.
const DECIDERS: [&str; 9] = [
    "specialist",
    "model",
    "declared_intent",
    "rule",
    "classifier",
    "rejected",
    "unrouted",
    "fallback",
    "spill",
];

/// A counter for each lane and each of what can decide a route; and the counters of shadows.
#[derive(Debug)]
pub struct RouteCounters {
    routes: Vec<[Counter; DECIDERS.len()]>,
    shadows: ShadowCounters,
}

impl RouteCounters {
    pub(super) fn new<'a>(registry: &Registry, lanes: impl Iterator<Item = &'a str>) -> Self {
        let lanes: Vec<&str> = lanes.collect();
        let lane = |name: &&str| {
            DECIDERS.map(|by| {
                let help = "Routed requests, admitted or refused, by the specialist to which they went and by what \
                            decided: the client, a declared intent, a rule, the classifier, the fallback of the \
                            ensemble (rejected: the classifier found no specialist; unrouted: nothing decided), or \
                            that of a specialist; or a spill to the second choice.";
                registry.counter("strata:routes_total", help, &[("model_name", *name), ("by", by)])
            })
        };
        let routes = lanes.iter().map(lane).collect();
        Self { routes, shadows: ShadowCounters::new(registry, &lanes) }
    }

    /// Number of routes to a lane, by what decided.
    pub fn of(&self, lane: usize) -> impl Iterator<Item = (&'static str, u64)> {
        let counters = self.routes.get(lane).into_iter().flatten();
        DECIDERS.into_iter().zip(counters.map(Counter::get))
    }

    /// Counts a route to a lane.
    pub fn count(&self, lane: usize, by: &str) {
        let at = DECIDERS.iter().position(|known| *known == by);
        if let (Some(counters), Some(at)) = (self.routes.get(lane), at) {
            counters[at].inc();
        }
    }

    /// Counters of shadows.
    pub fn shadows(&self) -> &ShadowCounters {
        &self.shadows
    }
}
