//! A request as the scheduler sees it, and why one can be rejected.

use std::fmt;

use l3_paged_kv::ExtraKeys;

use crate::Time;

/// Output tokens that a request has preallocated room for, wherever they are kept: a steady step allocates nothing.
/// Longer outputs grow their buffers.
pub(crate) const ANSWER_ROOM: usize = 4096;

/// Request id. The caller of [`Scheduler::add_request`](crate::Scheduler::add_request) chooses it; it must be unique
/// among unfinished requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// A request as the scheduler sees it: prompt tokens, a limit of output tokens, and what its policy decides by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Request id.
    pub id: RequestId,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Maximum number of output tokens.
    pub max_tokens: usize,
    /// End-of-sequence tokens of the model; empty to ignore them.
    pub eos: Vec<u32>,
    /// Further tokens that end the output.
    pub stop_token_ids: Vec<u32>,
    /// Time of arrival. Policies break ties of priority by it.
    pub arrival: Time,
    /// Priority: a lower value runs earlier.
    pub priority: i64,
    /// Time by which the request should be finished, for policies that use it.
    pub deadline: Option<Time>,
    /// LoRA adapter. Requests with different adapters share no blocks.
    pub adapter: Option<Adapter>,
    /// Salt of the block hashes: requests with different salts share no blocks.
    pub cache_salt: Option<String>,
    /// Whether to ignore cached blocks at admission, because every prompt token must be computed (for its log
    /// probability). The blocks that the request computes are cached as usual.
    pub skip_reading_prefix_cache: bool,
    /// Step of an agent's job that this request is.
    pub job: Option<Job>,
}

/// LoRA adapter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adapter {
    /// Name of the adapter.
    pub name: String,
    /// Path it was loaded from. Two adapters of one name and different paths are different adapters.
    pub path: String,
}

/// A step of an agent's job. Until the last step, the next one is likely to begin with this one's tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// Job id.
    pub id: String,
    /// Whether no further step will follow.
    pub last_step: bool,
}

/// Key of a job: its tenant and its id. A job id is the client's choice, so that of one tenant must not name another's
/// job. Tenants are told apart by the salt of their blocks, without which they share those, too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// Tenant: the request's `cache_salt`.
    pub tenant: Option<String>,
    /// Job id.
    pub id: String,
}

impl Request {
    /// The job that the request is a step of.
    pub fn job_key(&self) -> Option<JobKey> {
        let job = self.job.as_ref()?;
        Some(JobKey { tenant: self.cache_salt.clone(), id: job.id.clone() })
    }

    /// What decides the contents of the request's blocks beside its tokens: adapter and salt.
    pub fn extra_keys(&self) -> ExtraKeys {
        ExtraKeys {
            lora: self.adapter.as_ref().map(|a| (a.name.clone(), a.path.clone())),
            cache_salt: self.cache_salt.clone(),
        }
    }
}

/// Why the scheduler does not accept a request: it could never be completed, or its id is in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The prompt has no tokens.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// The prompt leaves no room for an output token.
    #[error(
        "the prompt has {prompt} tokens, which leaves no room for an output token in the model's maximum context \
         length of {max_model_len} tokens: shorten the prompt"
    )]
    MaxModelLen {
        /// Tokens of the prompt.
        prompt: usize,
        /// `max_model_len`: maximum number of tokens of a request, prompt and output together.
        max_model_len: usize,
    },
    /// The request needs more blocks than the pool has, even alone.
    #[error(
        "the prompt needs {needed} KV cache blocks, but the pool has {capacity}: shorten the prompt or enlarge the \
         KV cache"
    )]
    ExceedsPool {
        /// Blocks for the prompt, and for a first output token that is fed.
        needed: usize,
        /// Blocks of the pool, without the null block.
        capacity: usize,
    },
    /// An unfinished request has this id.
    #[error("request id {0} is in use: choose another, or wait until that request has finished")]
    DuplicateId(RequestId),
}

impl Rejection {
    /// Short code of the reason, for logs and traces.
    pub fn code(&self) -> &'static str {
        match self {
            Self::EmptyPrompt => "empty_prompt",
            Self::MaxModelLen { .. } => "max_model_len",
            Self::ExceedsPool { .. } => "exceeds_pool",
            Self::DuplicateId(_) => "duplicate_id",
        }
    }
}
