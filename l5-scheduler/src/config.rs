//! Configuration of a scheduler.

use crate::PolicyKind;
use crate::composer::Compose;
use crate::retention::Ttl;

/// Maximum of `max_num_seqs`. Memory is reserved for each seat.
const MAX_SEATS: usize = 1 << 24;

/// Maximum of `num_speculative_tokens`. Memory is reserved for the drafts of each request.
const MAX_DRAFTS: usize = 1024;

/// Configuration of a [`Scheduler`](crate::Scheduler). Names and meanings are those of vLLM's `SchedulerConfig` and
/// `CacheConfig`, where vLLM has them.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerConfig {
    /// Scheduling policy.
    pub policy: PolicyKind,
    /// With [`PolicyKind::Continuum`] and [`PolicyKind::ContextServe`]: how long leases hold blocks.
    pub continuum_ttl: Ttl,
    /// Whether a request that names no job and begins with all tokens of an earlier one is the next step of that one's
    /// job. Each request is then the step of a job.
    pub infer_jobs: bool,
    /// Tokens of a block, a power of two.
    pub block_size: usize,
    /// Blocks of the pool, including the null block.
    pub num_gpu_blocks: usize,
    /// Maximum number of running requests (seats).
    pub max_num_seqs: usize,
    /// Number of running requests from which no further one is admitted. `None`: `max_num_seqs`.
    pub max_num_active_seqs: Option<usize>,
    /// Maximum number of tokens of a step, all requests together.
    pub max_num_batched_tokens: usize,
    /// Maximum number of tokens of one request in a step, unless the request is alone. 0: no limit but the step's.
    pub long_prefill_token_threshold: usize,
    /// Whether that threshold rises to `max_num_batched_tokens` / number of unfinished requests, where this is more.
    pub long_prefill_token_threshold_adaptive: bool,
    /// Whether a prompt may be computed in chunks over several steps. If not, it waits for a step that takes all of it.
    pub enable_chunked_prefill: bool,
    /// Whether full blocks are shared between requests with the same prefix.
    pub enable_prefix_caching: bool,
    /// Maximum number of tokens of a request, prompt and output together.
    pub max_model_len: usize,
    /// Whether a request is admitted only if blocks for all of its tokens are free, though its first chunk needs fewer.
    /// Blocks for the lookahead must be free, too, unlike in vLLM.
    pub scheduler_reserve_full_isl: bool,
    /// Fraction of the pool that must stay free when a request is admitted while others run.
    pub watermark: f64,
    /// Slots to reserve beyond a request's tokens, for a drafter that writes to them before its drafts are planned.
    pub num_lookahead_tokens: usize,
    /// Maximum number of drafts of one request in a step, at most 1,024. 0: no speculation.
    pub num_speculative_tokens: usize,
    /// Maximum number of drafts of a step, all requests together. `None`: no limit but `max_num_batched_tokens`. The
    /// executor has memory for a row of logits for each.
    pub max_num_step_drafts: Option<usize>,
    /// Shapes of steps.
    pub compose: Compose,
    /// If above 0, a step has rows of one adapter only (and of requests without one), and an adapter has at most this
    /// many steps in a row while requests of another one are ready. 0: adapters share steps.
    pub adapter_turn: usize,
}

impl SchedulerConfig {
    /// vLLM's defaults for a pool of this size, with a `max_model_len` of at most the whole pool.
    pub fn new(num_gpu_blocks: usize, block_size: usize) -> Self {
        Self {
            policy: PolicyKind::Fcfs,
            continuum_ttl: Ttl::Fixed,
            infer_jobs: false,
            block_size,
            num_gpu_blocks,
            max_num_seqs: 256,
            max_num_active_seqs: None,
            max_num_batched_tokens: 2048,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            enable_chunked_prefill: true,
            enable_prefix_caching: true,
            max_model_len: num_gpu_blocks.saturating_sub(1).saturating_mul(block_size),
            scheduler_reserve_full_isl: true,
            watermark: 0.0,
            num_lookahead_tokens: 0,
            num_speculative_tokens: 0,
            max_num_step_drafts: None,
            compose: Compose::Mixed,
            adapter_turn: 0,
        }
    }

