//! Options of an engine.

use std::time::Instant;

use l1_tensor::DType;
use l3_paged_kv::sizing::Budget;

use crate::composer::Compose;
use crate::retention::Ttl;
use crate::speculation::SpeculativeConfig;
use crate::tiers::TierOptions;
use crate::{PolicyKind, SchedulerConfig, Turns};

/// Default maximum of the KV cache's memory on a CPU, as in vLLM's CPU backend: bytes.
pub(super) const DEFAULT_KV_BYTES: u64 = 4 << 30;

/// Drafts of a step for which an engine has memory, all requests together, if it has fewer seats.
const MIN_STEP_DRAFTS: usize = 64;

/// Limits and policies of an engine. Names and meanings are vLLM's where it has them; [`Default`] suits a small server.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Scheduling policy: the order of admission and of preemption.
    pub policy: PolicyKind,
    /// With [`PolicyKind::Continuum`] and [`PolicyKind::ContextServe`]: how long leases hold the blocks of an agent's step.
    pub continuum_ttl: Ttl,
    /// Whether requests that name no job are recognised as steps of one by their tokens: see
    /// [`SchedulerConfig::infer_jobs`].
    pub infer_jobs: bool,
    /// Shapes of steps: prompts beside rows that decode, or in steps of their own.
    pub compose: Compose,
    /// Maximum number of requests that run at once.
    pub max_num_seqs: usize,
    /// Maximum number of tokens in one step, over all requests.
    pub max_num_batched_tokens: usize,
    /// Maximum number of tokens of one step that one request may take while others run. 0: no limit.
    pub long_prefill_token_threshold: usize,
    /// Maximum number of tokens of a request, prompt and completion together. `None`: the model's context, or what the
    /// pool holds if that is less.
    pub max_model_len: Option<usize>,
    /// Number of tokens in a block, a power of two.
    pub block_size: usize,
    /// Data type of the KV cache. `None`: that of activations.
    pub kv_dtype: Option<DType>,
    /// Memory of the KV cache. `None`: what `max_num_seqs` requests of full length need, but at most 4 GiB; on a GPU
    /// four fifths of what is free there.
    pub kv_memory: Option<Budget>,
    /// Use for the KV cache what is left of this share of the machine's memory (of the GPU's on a device) once the
    /// model is loaded and the largest step has been run to measure its memory. Overrides `kv_memory`.
    pub memory_utilization: Option<f64>,
    /// Whether the KV blocks of a prefix that was computed before are reused.
    pub enable_prefix_caching: bool,
    /// Whether a prompt may be computed in chunks.
    pub enable_chunked_prefill: bool,
    /// Share of the pool that must stay free when a request is admitted while others run.
    pub watermark: f64,
    /// Speculation: drafts that steps verify. They change no token, unless they are drawn. `None`: no speculation.
    pub speculative: Option<SpeculativeConfig>,
    /// Maximum rank of LoRA adapters. `None`: requests with an adapter are refused.
    pub max_lora_rank: Option<usize>,
    /// Maximum number of waiting requests; more are rejected.
    pub max_num_waiting: usize,
    /// On a device, launch every kernel of every step separately, instead of capturing and replaying steps that only
    /// decode. The engine starts faster and needs less memory, and every step takes more of the host's time.
    pub eager: bool,
    /// Name of the model in the keys of blocks that leave the process; its digest is added: see
    /// [`EngineModel::namespace`](super::EngineModel::namespace). `None`: its architecture.
    pub namespace: Option<String>,
    /// Memories behind the pool, for keys and values that it would evict.
    pub tiers: TierOptions,
    /// Turns with the other engines on the same runtime. `None`: this engine has the runtime for itself.
    pub turns: Option<Turns>,
    /// Moment at which the engine's clock begins. Times of engines whose clocks begin together can be compared. `None`: when
    /// the engine starts.
    pub clock: Option<Instant>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        let scheduler = SchedulerConfig::new(2, 16);
        Self {
            policy: scheduler.policy,
            continuum_ttl: scheduler.continuum_ttl,
            infer_jobs: scheduler.infer_jobs,
            compose: scheduler.compose,
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
            speculative: None,
            max_lora_rank: None,
            max_num_waiting: 1 << 16,
            eager: false,
            namespace: None,
            tiers: TierOptions::default(),
            turns: None,
            clock: None,
        }
    }
}

impl EngineOptions {
    /// The scheduler's configuration for a pool of this many blocks.
    pub fn scheduler(&self, num_gpu_blocks: usize, max_model_len: usize) -> SchedulerConfig {
        let drafts = self.speculative.as_ref().map_or(0, SpeculativeConfig::num_drafts);
        SchedulerConfig {
            policy: self.policy,
            continuum_ttl: self.continuum_ttl,
            infer_jobs: self.infer_jobs,
            compose: self.compose,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            enable_prefix_caching: self.enable_prefix_caching,
            enable_chunked_prefill: self.enable_chunked_prefill,
            watermark: self.watermark,
            num_speculative_tokens: drafts,
            // Rows of logits take memory. When many seats are taken, one draft for each is more than pays.
            max_num_step_drafts: Some(self.max_num_seqs.max(MIN_STEP_DRAFTS)),
            max_model_len,
            ..SchedulerConfig::new(num_gpu_blocks, self.block_size)
        }
    }
}
