//! Lines of a recording.

use serde::{Deserialize, Serialize};

use super::kv::KvEvent;
use crate::{Phases, SchedulerConfig, StepShape};

/// Version of the format, in the header. It changes when a reader of the version before would misunderstand.
pub(super) const VERSION: u32 = 1;

/// Header of a recording: the first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub strata_trace: u32,
    /// Name of the model, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Name of the policy.
    pub policy: String,
    /// Limits of the scheduler.
    pub config: TracedConfig,
}

impl Header {
    /// Header of an engine that was not recorded.
    pub(super) fn unknown() -> Self {
        let (policy, config) = (String::new(), TracedConfig::default());
        Self { strata_trace: VERSION, model: None, policy, config }
    }
}

/// Fields of a [`SchedulerConfig`] that decide what a run looks like, with the same names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they are the fields of SchedulerConfig")]
pub struct TracedConfig {
    pub block_size: usize,
    pub num_gpu_blocks: usize,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    pub long_prefill_token_threshold: usize,
    pub enable_chunked_prefill: bool,
    pub enable_prefix_caching: bool,
    pub max_model_len: usize,
    pub watermark: f64,
}

impl From<&SchedulerConfig> for TracedConfig {
    fn from(config: &SchedulerConfig) -> Self {
        Self {
            block_size: config.block_size,
            num_gpu_blocks: config.num_gpu_blocks,
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            long_prefill_token_threshold: config.long_prefill_token_threshold,
            enable_chunked_prefill: config.enable_chunked_prefill,
            enable_prefix_caching: config.enable_prefix_caching,
            max_model_len: config.max_model_len,
            watermark: config.watermark,
        }
    }
}

/// An event: every line but the first. Requests are identified by their number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A request was accepted.
    Arrived {
        /// Request id.
        id: u64,
        /// Time of arrival that the request states.
        at_us: f64,
        /// Number of prompt tokens.
        prompt: usize,
        /// Maximum number of output tokens.
        max_tokens: usize,
        /// Priority: a lower value runs earlier.
        priority: i64,
        /// Job that the request is a step of. Older recordings do not have it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<String>,
    },
    /// A request was rejected on arrival.
    Rejected {
        /// Request id.
        id: u64,
        /// Time of arrival.
        at_us: f64,
        /// [`Rejection::code`](crate::Rejection::code).
        reason: String,
    },
    /// A step was planned and executed.
    Step(StepEvent),
    /// The first output token of a request was sampled.
    FirstToken {
        /// Request id.
        id: u64,
        /// Step that sampled it.
        step: u64,
        /// End of that step.
        at_us: f64,
    },
    /// A request ended.
    Ended {
        /// Request id.
        id: u64,
        /// Step that reported it.
        step: u64,
        /// End of that step.
        at_us: f64,
        /// [`FinishReason::as_str`](crate::FinishReason::as_str).
        reason: String,
        /// Number of output tokens.
        tokens: usize,
        /// Number of preemptions.
        preemptions: u32,
    },
}

/// A step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepEvent {
    /// Number of the step.
    pub step: u64,
    /// Time of planning. The step ends when all its phases are over.
    pub at_us: f64,
    /// Rows of the step.
    pub rows: Vec<Row>,
    /// Drafts of the rows that have some, in the order of the rows. Older recordings do not have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drafts: Vec<RowDrafts>,
    /// Number of running requests.
    pub running: usize,
    /// Number of waiting requests.
    pub waiting: usize,
    /// Requests that were preempted.
    pub preempted: Vec<u64>,
    /// Requests that ended, with their finish reasons.
    pub finished: Vec<(u64, String)>,
    /// State of the block pool while the step ran.
    pub kv: Kv,
    /// Leases and transfers. Older recordings do not have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kv_events: Vec<KvEvent>,
    /// Shape that the step was planned with. `None`: the composer is the default one, whose steps all are mixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<TracedShape>,
    /// Durations of the phases.
    pub phases_us: PhasesUs,
    /// Whether the step was planned and then abandoned, because its executor failed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub abandoned: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl StepEvent {
    /// Number of tokens computed.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens).sum()
    }

    /// Number of tokens sampled.
    pub fn new_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.new).sum()
    }

    /// Microseconds from planning to the end of the last phase.
    pub fn duration_us(&self) -> f64 {
        self.phases_us.parts().iter().sum()
    }
}

