//! Response of `GET /strata/state`: a snapshot of the server, for the page and for `curl`.

use serde::Serialize;
use utoipa::ToSchema;

/// Snapshot of the server. Counts are since the start; `recent` is the last minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct State {
    /// Name of the model or, in an ensemble, of the specialist that the snapshot is of.
    pub model: String,
    /// Names of all specialists of an ensemble; empty without one.
    pub specialists: Vec<String>,
    /// Version of the program.
    pub version: String,
    /// `serving`, `draining` or `failed`.
    pub state: String,
    /// Seconds since the start.
    pub uptime_seconds: f64,
    /// Counts of requests.
    pub requests: Requests,
    /// Running requests in order of arrival: the first [`super::MAX_RUNNING_SHOWN`] of them.
    pub running: Vec<Running>,
    /// Tokens in and out.
    pub tokens: Tokens,
    /// KV cache.
    pub kv: Kv,
    /// Drafts; absent where no engine speculates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
    /// Rates and latencies of the last minute.
    pub recent: Recent,
    /// Steps of the engine.
    pub steps: Steps,
    /// Estimated time to complete all current work at the speed of the last steps; `null` before the first.
    pub wait_seconds: Option<f64>,
    /// Connections and streams.
    pub http: Http,
}

/// Counts of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Requests {
    /// Running requests.
    pub running: usize,
    /// Waiting requests.
    pub waiting: usize,
    /// Maximum number of running requests.
    pub max_running: usize,
    /// Finished requests, for any reason.
    pub finished: u64,
    /// Requests rejected because the queue was full.
    pub rejected: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Fraction of finished requests that were preempted at least once; `null` before the first.
    pub preempted_once: Option<f64>,
}

/// A running request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Running {
    /// Id of the request in its engine.
    pub id: u64,
    /// Number of prompt tokens.
    pub prompt: usize,
    /// Number of prompt tokens that were cached.
    pub cached: usize,
    /// Number of tokens generated so far.
    pub generated: usize,
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// Number of preemptions.
    pub preemptions: u32,
}

/// Tokens in and out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Tokens {
    /// Prompt tokens of requests without an output token yet.
    pub queued: usize,
    /// Maximum number of tokens still to be generated.
    pub owed: usize,
    /// Prompt tokens of requests that got a token.
    pub prompt: u64,
    /// Prompt tokens that were cached.
    pub cached: u64,
    /// Tokens generated.
    pub generated: u64,
}

/// KV cache, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Kv {
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks that can be allocated.
    pub total: usize,
    /// Blocks in use by requests.
    pub used: usize,
    /// Free blocks, cached ones included.
    pub free: usize,
    /// Blocks, used or free, that the prefix cache can find.
    pub cached: usize,
    /// `used / total`.
    pub usage: f64,
    /// Fraction of looked-up prompt tokens that were cached; `null` before the first.
    pub hit_rate: Option<f64>,
}

/// Drafts of all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Speculation {
    /// Number of drafts: each is one or more tokens that a step verified for a request.
    pub drafts: u64,
    /// Draft tokens that were verified.
    pub draft_tokens: u64,
    /// Draft tokens that were accepted.
    pub accepted_tokens: u64,
    /// `accepted_tokens / draft_tokens`; `null` before the first.
    pub acceptance_rate: Option<f64>,
    /// Mean acceptance length: tokens that a draft's step brought its request, `1 + accepted_tokens / drafts`; `null`
    /// before the first.
    pub mean_acceptance_length: Option<f64>,
}

impl Speculation {
    /// The same counts, with what follows from them.
    #[must_use]
    pub fn with_rates(self) -> Self {
        let Self { drafts, draft_tokens, accepted_tokens, .. } = self;
        let of = |all: u64| (all > 0).then(|| accepted_tokens as f64 / all as f64);
        Self {
            acceptance_rate: of(draft_tokens),
            mean_acceptance_length: of(drafts).map(|accepted| 1.0 + accepted),
            ..self
        }
    }
}

/// The last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Recent {
    /// Length of the window, which is shorter at first.
    pub seconds: f64,
    /// Prompt tokens per second.
    pub prompt_tokens_per_second: f64,
    /// Generated tokens per second.
    pub generated_tokens_per_second: f64,
    /// Time to first token.
    pub ttft_ms: Spread,
    /// Inter-token latency.
    pub itl_ms: Spread,
}

/// Percentiles, in buckets 5 percent wide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Spread {
    /// Number of samples.
    pub count: u64,
    /// Median; `null` without samples.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// Steps of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Steps {
    /// Number of steps.
    pub count: u64,
    /// Fraction of steps that replayed a captured CUDA graph; `null` before the first.
    pub replay_rate: Option<f64>,
    /// Measured time that each prompt token adds to a step, in seconds; `null` before the first step.
    pub prefill_seconds_per_token: Option<f64>,
    /// Measured time of a decode step of all running requests, in seconds; `null` before the first step.
    pub decode_step_seconds: Option<f64>,
    /// Time of each phase since the start.
    pub phases: Phases,
}

/// Seconds of each phase, of all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Phases {
    /// Scheduling.
    pub plan: f64,
    /// Waiting for the turn, where engines share a machine.
    pub turn: f64,
    /// Preparing the inputs of the forward pass.
    pub pack: f64,
    /// The forward pass.
    pub forward: f64,
    /// Sampling.
    pub sample: f64,
    /// Appending tokens, and finishing requests.
    pub apply: f64,
}

/// Connections and streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Http {
    /// Open connections.
    pub connections: usize,
    /// Responses that are being streamed.
    pub streams: usize,
}
