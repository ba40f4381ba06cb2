//! Layer 4 of Strata: sampling, from logits to tokens and output events.
//!
//! The model is the same for all requests; what is done with its logits is each request's own. So this is the only part
//! of a step in which requests differ, and the only one with state of a request.
//!
//! * [`SamplingParams`]: parameters of a request; [`History`]: counts of its prompt and output tokens;
//! * [`processors`]: each stage of sampling as a function of its own, as a reference;
//! * [`Sampler`]: all stages over a packed `[S, vocab]` batch, without a sort, rows in parallel;
//! * [`Distribution`]: what the stages leave of a row, and sampling from it with a random number that depends on the
//!   request only ([`philox`]);
//! * [`logprobs`]: log probabilities;
//! * [`stop`]: stop conditions, and which text is certain;
//! * [`guide`]: guided decoding: outputs that must follow a schema, a regular expression or a grammar;
//! * [`output`]: the state of one choice; output events: reasoning, text and tool calls;
//! * [`verify`]: speculative decoding: how many tokens of a draft are accepted;
//! * [`draft`]: speculative decoding: drafts by lookup, without a model.

#![warn(missing_docs)]

mod distribution;
pub mod draft;
mod error;
pub mod guide;
mod history;
pub mod logprobs;
mod mask;
pub mod output;
mod params;
pub mod philox;
pub mod processors;
mod sampler;
pub mod stop;
pub mod verify;

pub use distribution::Distribution;
pub use error::{Error, ParamError, Result, RowError};
pub use history::History;
pub use logprobs::{LogprobsOf, LogprobsRequest, TokenLogprobs};
pub use mask::TokenMask;
pub use output::{FinishReason, OutputEvent, OutputParser};
pub use params::SamplingParams;
pub use philox::{DrawKey, Purpose};
pub use sampler::{Logits, Row, Sampled, Sampler};
pub use verify::{Draft, Proposal, Verified};
