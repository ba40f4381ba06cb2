//! What every request can see.

use std::sync::Arc;

use l5_scheduler::EngineHandle;

use super::life::Life;
use super::metrics::Metrics;
use super::model::ServedModel;
use super::options::ServerOptions;
use super::tokenise::Tokenising;

/// What every request can see. One value for the life of the server.
pub struct App {
    /// Who answers.
    pub engine: EngineHandle,
    /// What is served, and under which names.
    pub model: ServedModel,
    /// What the operator decided.
    pub options: ServerOptions,
    /// Who may cut long texts into tokens.
    pub tokenising: Tokenising,
    /// What is counted.
    pub metrics: Metrics,
    /// Whether requests are taken.
    pub life: Life,
}

/// The state of axum's handlers.
pub type Shared = Arc<App>;
