//! Metrics of one engine. Names, labels and meanings are vLLM's (0.32) where it has the same metric.
//!
//! Metrics of features that this server does not have are left out: sleep mode, multi-modal caches, and estimates of GPU
//! performance. Those of each tier behind the pool are in `tiers.rs`, those of drafts in `speculation.rs`, and that of
//! LoRA adapters in `adapters.rs`.

use l5_scheduler::{FinishReason, SchedulerConfig};

use super::buckets;
use super::registry::{Counter, Gauge, Histogram, Registry};
use super::speculation::SpeculationFamilies;

/// Metrics that the engine's thread counts, with the label `engine` of one replica.
#[derive(Debug)]
pub struct EngineFamilies {
    pub kv_usage: Gauge,
    pub kv_used: Gauge,
    pub kv_free: Gauge,
    pub kv_cached: Gauge,
    pub kv_leased: Gauge,
    pub leases: Gauge,
    pub prefix_queries: Counter,
    pub prefix_hits: Counter,
    pub external_queries: Counter,
    pub external_hits: Counter,
    pub preemptions: Counter,
    pub prompt_tokens: Counter,
    pub prompt_computed: Counter,
    pub prompt_hit: Counter,
    pub prompt_loaded: Counter,
    pub prompt_cached: Counter,
    pub prompt_cached_device: Counter,
    pub prompt_cached_host: Counter,
    pub prompt_cached_disk: Counter,
    pub prompt_cached_external: Counter,
    pub generation_tokens: Counter,
    pub success: [Counter; FINISHED_REASONS.len()],
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
    /// Metrics of drafts, if the engine speculates.
    pub speculation: Option<SpeculationFamilies>,
}

/// One histogram for each part of a step.
#[derive(Debug)]
pub struct Phases {
    pub plan: Histogram,
    pub turn: Histogram,
    pub pack: Histogram,
    pub forward: Histogram,
    pub sample: Histogram,
    pub apply: Histogram,
}

/// vLLM's values of `finished_reason`, but for `repetition`.
const FINISHED_REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// Index of a reason among [`FINISHED_REASONS`].
fn reason_index(reason: FinishReason) -> usize {
    match reason {
        FinishReason::Stop => 0,
        FinishReason::Length | FinishReason::KvExhausted => 1,
        FinishReason::Aborted => 2,
        FinishReason::Failed => 3,
    }
}

