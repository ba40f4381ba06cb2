//! The groups of options.

use std::path::PathBuf;

use l3_paged_kv::sizing::Budget;
use l5_scheduler::retention::Ttl;
use l5_scheduler::speculation::SpeculativeConfig;
use l5_scheduler::{Compose, EngineOptions, PolicyKind};

use super::Switch;
use super::values::{self, KvDtype, ModelLen};
use crate::cli::error::CliError;
use crate::cli::recording::{EnsembleRecording, StepRecording};

/// Limits of a step and of a request, and the scheduling policy.
#[derive(Debug, Clone, clap::Args)]
pub struct SchedulerOptions {
    /// Maximum number of requests that run at once
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub max_num_seqs: Option<usize>,
    /// Maximum number of tokens in one step, over all requests
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub max_num_batched_tokens: Option<usize>,
    /// Maximum number of tokens of a request, prompt and completion together: 4096, 4k (4,000), 4K (4,096), or auto for
    /// what model and memory allow
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub max_model_len: Option<ModelLen>,
    /// Maximum number of tokens of one step that a long prompt may take while other requests run; 0 for no limit
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::any_count)]
    pub long_prefill_token_threshold: usize,
    /// Scheduling policy: fcfs (first come, first served), priority or strict-priority; for agents, continuum (KV
    /// blocks of a step are held for a time), context-serve (if the command that it calls is short), adaptive (until
    /// they are needed more) or lmcache (they are stored in another memory, such as --kv-tier-dram of the server; as
    /// fcfs without one)
    #[arg(long, alias = "scheduling-policy", value_name = "POLICY", default_value = "fcfs")]
    pub policy: PolicyKind,
    /// With --policy continuum, and with context-serve where a call's duration is uncertain: time for which KV blocks
    /// are held, fixed (2 s) or cdf (from recorded pauses of tools)
    #[arg(long, value_name = "HOW", default_value = "fixed")]
    pub continuum_ttl: Ttl,
    /// Recognise steps of jobs whose requests have no job id: a prompt that begins with all tokens of an earlier
    /// request continues its conversation
    #[arg(long, switch("false"))]
    pub infer_jobs: bool,
    /// Composition of steps: mixed (prompts beside requests that decode) or stable (most steps only decode, so that a
    /// device can replay them; prompts have steps of their own)
    #[arg(long, value_name = "HOW", default_value = "mixed")]
    pub compose: Compose,
    /// With --compose stable: maximum number of steps in a row that only decode while a prompt waits
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::count)]
    pub max_decode_steps: usize,
    /// With --compose stable: maximum number of tokens of a step of prompts; 0 for as many as a step takes
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::any_count)]
    pub prefill_chunk: usize,
    /// Compute a long prompt in chunks, so that other requests continue beside it
    #[arg(long, switch("true"), overrides_with = "no_enable_chunked_prefill")]
    enable_chunked_prefill: bool,
    /// --enable-chunked-prefill=false
    #[arg(long, hide = true, overrides_with = "enable_chunked_prefill")]
    no_enable_chunked_prefill: bool,
}

/// Whether computed blocks are reused.
#[derive(Debug, Clone, clap::Args)]
pub struct PrefixCachingOptions {
    /// Reuse the KV blocks of a prefix that was computed before
    #[arg(long, switch("true"), overrides_with = "no_enable_prefix_caching")]
    enable_prefix_caching: bool,
    /// --enable-prefix-caching=false
    #[arg(
        long,
        alias = "no-prefix-caching",
        hide = true,
        overrides_with = "enable_prefix_caching"
    )]
    no_enable_prefix_caching: bool,
}

/// Blocks of the KV cache.
#[derive(Debug, Clone, clap::Args)]
pub struct BlockOptions {
    /// Number of tokens in a block of the KV cache, a power of two
    #[arg(long, value_name = "N", default_value = "16", value_parser = values::power_of_two)]
    pub block_size: usize,
}

/// Memory of the KV cache.
#[derive(Debug, Clone, clap::Args)]
pub struct KvMemoryOptions {
    /// Memory for the KV cache, such as 512MiB or 2GiB
    #[arg(long, alias = "kv-cache-memory-bytes", value_name = "SIZE")]
    pub kv_memory: Option<Budget>,
    /// Data type of the KV cache: auto (f32 under --precision f32, else bf16), bf16, f32, or fp8 (half the memory of
    /// bf16, 4 bits of precision)
    #[arg(long, alias = "kv-cache-dtype", value_name = "DTYPE", default_value = "auto")]
    pub kv_dtype: KvDtype,
}

