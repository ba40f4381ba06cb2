//! What is counted of the engine. Names, labels and meanings are vLLM's (0.32) where it has the same thing.
//!
//! What has no meaning here is left out instead of being 0 for ever: sleeping, multi-modal caches, caches outside the pool,
//! adapters, drafts, and estimates of what a GPU could have done.

use l5_scheduler::{FinishReason, SchedulerConfig};

use super::buckets;
use super::registry::{Counter, Gauge, Histogram, Registry};

/// What the engine's thread counts.
#[derive(Debug)]
pub struct EngineFamilies {
    pub kv_usage: Gauge,
    pub kv_used: Gauge,
    pub kv_free: Gauge,
    pub kv_cached: Gauge,
    pub prefix_queries: Counter,
    pub prefix_hits: Counter,
    pub preemptions: Counter,
    pub prompt_tokens: Counter,
    pub prompt_computed: Counter,
    pub prompt_hit: Counter,
    pub prompt_cached: Counter,
    pub prompt_cached_device: Counter,
    pub generation_tokens: Counter,
    pub success: [Counter; FINISHED.len()],
    pub kv_exhausted: Counter,
    pub preempted_requests: Counter,
    pub request_prompt: Histogram,
    pub request_generation: Histogram,
    pub request_max_tokens: Histogram,
    pub request_computed: Histogram,
    pub iteration_tokens: Histogram,
    pub request_preemptions: Histogram,
    pub ttft: Histogram,
    pub itl: Histogram,
    pub tpot: Histogram,
    pub e2e: Histogram,
    pub queue: Histogram,
    pub prefill: Histogram,
    pub decode: Histogram,
    pub inference: Histogram,
    pub steps: Counter,
    pub replayed: Counter,
    pub phases: Phases,
}

/// One histogram for each part of a step.
#[derive(Debug)]
pub struct Phases {
    pub plan: Histogram,
    pub pack: Histogram,
    pub forward: Histogram,
    pub sample: Histogram,
    pub apply: Histogram,
}

/// vLLM's words for how a request ends. Nothing here ends at a repetition.
const FINISHED: [&str; 4] = ["stop", "length", "abort", "error"];

/// The place of an end among [`FINISHED`].
fn finished(reason: FinishReason) -> usize {
    match reason {
        FinishReason::Stop => 0,
        FinishReason::Length | FinishReason::KvExhausted => 1,
        FinishReason::Aborted => 2,
        FinishReason::Failed => 3,
    }
}