impl EngineFamilies {
    /// Registers all of them, at 0.
    pub fn new(
        registry: &Registry,
        model: &str,
        engine: &str,
        config: &SchedulerConfig,
        dtype: &str,
    ) -> Self {
        let own: &[(&str, &str)] = &[("model_name", model), ("engine", engine)];
        let with = |name, value| [("model_name", model), ("engine", engine), (name, value)];
        let counter = |name, help| registry.counter(name, help, own);
        let gauge = |name, help| registry.gauge(name, help, own);
        let histogram = |name, help, bounds| registry.histogram(name, help, bounds, own);
        let lengths = buckets::tokens(config.max_model_len);
        let tokens = |name, help| registry.histogram(name, help, &lengths, own);
        let source = |source| {
            let help =
                "Number of prompt tokens of requests that got a token, by source of their KV.";
            registry.counter("vllm:prompt_tokens_by_source_total", help, &with("source", source))
        };
        let success = |reason| {
            let help = "Number of finished requests, by finish reason.";
            let labels = with("finished_reason", reason);
            registry.counter("vllm:request_success_total", help, &labels)
        };
        let phase = |phase| {
            let help = "Time of each phase of a step, in seconds.";
            let labels = with("phase", phase);
            registry.histogram("strata:step_phase_seconds", help, buckets::PHASE, &labels)
        };
        let blocks = |state| {
            let help = "Number of KV blocks by state: used and free add up to all of them; cached \
                        counts those of both that the prefix cache can find, leased those of the used ones \
                        that are kept for the next step of an agent's job.";
            registry.gauge("strata:kv_blocks", help, &with("state", state))
        };
        let cached_in = |source| {
            let help = "Number of cached prompt tokens, by cache: the pool (device), and the tiers behind it.";
            let labels = with("source", source);
            registry.counter("vllm:prompt_tokens_cached_by_source_total", help, &labels)
        };
        cache_config(registry, engine, config, dtype);
        let families = Self {
            kv_usage: gauge(
                "vllm:kv_cache_usage_perc",
                "KV-cache usage. 1 means 100 percent usage.",
            ),
            kv_used: blocks("used"),
            kv_free: blocks("free"),
            kv_cached: blocks("cached"),
            kv_leased: blocks("leased"),
            leases: gauge(
                "strata:leases",
                "Number of leases: finished steps of agents' jobs whose blocks are kept.",
            ),
            prefix_queries: counter(
                "vllm:prefix_cache_queries_total",
                "Prefix cache queries, in terms of number of queried tokens.",
            ),
            prefix_hits: counter(
                "vllm:prefix_cache_hits_total",
                "Prefix cache hits, in terms of number of cached tokens.",
            ),
            external_queries: counter(
                "vllm:external_prefix_cache_queries_total",
                "Tiers' queries, in terms of number of queried tokens: those that the prefix cache did not have.",
            ),
            external_hits: counter(
                "vllm:external_prefix_cache_hits_total",
                "Tiers' hits, in terms of number of tokens that a tier had.",
            ),
            preemptions: counter(
                "vllm:num_preemptions_total",
                "Cumulative number of preemptions from the engine.",
            ),
            prompt_tokens: counter(
                "vllm:prompt_tokens_total",
                "Number of prefill tokens processed, cached ones included: counted with the first output token.",
            ),
            prompt_computed: source("local_compute"),
            prompt_hit: source("local_cache_hit"),
            prompt_loaded: source("external_kv_transfer"),
            prompt_cached: counter(
                "vllm:prompt_tokens_cached_total",
                "Number of cached prompt tokens, of the prefix cache and of tiers.",
            ),
            prompt_cached_device: cached_in("device"),
            prompt_cached_host: cached_in("host"),
            prompt_cached_disk: cached_in("disk"),
            prompt_cached_external: cached_in("external_unspecified"),
            generation_tokens: counter(
                "vllm:generation_tokens_total",
                "Number of generation tokens processed.",
            ),
            success: FINISHED_REASONS.map(success),
            kv_exhausted: counter(
                "strata:requests_kv_exhausted_total",
                "Number of requests that ended because the whole KV pool cannot hold their next token: vLLM counts \
                 them as length.",
            ),
            preempted_requests: counter(
                "strata:requests_preempted_total",
                "Number of finished requests that were preempted at least once.",
            ),
            request_prompt: tokens(
                "vllm:request_prompt_tokens",
                "Number of prompt tokens of each finished request.",
            ),
            request_generation: tokens(
                "vllm:request_generation_tokens",
                "Number of generation tokens of each finished request.",
            ),
            request_max_tokens: tokens(
                "vllm:request_params_max_tokens",
                "Maximum number of generation tokens of each finished request.",
            ),
            request_computed: tokens(
                "vllm:request_prefill_kv_computed_tokens",
                "Number of prompt tokens computed, cached ones excluded, of each finished request.",
            ),
            iteration_tokens: histogram(
                "vllm:iteration_tokens_total",
                "Number of tokens of each step: prompt tokens computed, and tokens generated.",
                buckets::STEP_TOKENS,
            ),
            request_preemptions: histogram(
                "vllm:request_num_preemptions",
                "Number of preemptions of each finished request.",
                buckets::PREEMPTIONS,
            ),
            ttft: histogram(
                "vllm:time_to_first_token_seconds",
                "Time from a request's arrival to its first token, in seconds.",
                buckets::TTFT,
            ),
            itl: histogram(
                "vllm:inter_token_latency_seconds",
                "Time between two steps with a token for the same request, in seconds.",
                buckets::ITL,
            ),
            tpot: histogram(
                "vllm:request_time_per_output_token_seconds",
                "Time per output token after the first, of each finished request, in seconds; 0 for a single token.",
                buckets::ITL,
            ),
            e2e: histogram(
                "vllm:e2e_request_latency_seconds",
                "Time from a request's arrival to its end, in seconds.",
                buckets::LATENCY,
            ),
            queue: histogram(
                "vllm:request_queue_time_seconds",
                "Time spent in the queue: from a request's arrival to its first step, in seconds.",
                buckets::LATENCY,
            ),
            prefill: histogram(
                "vllm:request_prefill_time_seconds",
                "Time spent in prefill: from a request's first step to its first token, in seconds.",
                buckets::LATENCY,
            ),
            decode: histogram(
                "vllm:request_decode_time_seconds",
                "Time spent in decode: from a request's first to its last token, in seconds.",
                buckets::LATENCY,
            ),
            inference: histogram(
                "vllm:request_inference_time_seconds",
                "Time spent running: from a request's first step to its last token, in seconds.",
                buckets::LATENCY,
            ),
            steps: counter("strata:steps_total", "Number of steps with at least one token."),
            replayed: counter(
                "strata:steps_replayed_total",
                "Number of steps that replayed a captured CUDA graph.",
            ),
            phases: Phases {
                plan: phase("plan"),
                turn: phase("turn"),
                pack: phase("pack"),
                forward: phase("forward"),
                sample: phase("sample"),
                apply: phase("apply"),
            },
            speculation: SpeculationFamilies::new(registry, model, engine, config),
        };
        families.kv_free.set(config.capacity() as f64);
        families
    }

    /// Counts a finished request.
    pub fn ended(&self, reason: FinishReason) {
        if let Some(counter) = self.success.get(reason_index(reason)) {
            counter.inc();
        }
        if reason == FinishReason::KvExhausted {
            self.kv_exhausted.inc();
        }
    }

    /// Number of finished requests.
    pub fn num_ended(&self) -> u64 {
        self.success.iter().map(Counter::get).sum()
    }
}

/// Configuration of the KV cache as labels, as in vLLM: endpoint pickers read block size and number of blocks there.
fn cache_config(registry: &Registry, engine: &str, config: &SchedulerConfig, dtype: &str) {
    let blocks = config.num_gpu_blocks.to_string();
    let size = config.block_size.to_string();
    let caching = if config.enable_prefix_caching { "True" } else { "False" };
    let labels = [
        ("engine", engine),
        ("block_size", &size),
        ("cache_dtype", dtype),
        ("enable_prefix_caching", caching),
        ("num_gpu_blocks", &blocks),
        ("prefix_caching_hash_algo", "sha256_cbor"),
    ];
    let help = "Configuration of the KV cache, as labels. One of the blocks is never allocated.";
    registry.gauge("vllm:cache_config_info", help, &labels).set(1.0);
}
