//! What is counted and timed, under vLLM's names where it has one.

use super::app::App;

/// All counters, gauges and histograms.
#[derive(Debug, Default)]
pub struct Metrics {}

impl Metrics {
    /// A parser looked for calls of tools in an answer, and found some or none.
    pub fn tool_parser(&self, _streaming: bool, _called: bool) {}

    /// A request was turned away before it reached the engine: vLLM's `max_num_queued_reqs` or `max_num_queued_tokens`.
    pub fn rejected(&self, _reason: &'static str) {}

    /// All of it, in Prometheus' text format.
    pub fn render(&self, app: &App) -> String {
        let load = app.engine.load();
        format!("vllm:num_requests_running {}\n", load.running)
    }
}
