//! What a scheduler is made from.

use crate::PolicyKind;

/// Limits and habits of a [`Scheduler`](crate::Scheduler). Names and meanings are those of vLLM's `SchedulerConfig` and
/// `CacheConfig`, where it has them.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerConfig {
    /// Who goes first, and who gives way.
    pub policy: PolicyKind,
    /// Tokens a block, a power of two.
    pub block_size: usize,
    /// Blocks of the pool, the null block included.
    pub num_gpu_blocks: usize,
    /// The most requests that run at once: seats.
    pub max_num_seqs: usize,
    /// Admit only while fewer than this run; those that run already may be more. `None`: as many as there are seats.
    pub max_num_active_seqs: Option<usize>,
    /// The most tokens of one step, all requests together.
    pub max_num_batched_tokens: usize,
    /// The most tokens that one request may take of a step while it is not alone. 0: as many as there is budget.
    pub long_prefill_token_threshold: usize,
    /// Raise that threshold to a fair share of the budget, where the share is larger.
    pub long_prefill_token_threshold_adaptive: bool,
    /// Whether a prompt may be computed in pieces. Without it, a prompt waits for a step that takes all of it.
    pub enable_chunked_prefill: bool,
    /// Whether full blocks are found again by what they hold.
    pub enable_prefix_caching: bool,
    /// The most tokens of a request, prompt and answer together.
    pub max_model_len: usize,
    /// Admit a request only if blocks for all of its tokens are free, though its first chunk needs fewer.
    pub scheduler_reserve_full_isl: bool,
    /// The part of the pool that must stay free when a request is admitted beside others.
    pub watermark: f64,
    /// Slots to reserve beyond a request's tokens, for drafts.
    pub num_lookahead_tokens: usize,
}

impl SchedulerConfig {
    /// vLLM's defaults for a pool of this size, and a context of at most all of it.
    pub fn new(num_gpu_blocks: usize, block_size: usize) -> Self {
        Self {
            policy: PolicyKind::Fcfs,
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
        }
    }

    /// Check what contradicts itself.
    ///
    /// # Errors
    /// [`ConfigError`], with what to change.
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
        if self.max_num_batched_tokens < self.max_num_seqs {
            return Err(ConfigError::FewerTokensThanSeats {
                tokens: self.max_num_batched_tokens,
                seqs: self.max_num_seqs,
            });
        }
        if !self.enable_chunked_prefill && self.max_num_batched_tokens < self.max_model_len {
            return Err(ConfigError::PromptInOnePiece {
                tokens: self.max_num_batched_tokens,
                max_model_len: self.max_model_len,
            });
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(ConfigError::Watermark(self.watermark));
        }
        Ok(())
    }

    /// Blocks that can be handed out: all but the null block.
    pub fn capacity(&self) -> usize {
        self.num_gpu_blocks.saturating_sub(1)
    }

    /// Blocks that hold so many tokens.
    pub fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Running requests up to which others are admitted.
    pub fn seats(&self) -> usize {
        self.max_num_seqs.min(self.max_num_active_seqs.unwrap_or(usize::MAX))
    }

    /// Blocks that the watermark keeps free.
    pub fn watermark_blocks(&self) -> usize {
        (self.watermark * self.num_gpu_blocks as f64) as usize
    }
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Nothing would ever run.
    #[error("{name} is 0, so that nothing would ever run: make it at least 1")]
    Zero {
        /// The field.
        name: &'static str,
    },
    /// Not every running request could have its next token.
    #[error(
        "max_num_batched_tokens {tokens} is less than max_num_seqs {seqs}: a step must have a token for everyone who runs; \
         raise the first or lower the second"
    )]
    FewerTokensThanSeats {
        /// Tokens of a step.
        tokens: usize,
        /// Seats.
        seqs: usize,
    },
    /// Some prompt that is promised a place would never fit a step.
    #[error(
        "without chunked prefill a prompt is one step's, but max_num_batched_tokens {tokens} is less than max_model_len \
         {max_model_len}: raise the first, lower the second, or enable chunked prefill"
    )]
    PromptInOnePiece {
        /// Tokens of a step.
        tokens: usize,
        /// The longest request.
        max_model_len: usize,
    },
    /// A share that is none.
    #[error("a watermark of {0} is not a share of the pool: 0 or above, and below 1")]
    Watermark(f64),
    /// A pool that cannot be.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// What the block manager says about its pool, as text: its own error cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PoolError(pub String);