    /// Checks the configuration for contradictions.
    ///
    /// # Errors
    /// [`ConfigError`], which says what to change.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let zero = [
            ("block_size", self.block_size),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_active_seqs", self.max_num_active_seqs.unwrap_or(1)),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
        ];
        if let Some((name, _)) = zero.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::Zero { name });
        }
        if matches!(self.compose, Compose::Stable { max_decode_steps: 0, .. }) {
            return Err(ConfigError::Zero { name: "max_decode_steps" });
        }
        if self.num_gpu_blocks.checked_mul(self.block_size).is_none() {
            return Err(ConfigError::PoolTooLarge {
                blocks: self.num_gpu_blocks,
                size: self.block_size,
            });
        }
        if self.max_num_seqs > MAX_SEATS {
            return Err(ConfigError::TooManySeats { seqs: self.max_num_seqs });
        }
        if self.num_speculative_tokens > MAX_DRAFTS {
            return Err(ConfigError::TooManyDrafts { drafts: self.num_speculative_tokens });
        }
        if self.max_num_batched_tokens < self.max_num_seqs {
            return Err(ConfigError::FewerTokensThanSeats {
                tokens: self.max_num_batched_tokens,
                seqs: self.max_num_seqs,
            });
        }
        if !self.enable_chunked_prefill && self.max_num_batched_tokens < self.max_model_len {
            return Err(ConfigError::PromptExceedsStep {
                tokens: self.max_num_batched_tokens,
                max_model_len: self.max_model_len,
            });
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(ConfigError::Watermark(self.watermark));
        }
        Ok(())
    }

    /// Blocks that requests can use: all but the null block.
    pub fn capacity(&self) -> usize {
        self.num_gpu_blocks.saturating_sub(1)
    }

    /// Blocks that hold `tokens` tokens.
    pub fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Number of running requests from which no further one is admitted.
    pub fn seats(&self) -> usize {
        self.max_num_seqs.min(self.max_num_active_seqs.unwrap_or(usize::MAX))
    }

    /// Maximum number of drafts of a step.
    pub fn step_drafts(&self) -> usize {
        let all = self.num_speculative_tokens.saturating_mul(self.max_num_seqs);
        all.min(self.max_num_step_drafts.unwrap_or(usize::MAX)).min(self.max_num_batched_tokens)
    }

    /// Maximum number of rows of logits of a step: one for each request, and one for each draft.
    pub fn max_logit_rows(&self) -> usize {
        self.max_num_seqs.saturating_add(self.step_drafts())
    }

    /// Blocks that the watermark keeps free.
    pub fn watermark_blocks(&self) -> usize {
        (self.watermark * self.num_gpu_blocks as f64) as usize
    }
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A size is 0.
    #[error("{name} must be at least 1, got 0")]
    Zero {
        /// Name of the field.
        name: &'static str,
    },
    /// The pool would have more tokens than can be counted.
    #[error("num_gpu_blocks ({blocks}) times block_size ({size}) is too large")]
    PoolTooLarge {
        /// `num_gpu_blocks`.
        blocks: usize,
        /// `block_size`.
        size: usize,
    },
    /// More seats than there can be.
    #[error("max_num_seqs must be at most {MAX_SEATS}, got {seqs}")]
    TooManySeats {
        /// `max_num_seqs`.
        seqs: usize,
    },
    /// More drafts than a row can have.
    #[error("num_speculative_tokens must be at most {MAX_DRAFTS}, got {drafts}")]
    TooManyDrafts {
        /// `num_speculative_tokens`.
        drafts: usize,
    },
    /// A step has fewer tokens than running requests.
    #[error(
        "max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({seqs}), so that every running request can \
              decode in each step: raise max_num_batched_tokens or lower max_num_seqs"
    )]
    FewerTokensThanSeats {
        /// `max_num_batched_tokens`.
        tokens: usize,
        /// `max_num_seqs`.
        seqs: usize,
    },
    /// Without chunked prefill, the longest prompt does not fit a step.
    #[error(
        "without chunked prefill, max_num_batched_tokens ({tokens}) must be at least max_model_len \
         ({max_model_len}), since a prompt is computed in one step: raise max_num_batched_tokens, lower max_model_len \
         or enable chunked prefill"
    )]
    PromptExceedsStep {
        /// `max_num_batched_tokens`.
        tokens: usize,
        /// `max_model_len`.
        max_model_len: usize,
    },
    /// The watermark is not a fraction of the pool.
    #[error("watermark must be at least 0 and below 1, got {0}: it is a fraction of the pool")]
    Watermark(f64),
    /// The block pool cannot be created.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Error of the block manager about its pool, as text, because the block manager's own error has no `PartialEq`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PoolError(pub String);
