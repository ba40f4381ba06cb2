//! An HTTP server in front of an engine, speaking OpenAI's API.
//!
//! ```text
//! connection -> middleware -> endpoint -> EngineRequest -> EngineHandle     (the engine's own thread)
//!   listen       request id    protocol -> request, chat      |
//!                key, limits   <- sse, json <---- answers <---+  wakes the task, never waits for it
//! ```
//!
//! A request travels left to right, its answer right to left. Nothing here computes a token: tasks parse, submit, wait and
//! write. What a client does can hurt nobody else: a body has a limit, a head has a deadline, the queue is bounded, an
//! unread answer is joined in its outbox, and a vanished client's request is aborted before the next step.

pub mod answers;
pub mod app;
pub mod background;
pub mod backpressure;
pub mod chat;
pub mod endpoints;
pub mod error;
pub mod json;
pub mod life;
pub mod listen;
pub mod memory;
pub mod metrics;
pub mod middleware;
pub mod model;
pub mod openapi;
pub mod options;
pub mod protocol;
pub mod request;
pub mod routes;
pub mod sse;
pub mod tokenise;
pub mod told;

/// The target of log events about a server's start and end. The default filter shows them, unlike others of level `info`.
pub const LOG: &str = "strata";

pub use app::App;
pub use error::ApiError;
pub use listen::Server;
pub use model::ServedModel;
pub use options::{AccessLog, Limits, ServerOptions};
