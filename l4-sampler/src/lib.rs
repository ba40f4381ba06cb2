//! Floor 4 of Strata: from logits to a token.
//!
//! The model is the same for everyone; what is done with its logits is each request's own. So this is the only place in
//! a step where requests differ, and the only one that remembers something of them.
//!
//! * [`SamplingParams`]: what one request asks for; [`History`]: which tokens it has seen, counted;
//! * [`processors`]: each change to a row of logits on its own, to read;
//! * [`Sampler`]: all of them over a packed `[S, vocab]` batch, without a sort, rows in parallel;
//! * [`Distribution`]: what is left of a row, and a draw from it by a random number that only the request decides
//!   ([`philox`]);
//! * [`logprobs`]: what the model thought of it;
//! * [`stop`]: when an answer ends, and what of its text may be shown already;
//! * [`guide`]: answers that must follow a schema, a regular expression or a grammar;
//! * [`verify`]: how many of a draft's tokens the model would have drawn itself;
//! * [`mod@generate`]: all of it for one prompt and one or more answers.

#![warn(missing_docs)]

mod distribution;
mod error;
pub mod generate;
pub mod guide;
mod history;
pub mod logprobs;
mod mask;
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
pub use params::SamplingParams;
pub use philox::{DrawKey, Purpose};
pub use sampler::{Logits, Row, Sampled, Sampler};
pub use verify::{Draft, Proposal, Verdict};
