//! What is counted and timed, under vLLM's names where it has one.

use super::app::App;

/// All counters, gauges and histograms.
#[derive(Debug, Default)]
pub struct Metrics {}

impl Metrics {
    /// All of it, in Prometheus' text format.
    pub fn render(&self, app: &App) -> String {
        let load = app.engine.load();
        format!("vllm:num_requests_running {}\n", load.running)
    }
}
