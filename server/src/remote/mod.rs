//! Replicas on other machines: servers behind the same trait as the engines of this process.
//!
//! ```text
//! lane --EngineRequest--> RemoteReplica --queue of the relay--> RemoteRelay --POST /v1/completions--> the server
//!                              ^ up or down                         ^ a task for each request            |
//!                           health task <--------- GET /health ---- | ----------------------------------+
//!                                                          token ids of each event
//! ```
//!
//! Prompts go out as token ids, and token ids come back, so text, stop strings and end tokens are this server's own, as
//! of an engine here. How a request is written and its response read is a `wire` format: `openai` with the token ids
//! of vLLM and strata, or `llama_server`.
//!
//! A relay sends each request once. If that fails, the end of its response says whether the request may move
//! ([`RelayFailure`](l5_scheduler::RelayFailure)), and the lane gives it to another replica (`server/src/failover.rs`).

mod cooldown;
mod error;
mod events;
mod health;
mod llama_server;
mod lost_tokens;
mod openai;
mod peer;
mod relay;
mod replica;
mod runtime;
mod wire;

pub use error::{RemoteError, StartRemoteError};
pub use peer::UpGauge;
pub use replica::{RemoteLimits, RemoteReplica};
pub use runtime::RemoteRuntime;
