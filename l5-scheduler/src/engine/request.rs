//! What is asked of an engine, and why it may refuse.

use std::sync::Arc;
use std::time::Duration;

use l4_sampler::SamplingParams;
use l4_sampler::guide::{CompiledGuide, GuideError, GuideSpec};
use l4_sampler::philox::fresh_seed;
use l4_sampler::stop::StopRules;

use crate::{Adapter, Job, Rejection};

/// One answer to one prompt. The fields of [`Default`] ask for nothing special: a request is its prompt and what differs.
///
/// Whatever a client can make long is shared, so that the `n` samples of a request cost the memory of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineRequest {
    /// The prompt, as token ids.
    pub prompt: Arc<[u32]>,
    /// How tokens are chosen.
    pub params: Arc<SamplingParams>,
    /// Where the answer ends. Without end tokens of its own it has the model's.
    pub stop: StopRules,
    /// What the answer must look like.
    pub guide: Option<GuideSource>,
    /// What all random numbers follow from.
    pub seed: u64,
    /// Which of the answers from this seed: see [`l4_sampler::DrawKey`].
    pub sample: u32,
    /// Whether the answer's text continues the prompt's, or stands for itself as in a chat.
    pub continues: bool,
    /// How urgent it is: a lower number goes first, if the policy asks for priorities.
    pub priority: i64,
    /// When it should be done, from its submission on; policies may look at it.
    pub deadline: Option<Duration>,
    /// The adapter (LoRA) it runs with.
    pub adapter: Option<Adapter>,
    /// Keeps its blocks apart from those of requests with another salt.
    pub cache_salt: Option<String>,
    /// The longer job that it is a step of.
    pub job: Option<Job>,
}

impl EngineRequest {
    /// A request with a seed that nobody can guess.
    pub fn new(
        prompt: impl Into<Arc<[u32]>>,
        params: impl Into<Arc<SamplingParams>>,
        stop: StopRules,
    ) -> Self {
        let (prompt, params) = (prompt.into(), params.into());
        Self { prompt, params, stop, seed: fresh_seed(), ..Self::default() }
    }
}

/// A guide that a request brings: to be compiled when the request is submitted, or compiled before.
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

/// Why a request was not taken. Nothing of it was run, and nothing is left of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// No scheduling could ever complete it.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// Something that cannot be meant.
    #[error(transparent)]
    Params(#[from] l4_sampler::ParamError),
    /// A token of the prompt that the model does not know.
    #[error("prompt: there is no token {id}, the model has {vocab}")]
    UnknownToken {
        /// The token.
        id: u32,
        /// Tokens of the model.
        vocab: usize,
    },
    /// A guide that cannot be followed.
    #[error(transparent)]
    Guide(#[from] GuideError),
    /// Text is needed, and there are only tokens.
    #[error("{0} need a tokenizer, and this model has none: stop at tokens, and ask for no guide")]
    NoTokenizer(&'static str),
    /// The queue is full.
    #[error("the queue is full: {waiting} requests may wait for a seat; try again later")]
    Full {
        /// Maximum number of waiting requests.
        waiting: usize,
        /// Maximum number of requests that could be taken together, with nothing else there.
        most: usize,
    },
    /// The engine finishes what it has.
    #[error("the engine is draining and takes no new requests: ask another one")]
    Draining,
    /// There is no engine any more.
    #[error(transparent)]
    Stopped(#[from] EngineError),
}

/// Why there is no engine any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Somebody ended it.
    #[error("the engine was shut down: start another one")]
    ShutDown,
    /// A step failed, and with it everything that was under way.
    #[error("the engine failed and has ended: {0}; start another one")]
    Failed(String),
}
