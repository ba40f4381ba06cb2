//! What an engine is made from.

use l1_tensor::DType;
use l3_paged_kv::sizing::Budget;

use crate::{PolicyKind, SchedulerConfig};

/// Memory for keys and values where nobody says how much, and on a CPU: at most this (as vLLM's CPU backend).
pub(super) const DEFAULT_KV_BYTES: u64 = 4 << 30;

/// An engine's limits and habits. Names and meanings are vLLM's, where it has them; [`Default`] is what a small server
/// wants.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Who goes first, and who gives way.
    pub policy: PolicyKind,
    /// The most requests that run at once.
    pub max_num_seqs: usize,
    /// The most tokens of one step, all requests together.
    pub max_num_batched_tokens: usize,
    /// The most tokens that one request may take of a step while it is not alone. 0: as many as there is budget.
    pub long_prefill_token_threshold: usize,
    /// The most tokens of a request, prompt and answer together. `None`: the model's context, or what the pool holds if
    /// that is less.
    pub max_model_len: Option<usize>,
    /// Tokens a block, a power of two.
    pub block_size: usize,
    /// How keys and values are kept. `None`: as activations are.
    pub kv_dtype: Option<DType>,
    /// Memory for keys and values. `None`: what `max_num_seqs` requests of full length need, but at most 4 GiB, or on a GPU
    /// four fifths of what is free there.
    pub kv_memory: Option<Budget>,
    /// Take for keys and values what is left of this share of the machine's memory (or the GPU's) when the model is in it, and the largest
    /// step has been run to see what that takes. Goes before `kv_memory`.
    pub memory_utilization: Option<f64>,
    /// Whether full blocks are found again by what they hold.
    pub enable_prefix_caching: bool,
    /// Whether a prompt may be computed in pieces.
    pub enable_chunked_prefill: bool,
    /// The part of the pool that must stay free when a request is admitted beside others.
    pub watermark: f64,
    /// The most requests that wait; more are refused.
    pub max_num_waiting: usize,
    /// Launch every kernel of every step by itself, even where steps that only decode could be captured once and replayed:
    /// on a device. Starts faster and takes less memory, and every step takes the host longer.
    pub eager: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        let scheduler = SchedulerConfig::new(2, 16);
        Self {
            policy: scheduler.policy,
            max_num_seqs: scheduler.max_num_seqs,
            max_num_batched_tokens: scheduler.max_num_batched_tokens,
            long_prefill_token_threshold: scheduler.long_prefill_token_threshold,
            max_model_len: None,
            block_size: scheduler.block_size,
            kv_dtype: None,
            kv_memory: None,
            memory_utilization: None,
            enable_prefix_caching: scheduler.enable_prefix_caching,
            enable_chunked_prefill: scheduler.enable_chunked_prefill,
            watermark: scheduler.watermark,
            max_num_waiting: 1 << 16,
            eager: false,
        }
    }
}

impl EngineOptions {
    /// The scheduler's part of it, for a pool of so many blocks.
    pub(super) fn scheduler(&self, num_gpu_blocks: usize, max_model_len: usize) -> SchedulerConfig {
        SchedulerConfig {
            policy: self.policy,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            enable_prefix_caching: self.enable_prefix_caching,
            enable_chunked_prefill: self.enable_chunked_prefill,
            watermark: self.watermark,
            max_model_len,
            ..SchedulerConfig::new(num_gpu_blocks, self.block_size)
        }
    }
}