impl EngineFamilies {
    /// All of them, at 0.
    pub fn new(registry: &Registry, model: &str, config: &SchedulerConfig, dtype: &str) -> Self {
        let own: &[(&str, &str)] = &[("model_name", model), ("engine", "0")];
        let with = |name, value| [("model_name", model), ("engine", "0"), (name, value)];
        let counter = |name, help| registry.counter(name, help, own);
        let gauge = |name, help| registry.gauge(name, help, own);
        let histogram = |name, help, bounds| registry.histogram(name, help, bounds, own);
        let lengths = buckets::tokens(config.max_model_len);
        let tokens = |name, help| registry.histogram(name, help, &lengths, own);
        let source = |source| {
            let help = "Tokens of answered prompts, by where their keys and values came from.";
            registry.counter("vllm:prompt_tokens_by_source_total", help, &with("source", source))
        };
        let success = |reason| {
            let help = "Requests that ended, by how.";
            let labels = with("finished_reason", reason);
            registry.counter("vllm:request_success_total", help, &labels)
        };
        let phase = |phase| {
            let help = "Parts of a step, in seconds.";
            let labels = with("phase", phase);
            registry.histogram("strata:step_phase_seconds", help, buckets::PHASE, &labels)
        };
        let blocks = |state| {
            let help = "Blocks of keys and values: used and free are all of them, and cached \
                        are those of both that are found again by what they hold.";
            registry.gauge("strata:kv_blocks", help, &with("state", state))
        };
        let device = "Tokens of answered prompts that were found in a cache, by which.";
        cache_config(registry, config, dtype);
        let families = Self {
            kv_usage: gauge(
                "vllm:kv_cache_usage_perc",
                "The part of the KV blocks in use: 1 is all.",
            ),
            kv_used: blocks("used"),
            kv_free: blocks("free"),
            kv_cached: blocks("cached"),
            prefix_queries: counter(
                "vllm:prefix_cache_queries_total",
                "Tokens looked up in the prefix cache when their requests were first admitted.",
            ),
            prefix_hits: counter(
                "vllm:prefix_cache_hits_total",
                "Tokens found in the prefix cache when their requests were first admitted.",
            ),
            preemptions: counter(
                "vllm:num_preemptions_total",
                "Times that a request gave its KV blocks up to others.",
            ),
            prompt_tokens: counter(
                "vllm:prompt_tokens_total",
                "Tokens of answered prompts, those from caches included: counted with the first token of the answer.",
            ),
            prompt_computed: source("local_compute"),
            prompt_hit: source("local_cache_hit"),
            prompt_cached: counter(
                "vllm:prompt_tokens_cached_total",
                "Tokens of answered prompts that were found in a cache.",
            ),
            prompt_cached_device: registry.counter(
                "vllm:prompt_tokens_cached_by_source_total",
                device,
                &with("source", "device"),
            ),
            generation_tokens: counter("vllm:generation_tokens_total", "Tokens of answers."),
            success: FINISHED.map(success),
            kv_exhausted: counter(
                "strata:requests_kv_exhausted_total",
                "Requests that ended because the whole KV pool does not hold their next token: vLLM counts them as length.",
            ),
            preempted_requests: counter(
                "strata:requests_preempted_total",
                "Requests that ended and had been preempted at least once.",
            ),
            request_prompt: tokens(
                "vllm:request_prompt_tokens",
                "Tokens of the prompt, of each request that ended.",
            ),
            request_generation: tokens(
                "vllm:request_generation_tokens",
                "Tokens of the answer, of each request that ended.",
            ),
            request_max_tokens: tokens(
                "vllm:request_params_max_tokens",
                "The most tokens of the answer that could be, of each request that ended.",
            ),
            request_computed: tokens(
                "vllm:request_prefill_kv_computed_tokens",
                "Tokens of the prompt that were not found in a cache, of each request that ended.",
            ),
            iteration_tokens: histogram(
                "vllm:iteration_tokens_total",
                "Tokens of each step: those computed of prompts, and those generated.",
                buckets::STEP_TOKENS,
            ),
            request_preemptions: histogram(
                "vllm:request_num_preemptions",
                "Times that it was preempted, of each request that ended.",
                buckets::PREEMPTIONS,
            ),
            ttft: histogram(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to its first token.",
                buckets::TTFT,
            ),
            itl: histogram(
                "vllm:inter_token_latency_seconds",
                "From one step with a token for a request to the next.",
                buckets::ITL,
            ),
            tpot: histogram(
                "vllm:request_time_per_output_token_seconds",
                "From first to last token, for each token after the first; 0 for an answer of one.",
                buckets::ITL,
            ),
            e2e: histogram(
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to its end.",
                buckets::LATENCY,
            ),
            queue: histogram(
                "vllm:request_queue_time_seconds",
                "From a request's arrival to its first step.",
                buckets::LATENCY,
            ),
            prefill: histogram(
                "vllm:request_prefill_time_seconds",
                "From a request's first step to its first token.",
                buckets::LATENCY,
            ),
            decode: histogram(
                "vllm:request_decode_time_seconds",
                "From a request's first to its last token.",
                buckets::LATENCY,
            ),
            inference: histogram(
                "vllm:request_inference_time_seconds",
                "From a request's first step to its last token.",
                buckets::LATENCY,
            ),
            steps: counter("strata:steps_total", "Steps with at least one token."),
            replayed: counter(
                "strata:steps_replayed_total",
                "Steps that had been captured and were launched as a whole: on a GPU.",
            ),
            phases: Phases {
                plan: phase("plan"),
                pack: phase("pack"),
                forward: phase("forward"),
                sample: phase("sample"),
                apply: phase("apply"),
            },
        };
        families.kv_free.set(config.capacity() as f64);
        families
    }

    /// A request ended so.
    pub fn ended(&self, reason: FinishReason) {
        if let Some(counter) = self.success.get(finished(reason)) {
            counter.inc();
        }
        if reason == FinishReason::KvExhausted {
            self.kv_exhausted.inc();
        }
    }

    /// Requests that ended.
    pub fn num_ended(&self) -> u64 {
        self.success.iter().map(Counter::get).sum()
    }
}

/// The cache's limits as labels, as vLLM has them: endpoint pickers read block size and number of blocks there.
fn cache_config(registry: &Registry, config: &SchedulerConfig, dtype: &str) {
    let blocks = config.num_gpu_blocks.to_string();
    let size = config.block_size.to_string();
    let caching = if config.enable_prefix_caching { "True" } else { "False" };
    let labels = [
        ("engine", "0"),
        ("block_size", &size),
        ("cache_dtype", dtype),
        ("enable_prefix_caching", caching),
        ("num_gpu_blocks", &blocks),
        ("prefix_caching_hash_algo", "sha256_cbor"),
    ];
    let help = "The cache's configuration, in labels; one of the blocks is never handed out.";
    registry.gauge("vllm:cache_config_info", help, &labels).set(1.0);
}
