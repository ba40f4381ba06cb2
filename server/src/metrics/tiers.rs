//! Metrics of the tiers behind an engine's pool. An engine without tiers has none of them.

use std::sync::{Mutex, PoisonError};

use l5_scheduler::tiers::{BreakerState, LoadedTokens, TierReport, Tiers};
use l5_scheduler::{KvFetches, RequestId};

use super::registry::{Counter, Gauge, Registry};

/// vLLM's values of `stage`.
const STAGES: [&str; 3] = ["waiting_to_start", "in_progress", "completed_waiting"];

/// Values of `state`, in the order in which a breaker goes through them.
const STATES: [&str; 3] = ["closed", "open", "half_open"];

/// Metrics of the tiers of one replica. Those of each tier are set when they are scraped.
#[derive(Debug)]
pub struct TierFamilies {
    tiers: Tiers,
    stages: [Gauge; STAGES.len()],
    /// In the order of [`Tiers::reports`]. Locked while they are set, because a counter is set by a difference.
    each: Mutex<Vec<OneTier>>,
}

/// Metrics with the label `tier`.
#[derive(Debug)]
struct OneTier {
    chunks: Gauge,
    bytes: Gauge,
    hits: Counter,
    misses: Counter,
    stored_bytes: Counter,
    loaded_bytes: Counter,
    evicted: Counter,
    refused: Counter,
    failed: Counter,
    corrupt: Counter,
    /// `None`: the tier has no breaker.
    breaker: Option<(Counter, [Gauge; STATES.len()])>,
}

impl TierFamilies {
    /// Registers all of them, at 0.
    pub fn new(registry: &Registry, model: &str, engine: &str, tiers: Tiers) -> Self {
        let stage = |stage| {
            let help = "Number of waiting requests whose KV is fetched from a tier, by stage of the fetch.";
            let labels = [("model_name", model), ("engine", engine), ("stage", stage)];
            registry.gauge("vllm:num_requests_kv_fetch_by_stage", help, &labels)
        };
        let each = tiers.reports();
        let each = each.iter().map(|tier| OneTier::new(registry, model, engine, tier)).collect();
        Self { tiers, stages: STAGES.map(stage), each: Mutex::new(each) }
    }

    /// Tokens that were loaded for a request that has not ended.
    pub fn loaded_tokens(&self, id: RequestId) -> LoadedTokens {
        self.tiers.loaded_tokens(id)
    }

    /// Sets the gauges of requests that wait for a tier.
    pub fn fetches(&self, fetches: KvFetches) {
        let KvFetches { waiting_to_start, in_progress, completed_waiting } = fetches;
        let now = [waiting_to_start, in_progress, completed_waiting];
        self.stages.iter().zip(now).for_each(|(gauge, n)| gauge.set(n as f64));
    }

    /// Number of requests that wait for a tier, as last set.
    pub fn deferred(&self) -> usize {
        self.stages.iter().map(|gauge| gauge.get() as usize).sum()
    }

    /// Sets the metrics of each tier.
    pub fn set(&self) {
        let each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        each.iter().zip(self.tiers.reports()).for_each(|(own, report)| own.set(&report));
    }
}

impl OneTier {
    fn new(registry: &Registry, model: &str, engine: &str, tier: &TierReport) -> Self {
        let labels = [("model_name", model), ("engine", engine), ("tier", tier.name)];
        let counter = |name, help| registry.counter(name, help, &labels);
        let gauge = |name, help| registry.gauge(name, help, &labels);
        let breaker = || {
            let state = |state| {
                let help = "State of a tier's breaker: 1 for the state that it is in. An open one tries the tier again at \
                            the next request behind its pause.";
                let [model, engine, tier] = labels;
                registry.gauge(
                    "strata:kv_tier_breaker_state",
                    help,
                    &[model, engine, tier, ("state", state)],
                )
            };
            let trips =
                "Number of times that a tier's breaker opened, because of failures in a row.";
            (counter("strata:kv_tier_breaker_trips_total", trips), STATES.map(state))
        };
        Self {
            chunks: gauge(
                "strata:kv_tier_chunks",
                "Number of chunks that a tier holds; 0 for redis, which does not say.",
            ),
            bytes: gauge(
                "strata:kv_tier_bytes",
                "Number of bytes that count against a tier's capacity; 0 for redis, which does not say.",
            ),
            hits: counter("strata:kv_tier_hits_total", "Number of chunks that a tier returned."),
            misses: counter(
                "strata:kv_tier_misses_total",
                "Number of chunks that were gone or damaged when a tier was to return them. Chunks that it does not have are \
                 not asked for: see vllm:external_prefix_cache_queries.",
            ),
            stored_bytes: counter(
                "strata:kv_tier_stored_bytes_total",
                "Number of bytes of chunks that a tier stored.",
            ),
            loaded_bytes: counter(
                "strata:kv_tier_loaded_bytes_total",
                "Number of bytes of chunks that a tier returned.",
            ),
            evicted: counter(
                "strata:kv_tier_evicted_chunks_total",
                "Number of chunks that a tier evicted for others.",
            ),
            refused: counter(
                "strata:kv_tier_refused_total",
                "Number of operations that a tier refused: too much was queued, or its breaker was open.",
            ),
            failed: counter(
                "strata:kv_tier_failed_total",
                "Number of operations of a tier that failed or took too long.",
            ),
            corrupt: counter(
                "strata:kv_tier_corrupt_chunks_total",
                "Number of damaged chunks that were found in a tier, and removed.",
            ),
            breaker: tier.breaker.map(|_| breaker()),
        }
    }

    fn set(&self, TierReport { stats, breaker, .. }: &TierReport) {
        self.chunks.set(stats.chunks as f64);
        self.bytes.set(stats.bytes as f64);
        for (counter, now) in [
            (&self.hits, stats.hits),
            (&self.misses, stats.misses),
            (&self.stored_bytes, stats.stored_bytes),
            (&self.loaded_bytes, stats.loaded_bytes),
            (&self.evicted, stats.evicted),
            (&self.refused, stats.refused),
            (&self.failed, stats.failed),
            (&self.corrupt, stats.corrupt),
        ] {
            raise(counter, now);
        }
        if let (Some((trips, states)), Some(state)) = (&self.breaker, breaker) {
            raise(trips, stats.opened);
            let at = match state {
                BreakerState::Closed => 0,
                BreakerState::Open { .. } => 1,
                BreakerState::HalfOpen { .. } => 2,
            };
            states
                .iter()
                .enumerate()
                .for_each(|(i, gauge)| gauge.set(f64::from(u8::from(i == at))));
        }
    }
}

/// Raises a counter to what was counted elsewhere.
fn raise(counter: &Counter, now: u64) {
    counter.inc_by(now.saturating_sub(counter.get()));
}
