//! What every request can see.

use std::sync::Arc;

use l5_scheduler::EngineHandle;

use super::background::Background;
use super::backpressure::Compiling;
use super::json::shape::ParsedBodies;
use super::life::Life;
use super::metrics::Metrics;
use super::model::ServedModel;
use super::options::ServerOptions;
use super::tokenise::LongestToken;

/// What every request can see. One value for the life of the server.
pub struct App {
    /// Who answers.
    pub engine: EngineHandle,
    /// What is served, and under which names.
    pub model: ServedModel,
    /// What the operator decided.
    pub options: ServerOptions,
    /// Bytes of the longest token.
    pub longest_token: LongestToken,
    /// Seats for slow work.
    pub background: Background,
    /// Seats for guides that are being compiled.
    pub compiling: Compiling,
    /// Memory for parsed bodies.
    pub parsed: ParsedBodies,
    /// What is counted.
    pub metrics: Metrics,
    /// Whether requests are taken.
    pub life: Life,
}

/// The state of axum's handlers.
pub type Shared = Arc<App>;
