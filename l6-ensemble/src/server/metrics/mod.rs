//! What is counted and timed, under vLLM's names where it has one.

pub mod state;

use l5_scheduler::{EngineError, EngineHandle};

use super::app::App;
use super::life;
pub use state::State;

/// The most requests that [`State::running`] tells of.
pub const MOST_SHOWN: usize = 64;

/// All counters, gauges and histograms. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics {}

impl Metrics {
    /// Count what an engine does from now on, and what is asked of it. `cache_dtype` is how it keeps keys and values.
    ///
    /// # Errors
    /// [`EngineError`], if there is no engine any more.
    pub fn new(
        _engine: &EngineHandle,
        _model_name: &str,
        _cache_dtype: &str,
    ) -> Result<Self, EngineError> {
        Ok(Self {})
    }

    /// A parser looked for calls of tools in an answer, and found some or none.
    pub fn tool_parser(&self, _streaming: bool, _called: bool) {}

    /// A request was turned away before it reached the engine: vLLM's `max_num_queued_reqs` or `max_num_queued_tokens`.
    pub fn rejected(&self, _reason: &'static str) {}

    /// All of it, in Prometheus' text format.
    pub fn render(&self, app: &App) -> String {
        let load = app.engine.load();
        format!("vllm:num_requests_running {}\n", load.running)
    }

    /// The server at one glance.
    pub fn state(&self, app: &App) -> State {
        let load = app.engine.load();
        let state = match app.life.state() {
            life::State::Serving => "serving",
            life::State::Draining => "draining",
            life::State::Failed => "failed",
        };
        State {
            model: app.model.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: state.to_owned(),
            requests: state::Requests {
                running: load.running,
                waiting: load.waiting,
                ..Default::default()
            },
            ..State::default()
        }
    }
}
