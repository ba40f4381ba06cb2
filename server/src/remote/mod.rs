//! Replicas on other machines: OpenAI-compatible servers behind the same trait as the engines of this process.
//!
//! ```text
//! lane --EngineRequest--> RemoteReplica --queue of the relay--> RemoteRelay --POST /v1/completions--> the server
//!                              ^ up or down                         ^ a task for each request            |
//!                           health task <--------- GET /health ---- | ----------------------------------+
//!                                                          token ids of each event
//! ```
//!
//! Prompts go out as token ids, and token ids come back (`return_token_ids`, which vLLM and strata have), so text, stop
//! strings and end tokens are this server's own, as of an engine here. A request is sent again once if it failed before
//! the first byte of its response, and never after that: its client has seen a part already.

mod body;
mod error;
mod events;
mod health;
mod peer;
mod relay;
mod replica;
mod runtime;

pub use error::{RemoteError, StartRemoteError};
pub use peer::UpGauge;
pub use replica::{RemoteLimits, RemoteReplica};
pub use runtime::RemoteRuntime;
