//! Gauges that are set when they are scraped, from a replica's load.

use l5_scheduler::Load;

use super::engine::EngineFamilies;
use super::registry::{Gauge, Registry};

/// Gauges of one replica, set at each scrape.
#[derive(Debug)]
pub struct ScrapeFamilies {
    running: Gauge,
    waiting: Gauge,
    waiting_for_capacity: Gauge,
    deferred: Gauge,
    queued_tokens: Gauge,
    owed_tokens: Gauge,
    wait: Gauge,
    prefill_seconds_per_token: Gauge,
    decode_step_seconds: Gauge,
    replay_rate: Gauge,
    preempted: Gauge,
}

impl ScrapeFamilies {
    /// Registers all of them, at 0.
    pub fn new(registry: &Registry, model: &str, engine: &str) -> Self {
        let own: &[(&str, &str)] = &[("model_name", model), ("engine", engine)];
        let gauge = |name, help| registry.gauge(name, help, own);
        let reason = |reason| {
            let labels = [("model_name", model), ("engine", engine), ("reason", reason)];
            let help = "Number of waiting requests, by reason: deferred are those whose KV is fetched from a tier.";
            registry.gauge("vllm:num_requests_waiting_by_reason", help, &labels)
        };
        Self {
            running: gauge("vllm:num_requests_running", "Number of running requests."),
            waiting: gauge("vllm:num_requests_waiting", "Number of waiting requests."),
            waiting_for_capacity: reason("capacity"),
            deferred: reason("deferred"),
            queued_tokens: gauge(
                "strata:queued_tokens",
                "Number of prompt tokens of requests without an output token yet.",
            ),
            owed_tokens: gauge(
                "strata:owed_tokens",
                "Maximum number of tokens still to be generated.",
            ),
            wait: gauge(
                "strata:estimated_wait_seconds",
                "Estimated time to complete all current work at the speed of the last steps, in seconds; NaN before \
                 the first step.",
            ),
            prefill_seconds_per_token: gauge(
                "strata:prefill_seconds_per_token",
                "Measured time that each prompt token adds to a step, in seconds; NaN before the first step.",
            ),
            decode_step_seconds: gauge(
                "strata:decode_step_seconds",
                "Measured time of a decode step of all running requests, in seconds; NaN before the first step.",
            ),
            replay_rate: gauge(
                "strata:step_replay_rate",
                "Fraction of steps that replayed a captured CUDA graph.",
            ),
            preempted: gauge(
                "strata:preempted_once_fraction",
                "Fraction of finished requests that were preempted at least once.",
            ),
        }
    }

    /// Sets the gauges of one replica. `deferred` requests wait for keys and values.
    pub fn set(&self, load: &Load, deferred: usize, counted: &EngineFamilies) {
        // The two are of different moments.
        let deferred = deferred.min(load.waiting);
        self.running.set(load.running as f64);
        self.waiting.set(load.waiting as f64);
        self.waiting_for_capacity.set((load.waiting - deferred) as f64);
        self.deferred.set(deferred as f64);
        self.queued_tokens.set(load.queued_tokens as f64);
        self.owed_tokens.set(load.pending_output_tokens as f64);
        self.wait.set(load.seconds.unwrap_or(f64::NAN));
        self.prefill_seconds_per_token.set(load.prefill_seconds_per_token.unwrap_or(f64::NAN));
        let decode_step_seconds = load.decode_step_seconds(load.running.max(1));
        self.decode_step_seconds.set(decode_step_seconds.unwrap_or(f64::NAN));
        self.replay_rate.set(load.replay_rate().unwrap_or(0.0));
        let ended = counted.num_ended().max(1) as f64;
        self.preempted.set(counted.preempted_requests.get() as f64 / ended);
    }
}
