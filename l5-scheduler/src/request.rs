//! What is asked of the scheduler, and how it ends.

use std::fmt;

use l3_paged_kv::ExtraKeys;

use crate::Time;

/// Room for so many tokens of an answer is made before it begins, wherever it is kept: a steady step allocates nothing. A
/// longer answer makes more as it grows.
pub(crate) const ANSWER_ROOM: usize = 4096;

/// A request's name. Whoever adds requests chooses them, each once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// One request, as far as a scheduler must know it: tokens in, a bound on the tokens out, and what decides its turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Its name.
    pub id: RequestId,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// The most tokens of its answer.
    pub max_tokens: usize,
    /// The model's own end tokens; empty for a request that ignores them.
    pub eos: Vec<u32>,
    /// Other tokens that end it.
    pub stop_token_ids: Vec<u32>,
    /// When it came. Ties among equals in priority are broken by it.
    pub arrival: Time,
    /// How urgent it is: a lower number goes first.
    pub priority: i64,
    /// When it should be done; policies may look at it.
    pub deadline: Option<Time>,
    /// The adapter (LoRA) it runs with: its blocks are nobody else's.
    pub adapter: Option<Adapter>,
    /// Keeps its blocks apart from those of requests with another salt.
    pub cache_salt: Option<String>,
    /// Do not begin with cached blocks, because something is wanted of every prompt token (its log probability). What it
    /// computes can be found by others all the same.
    pub skip_reading_prefix_cache: bool,
    /// The longer job that it is a step of.
    pub job: Option<Job>,
}

/// A LoRA adapter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// Where it is from: two of one name are two adapters.
    pub path: String,
}

/// A step of an agent's job: what it leaves in the cache is likely to be asked for again, until the last step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// The job.
    pub id: String,
    /// Whether no more steps will come.
    pub last_step: bool,
}

impl Request {
    /// What beside its tokens decides what its blocks hold.
    pub fn extra_keys(&self) -> ExtraKeys {
        ExtraKeys {
            lora: self.adapter.as_ref().map(|a| (a.name.clone(), a.path.clone())),
            cache_salt: self.cache_salt.clone(),
        }
    }
}

/// Why a request is not taken: no scheduling could ever complete it, or its name is taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Nothing to compute.
    #[error("the prompt is empty: there is nothing to continue")]
    EmptyPrompt,
    /// No room for even one token of an answer.
    #[error(
        "the prompt has {prompt} tokens, and prompt and answer together have at most {max_model_len}: shorten the prompt"
    )]
    MaxModelLen {
        /// Tokens of the prompt.
        prompt: usize,
        /// The longest request.
        max_model_len: usize,
    },
    /// More blocks than there are, with nobody else there.
    #[error(
        "the prompt needs {needed} KV blocks and the whole pool has {capacity}: shorten the prompt, or give the pool more memory"
    )]
    ExceedsPool {
        /// Blocks of the prompt and one token more.
        needed: usize,
        /// Blocks that can be handed out.
        capacity: usize,
    },
    /// The name is taken.
    #[error("{0} is there already: give every request a name of its own")]
    DuplicateId(RequestId),
}

impl Rejection {
    /// A short name, for logs and traces.
    pub fn code(&self) -> &'static str {
        match self {
            Self::EmptyPrompt => "empty_prompt",
            Self::MaxModelLen { .. } => "max_model_len",
            Self::ExceedsPool { .. } => "exceeds_pool",
            Self::DuplicateId(_) => "duplicate_id",
        }
    }
}

/// How a request that was taken ended. Every one ends exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// At an end token, a stop string, or because its guide allows no more.
    Stop,
    /// At its `max_tokens`, or the model's longest sequence.
    Length,
    /// Its next token does not fit the pool, with nobody else there.
    KvExhausted,
    /// Whoever asked does not want it any more.
    Aborted,
    /// The model could not go on with it.
    Failed,
}

impl FinishReason {
    /// As in traces, and in OpenAI's API where that has a word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::KvExhausted => "kv_exhausted",
            Self::Aborted => "abort",
            Self::Failed => "error",
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