/// How steps are launched on a device.
#[derive(Debug, Clone, clap::Args)]
pub struct CaptureOptions {
    /// On CUDA: launch every kernel of every step separately, instead of capturing and replaying steps that only decode
    #[arg(long, alias = "enforce-eager", switch("false"))]
    pub eager: bool,
}

/// Speculation.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SpeculationOptions {
    /// Speculation: a drafter proposes tokens, and a step verifies several of them for a request. Drafts change no
    /// token, unless they are drawn. JSON with the fields of vLLM's option, such as {"method": "ngram",
    /// "num_speculative_tokens": 5}. `method` is one of:
    ///   ngram        what followed the last tokens where they occurred first in the prompt and the output
    ///   suffix       what followed the last tokens in the prompt, the output and earlier outputs
    ///   draft_model  a smaller model with the same vocabulary (`model`: its path)
    ///   eagle        an EAGLE head, a layer that reads hidden rows of the model (`model`: its directory)
    ///   eagle3       an EAGLE-3 head
    ///   medusa       Medusa heads, one for each draft
    /// "window": "fixed" verifies all drafts, and not only those that save time. "draft_sample_method": "probabilistic"
    /// lets the last four draw the drafts of requests that sample: more are accepted, and a seed gives them no
    /// reproducible text.
    #[arg(long, value_name = "JSON", value_parser = values::speculative_config, verbatim_doc_comment)]
    pub speculative_config: Option<SpeculativeConfig>,
}

/// Recording of the engine's steps.
#[derive(Debug, Clone, clap::Args)]
pub struct TraceOptions {
    /// Record every step in this file, for `strata trace view`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

impl SchedulerOptions {
    /// Whether a prompt may be computed in chunks.
    fn chunked_prefill(&self) -> bool {
        self.enable_chunked_prefill && !self.no_enable_chunked_prefill
    }

    /// How steps are composed.
    fn compose(&self) -> Compose {
        let Self { max_decode_steps, prefill_chunk: chunk, .. } = *self;
        match self.compose {
            Compose::Mixed => Compose::Mixed,
            Compose::Stable { .. } => Compose::Stable { max_decode_steps, chunk },
        }
    }

    /// Puts them into `options`, whose limits remain where none are given.
    pub fn set(&self, options: &mut EngineOptions) {
        options.policy = self.policy;
        options.continuum_ttl = self.continuum_ttl;
        options.infer_jobs = self.infer_jobs;
        options.compose = self.compose();
        options.max_num_seqs = self.max_num_seqs.unwrap_or(options.max_num_seqs);
        let tokens = self.max_num_batched_tokens;
        options.max_num_batched_tokens = tokens.unwrap_or(options.max_num_batched_tokens);
        options.max_model_len = self.max_model_len.map_or(options.max_model_len, |len| len.0);
        options.long_prefill_token_threshold = self.long_prefill_token_threshold;
        options.enable_chunked_prefill = self.chunked_prefill();
    }
}

impl PrefixCachingOptions {
    /// Whether computed blocks are reused.
    pub fn on(&self) -> bool {
        self.enable_prefix_caching && !self.no_enable_prefix_caching
    }
}

impl TraceOptions {
    /// Creates the file, if one was given, for the steps of this model.
    ///
    /// # Errors
    /// [`CliError::Output`] if the file cannot be created.
    pub fn recording(&self, model: &str) -> Result<Option<StepRecording>, CliError> {
        self.trace.as_deref().map(|path| StepRecording::create(path, model)).transpose()
    }

    /// Creates the file, if one was given, for an ensemble with these lanes.
    ///
    /// # Errors
    /// As [`TraceOptions::recording`].
    pub fn ensemble_recording(
        &self,
        ensemble: &str,
        lanes: &[&str],
    ) -> Result<Option<EnsembleRecording>, CliError> {
        let created = self.trace.as_deref();
        created.map(|path| EnsembleRecording::create(path, ensemble, lanes)).transpose()
    }
}
