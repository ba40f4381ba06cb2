//! The HTTP server of Strata: OpenAI's API in front of an engine.
//!
//! ```text
//! connection -> middleware -> endpoint -> EngineRequest -> EngineHandle     (the engine's own thread)
//!   listen       request id    protocol -> request, chat      |
//!                key, limits   <- sse, json <-- responses <---+  wakes the task, never waits for it
//! ```
//!
//! Requests go from left to right, responses from right to left. Nothing here computes a token: tasks parse, submit,
//! wait and write. Clients cannot affect each other: bodies have a limit, heads a deadline, the queue is bounded,
//! unread output is joined in its outbox, and the request of a disconnected client is aborted before the next step.

pub mod adapters;
pub mod app;
pub mod background;
pub mod backpressure;
pub mod calibration;
pub mod changes;
pub mod chat;
pub mod choices;
#[cfg(target_os = "linux")]
pub mod compile_check;
pub mod dispatch;
pub mod door;
pub mod endpoints;
pub mod ensemble;
pub mod error;
mod failover;
pub mod json;
pub mod lanes;
pub mod lifecycle;
pub mod listen;
pub mod memory;
pub mod metrics;
pub mod middleware;
pub mod model;
pub mod observed;
pub mod openapi;
pub mod options;
pub mod overrides;
pub mod protocol;
pub mod recent;
pub mod refusals;
pub mod reload;
pub mod remote;
pub mod request;
pub mod response_headers;
pub mod responses;
pub mod route_trace;
pub mod routes;
pub mod routing;
pub mod shadows;
pub mod sse;
pub mod state_file;
pub mod tokenise;
pub mod verdicts;
pub mod words;

/// Target of log events about a server's start and end. The default filter shows them, unlike others of level
/// `info`.
pub const LOG: &str = "strata";

pub use adapters::Adapters;
pub use app::App;
pub use error::ApiError;
pub use lanes::{LaneDefaults, Lanes, LiveLanes, ModelLane, ServedLane};
pub use listen::Server;
pub use model::ServedModel;
pub use options::{AccessLog, Limits, ServerOptions};