/// Row of a step. In a file it is an array, because there are many: `[0,"decode",1,12,0,1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RowTuple", into = "RowTuple")]
pub struct Row {
    /// Request id.
    pub id: u64,
    /// Phase of the request.
    pub phase: RowPhase,
    /// Number of tokens of the row, drafts included.
    pub tokens: usize,
    /// Number of tokens computed before.
    pub computed: usize,
    /// For an admitted request: number of tokens hit in the cache, which are among those computed before.
    pub cached: usize,
    /// Number of tokens sampled.
    pub new: usize,
}

type RowTuple = (u64, RowPhase, usize, usize, usize, usize);

impl From<RowTuple> for Row {
    fn from((id, phase, tokens, computed, cached, new): RowTuple) -> Self {
        Self { id, phase, tokens, computed, cached, new }
    }
}

impl From<Row> for RowTuple {
    fn from(row: Row) -> Self {
        (row.id, row.phase, row.tokens, row.computed, row.cached, row.new)
    }
}

/// Drafts of a row. In a file it is an array: `[2,5,3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(usize, usize, usize)", into = "(usize, usize, usize)")]
pub struct RowDrafts {
    /// Index of the row in its step.
    pub row: usize,
    /// Number of drafts that the step verified: the last tokens of the row.
    pub proposed: usize,
    /// Number of them that were accepted, the first ones.
    pub accepted: usize,
}

impl From<(usize, usize, usize)> for RowDrafts {
    fn from((row, proposed, accepted): (usize, usize, usize)) -> Self {
        Self { row, proposed, accepted: accepted.min(proposed) }
    }
}

impl From<RowDrafts> for (usize, usize, usize) {
    fn from(RowDrafts { row, proposed, accepted }: RowDrafts) -> Self {
        (row, proposed, accepted)
    }
}

/// What a request does in a step. The scheduler makes no difference between these, but a reader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowPhase {
    /// Computes its prompt, or a chunk of it.
    Prefill,
    /// Computes its newest output token and samples the next one.
    Decode,
    /// Computes its newest output token and drafts behind it, and samples as long as tokens equal the drafts.
    Verify,
    /// Was preempted, and computes its tokens again.
    Resumed,
}

/// A [`StepShape`], as it is recorded: `"mixed"`, `"decode_only"` or `{"prefill":{"chunk":64}}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TracedShape {
    /// Rows that decode and chunks of prompts.
    Mixed,
    /// Rows that decode only.
    DecodeOnly,
    /// Chunks of prompts only.
    Prefill {
        /// Maximum number of tokens of the step; 0: as many as a step takes.
        chunk: usize,
    },
}

impl From<StepShape> for TracedShape {
    fn from(shape: StepShape) -> Self {
        match shape {
            StepShape::Mixed => Self::Mixed,
            StepShape::DecodeOnly => Self::DecodeOnly,
            StepShape::Prefill { chunk } => Self::Prefill { chunk },
        }
    }
}

/// State of the block pool, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kv {
    /// Blocks that requests can use: all but the null block.
    pub total: usize,
    /// Blocks without a user.
    pub free: usize,
    /// Blocks that can be hit in the prefix cache, used or free.
    pub findable: usize,
    /// Blocks that leases hold; one that several share counts once.
    pub leased: usize,
}

/// [`Phases`](crate::Phases), in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhasesUs {
    /// Planning.
    pub plan: f64,
    /// Waiting for the turn, where engines share a machine. Older recordings do not have it.
    #[serde(default)]
    pub turn: f64,
    /// Preparing the arrays of the forward pass.
    pub pack: f64,
    /// The forward pass.
    pub forward: f64,
    /// Sampling.
    pub sample: f64,
    /// Appending tokens, and ending requests.
    pub apply: f64,
}

impl PhasesUs {
    /// Number of phases.
    pub const COUNT: usize = 6;

    /// Names of the phases, in their order.
    pub const NAMES: [&str; Self::COUNT] = ["plan", "turn", "pack", "forward", "sample", "apply"];

    /// Durations of the phases, in their order.
    pub fn parts(&self) -> [f64; Self::COUNT] {
        [self.plan, self.turn, self.pack, self.forward, self.sample, self.apply]
    }
}

impl From<Phases> for PhasesUs {
    fn from(phases: Phases) -> Self {
        // Whole nanoseconds, so that microseconds have at most three decimals.
        let us = |duration: std::time::Duration| duration.as_nanos() as f64 / 1000.0;
        Self {
            plan: us(phases.plan),
            turn: us(phases.turn),
            pack: us(phases.pack),
            forward: us(phases.forward),
            sample: us(phases.sample),
            apply: us(phases.apply),
        }
    }
}
