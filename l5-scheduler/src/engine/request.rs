//! Requests to an engine, and the errors with which it rejects one.

use std::sync::Arc;
use std::time::Duration;

use l4_sampler::SamplingParams;
use l4_sampler::guide::{CompiledGuide, GuideError, GuideSpec};
use l4_sampler::output::CallFormat;
use l4_sampler::philox::fresh_seed;
use l4_sampler::stop::StopRules;

use crate::{AdapterRejection, Job, Rejection, RequestAdapter};

/// A request for one choice of one prompt. All fields of [`Default`] but the prompt are neutral.
///
/// Prompt, parameters and guide can be large, so they are shared: the `n` choices of a request need the memory of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineRequest {
    /// The prompt, as token ids.
    pub prompt: Arc<[u32]>,
    /// Sampling parameters.
    pub params: Arc<SamplingParams>,
    /// Stop conditions. If they name no end tokens, those of the model apply.
    pub stop: StopRules,
    /// Guide that the output must follow.
    pub guide: Option<GuideSource>,
    /// Seed of all random numbers of the request.
    pub seed: u64,
    /// Number of the choice among those with this seed: see [`l4_sampler::DrawKey`].
    pub sample: u32,
    /// Whether the output text continues the prompt's text; if not, it is decoded as a text of its own, as in a chat.
    pub continues: bool,
    /// Priority: a lower value runs earlier, under a policy that uses priorities.
    pub priority: i64,
    /// Time after submission by which the request should be finished, for policies that use it.
    pub deadline: Option<Duration>,
    /// LoRA adapter.
    pub adapter: Option<RequestAdapter>,
    /// Time that the request waited before it was submitted, for its adapter. It counts as time in the queue: the
    /// request arrived that much earlier. The deadline does not include it.
    pub waited: Duration,
    /// Salt of the block hashes: requests with different salts share no blocks.
    pub cache_salt: Option<String>,
    /// Step of an agent's job that this request is.
    pub job: Option<Job>,
    /// Maximum number of drafts of the request in a step, where the engine speculates. `None`: that of the engine. 0: no
    /// speculation. Tokens are the same in any case.
    pub max_drafts: Option<usize>,
    /// How the output calls tools: the tool that a step of a job calls is noted for the retention
    /// ([`Note`](crate::Note)). `None`: calls of every format that is known, and blocks of shell commands.
    pub calls: Option<Arc<CallFormat>>,
}

impl EngineRequest {
    /// A request with a random seed.
    pub fn new(
        prompt: impl Into<Arc<[u32]>>,
        params: impl Into<Arc<SamplingParams>>,
        stop: StopRules,
    ) -> Self {
        let (prompt, params) = (prompt.into(), params.into());
        Self { prompt, params, stop, seed: fresh_seed(), ..Self::default() }
    }
}

/// The guide of a request: compiled when the request is submitted, or before.
#[derive(Clone, Debug, PartialEq)]
pub enum GuideSource {
    /// Compiled on the submitting thread, which may take up to a second.
    Spec(Arc<GuideSpec>),
    /// From [`EngineHandle::compile_guide`](super::EngineHandle::compile_guide) of the same engine.
    Compiled(CompiledGuide),
}

impl From<GuideSpec> for GuideSource {
    fn from(spec: GuideSpec) -> Self {
        Self::Spec(Arc::new(spec))
    }
}

/// Why a request was rejected. No part of it has run, and the engine keeps no state of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The scheduler could never complete the request.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// A parameter is invalid.
    #[error(transparent)]
    Params(#[from] l4_sampler::ParamError),
    /// The prompt has a token that the model does not have.
    #[error("prompt: token id {id} is out of range, the model has {vocab} tokens")]
    UnknownToken {
        /// Token id.
        id: u32,
        /// Number of tokens of the model.
        vocab: usize,
    },
    /// The guide cannot be followed.
    #[error(transparent)]
    Guide(#[from] GuideError),
    /// The engine does not take the adapter.
    #[error(transparent)]
    Adapter(#[from] AdapterRejection),
    /// The request needs text, and the model has no tokenizer.
    #[error("{0} need a tokenizer, and this model has none: stop at tokens, and ask for no guide")]
    NoTokenizer(&'static str),
    /// The engine relays its requests, and cannot relay this one.
    #[error("{0} are not supported for a model on another server: remove them from the request")]
    NotRelayed(&'static str),
    /// The queue is full.
    #[error("the queue is full: {waiting} requests may wait for a seat; try again later")]
    Full {
        /// Maximum number of waiting requests.
        waiting: usize,
        /// Maximum number of requests that can be submitted together to an idle engine.
        most: usize,
    },
    /// The engine drains: it finishes its requests and accepts no others.
    #[error("the engine is draining and accepts no new requests: send them to another engine")]
    Draining,
    /// The engine has ended.
    #[error(transparent)]
    Stopped(#[from] EngineError),
}

/// Why an engine has ended, or serves no requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The engine was shut down.
    #[error("the engine was shut down: start another one")]
    ShutDown,
    /// Steps failed, and all requests of the engine failed with them.
    #[error("the engine failed and has ended: {0}; start another one")]
    Failed(String),
    /// The server that the engine relays to cannot be reached. Unlike the others this may pass.
    #[error("the server that this model runs on cannot be reached: {0}; try again later")]
    Unreachable(String),
}
