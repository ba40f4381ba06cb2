//! What is looked up when somebody asks, and not counted when it happens.

use super::engine::EngineFamilies;
use super::registry::{Gauge, Registry};
use crate::server::app::App;

/// Gauges that are true when they are read.
#[derive(Debug)]
pub struct ScrapeFamilies {
    running: Gauge,
    waiting: Gauge,
    waiting_for_capacity: Gauge,
    queued_tokens: Gauge,
    owed_tokens: Gauge,
    wait: Gauge,
    replay_rate: Gauge,
    preempted: Gauge,
    connections: Gauge,
}

impl ScrapeFamilies {
    /// All of them, at 0.
    pub fn new(registry: &Registry, model: &str) -> Self {
        let own: &[(&str, &str)] = &[("model_name", model), ("engine", "0")];
        let gauge = |name, help| registry.gauge(name, help, own);
        let reason = |reason| {
            let labels = [("model_name", model), ("engine", "0"), ("reason", reason)];
            let help = "Requests that wait, by what for: here always for capacity.";
            registry.gauge("vllm:num_requests_waiting_by_reason", help, &labels)
        };
        // Nobody is deferred, since nothing is fetched from elsewhere; dashboards add the two up.
        reason("deferred");
        let build = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
        registry.gauge("strata:build_info", "The program, in labels.", &build).set(1.0);
        Self {
            running: gauge("vllm:num_requests_running", "Requests in the batch."),
            waiting: gauge("vllm:num_requests_waiting", "Requests in the queue."),
            waiting_for_capacity: reason("capacity"),
            queued_tokens: gauge(
                "strata:queued_tokens",
                "Tokens of prompts that have no answer yet.",
            ),
            owed_tokens: gauge(
                "strata:owed_tokens",
                "Tokens of answers that are still to come, at most.",
            ),
            wait: gauge(
                "strata:estimated_wait_seconds",
                "How long all the work that is there takes at the speed of the last steps; NaN before the first.",
            ),
            replay_rate: gauge(
                "strata:step_replay_rate",
                "The part of the steps that had been captured and were launched as a whole.",
            ),
            preempted: gauge(
                "strata:preempted_once_fraction",
                "The part of the requests that ended that had been preempted at least once.",
            ),
            connections: registry.gauge("strata:http_connections", "Open connections.", &[]),
        }
    }

    /// Look.
    pub fn look(&self, app: &App, counted: &EngineFamilies) {
        let load = app.engine.load();
        self.running.set(load.running as f64);
        self.waiting.set(load.waiting as f64);
        self.waiting_for_capacity.set(load.waiting as f64);
        self.queued_tokens.set(load.queued_tokens as f64);
        self.owed_tokens.set(load.owed_tokens as f64);
        self.wait.set(load.seconds.unwrap_or(f64::NAN));
        self.replay_rate.set(load.replay_rate().unwrap_or(0.0));
        let ended = counted.num_ended().max(1) as f64;
        self.preempted.set(counted.preempted_requests.get() as f64 / ended);
        self.connections.set(app.life.connections().now() as f64);
    }
}
