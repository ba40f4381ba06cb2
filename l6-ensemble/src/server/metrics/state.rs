//! What `GET /strata/state` tells: the server at one glance, for the page and for people with `curl`.

use serde::Serialize;
use utoipa::ToSchema;

/// The server at one glance. Counts are since the start; what is called `recent` is of the last minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct State {
    /// The model's name.
    pub model: String,
    /// The program's version.
    pub version: String,
    /// `serving`, `draining` or `failed`.
    pub state: String,
    /// Seconds since the start.
    pub uptime_seconds: f64,
    /// How many are where.
    pub requests: Requests,
    /// Who runs, in the order in which they came: the first [`super::MOST_SHOWN`] of them.
    pub running: Vec<Running>,
    /// Tokens in and out.
    pub tokens: Tokens,
    /// Memory for keys and values.
    pub kv: Kv,
    /// What clients have felt of late.
    pub recent: Recent,
    /// What the engine has done.
    pub steps: Steps,
    /// How long the work that is there takes at the speed of the last steps; `null` before the first one.
    pub wait_seconds: Option<f64>,
    /// Sockets.
    pub http: Http,
}

/// How many are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Requests {
    /// In the batch.
    pub running: usize,
    /// In the queue.
    pub waiting: usize,
    /// Seats in the batch.
    pub max_running: usize,
    /// Ended, for whatever reason.
    pub finished: u64,
    /// Refused because enough others waited.
    pub rejected: u64,
    /// Times that a request gave its blocks up to others.
    pub preemptions: u64,
    /// The part of those that ended that was preempted at least once; `null` before the first.
    pub preempted_once: Option<f64>,
}

/// One that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Running {
    /// The engine's number for it.
    pub id: u64,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Those of them that were in the cache.
    pub cached: usize,
    /// Tokens of its answer so far.
    pub generated: usize,
    /// The most tokens of its answer.
    pub max_tokens: usize,
    /// Times it was preempted.
    pub preemptions: u32,
}

/// Tokens in and out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Tokens {
    /// Of prompts that have no answer yet.
    pub queued: usize,
    /// Of answers that are under way, at most.
    pub owed: usize,
    /// Of prompts that were answered.
    pub prompt: u64,
    /// Those of them that were in the cache.
    pub cached: u64,
    /// Of answers.
    pub generated: u64,
}

/// Memory for keys and values, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Kv {
    /// Tokens a block.
    pub block_size: usize,
    /// All that can be handed out.
    pub total: usize,
    /// In the hands of requests.
    pub used: usize,
    /// Free; some of them still hold what can be found again.
    pub free: usize,
    /// Blocks, used or free, that are found again by what they hold.
    pub cached: usize,
    /// `used / total`.
    pub usage: f64,
    /// The part of looked-up prompt tokens that was in the cache; `null` before the first.
    pub hit_rate: Option<f64>,
}

/// The last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Recent {
    /// Its length, which is less at first.
    pub seconds: f64,
    /// Tokens of prompts a second.
    pub prompt_tokens_per_second: f64,
    /// Tokens of answers a second.
    pub generated_tokens_per_second: f64,
    /// From a request's arrival to its first token.
    pub ttft_ms: Spread,
    /// Between two tokens of an answer.
    pub itl_ms: Spread,
}

/// What most, nearly all and the unlucky felt, to a twentieth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Spread {
    /// Of how many.
    pub count: u64,
    /// Half of them took at most this; `null` where there are none.
    pub p50: Option<f64>,
    /// Nine of ten.
    pub p90: Option<f64>,
    /// Ninety-nine of a hundred.
    pub p99: Option<f64>,
}

/// What the engine has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Steps {
    /// How many.
    pub count: u64,
    /// The part that had been captured and was launched as a whole; `null` before the first.
    pub replay_rate: Option<f64>,
    /// Where their time went since the start.
    pub phases: Phases,
}

/// Seconds of each part of all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Phases {
    /// Deciding who takes part.
    pub plan: f64,
    /// Writing the arrays of the forward pass.
    pub pack: f64,
    /// The forward pass.
    pub forward: f64,
    /// Choosing tokens.
    pub sample: f64,
    /// Appending them, and ending who is done.
    pub apply: f64,
}

/// Sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Http {
    /// Connections that are open.
    pub connections: usize,
    /// Answers that are being streamed.
    pub streams: usize,
}
