//! The lines of a recording.

use serde::{Deserialize, Serialize};

use crate::{Phases, SchedulerConfig};

/// The version of the format, in its first line. It changes when a reader of the version before would misunderstand.
pub(super) const VERSION: u32 = 1;

/// The first line: what ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    pub strata_trace: u32,
    /// The model, if anybody said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The policy's name.
    pub policy: String,
    /// The scheduler's limits.
    pub config: TracedConfig,
}

/// What of a [`SchedulerConfig`] decides how a run looks. Names are those of its fields.
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

/// Every line but the first. Requests are named by their number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A request was taken.
    Arrived {
        /// Whose.
        id: u64,
        /// When it came, by the request's own word.
        at_us: f64,
        /// Tokens of its prompt.
        prompt: usize,
        /// The most tokens of its answer.
        max_tokens: usize,
        /// How urgent it is: lower goes first.
        priority: i64,
    },
    /// A request was refused on arrival.
    Rejected {
        /// Whose.
        id: u64,
        /// When it came.
        at_us: f64,
        /// [`Rejection::code`](crate::Rejection::code).
        reason: String,
    },
    /// A step was planned and run.
    Step(StepEvent),
    /// A request has the first token of its answer.
    FirstToken {
        /// Whose.
        id: u64,
        /// The step that chose it.
        step: u64,
        /// The end of that step.
        at_us: f64,
    },
    /// A request has ended.
    Ended {
        /// Whose.
        id: u64,
        /// The step that told of it.
        step: u64,
        /// The end of that step.
        at_us: f64,
        /// [`FinishReason::as_str`](crate::FinishReason::as_str).
        reason: String,
        /// Tokens of its answer.
        tokens: usize,
        /// How often it was preempted.
        preemptions: u32,
    },
}

/// A step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepEvent {
    /// Its number.
    pub step: u64,
    /// When it was planned. It ends when all its phases are over.
    pub at_us: f64,
    /// Who took part.
    pub rows: Vec<Row>,
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Who was preempted to make room.
    pub preempted: Vec<u64>,
    /// Who ended, and why.
    pub finished: Vec<(u64, String)>,
    /// The pool while the step ran.
    pub kv: Kv,
    /// What its parts took.
    pub phases_us: PhasesUs,
    /// Whether it was planned and never counted: its executor failed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub abandoned: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl StepEvent {
    /// Tokens that were computed.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens).sum()
    }

    /// Tokens that were chosen.
    pub fn new_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.new).sum()
    }

    /// Microseconds from its plan to the end of its last phase.
    pub fn duration_us(&self) -> f64 {
        self.phases_us.parts().iter().sum()
    }
}

/// One request's part of a step. In a file an array, because there are many: `[0,"decode",1,12,0,1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RowTuple", into = "RowTuple")]
pub struct Row {
    /// Whose.
    pub id: u64,
    /// What it did.
    pub phase: RowPhase,
    /// Tokens of this step.
    pub tokens: usize,
    /// Tokens whose keys and values it had before.
    pub computed: usize,
    /// Of an admission: tokens that were found in the cache, which are among those computed before.
    pub cached: usize,
    /// Tokens that were chosen for it.
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

/// What a request does in a step. To the scheduler it is all one, tokens that are computed; to who looks it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowPhase {
    /// It computes its prompt, or a chunk of it.
    Prefill,
    /// It computes the last token of its answer, to have the next one chosen.
    Decode,
    /// It was preempted, and computes again what it had.
    Resumed,
}

/// The pool, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kv {
    /// Blocks that can be handed out: all but the null block.
    pub total: usize,
    /// Those that nobody uses.
    pub free: usize,
    /// Those that can be found by what they hold, used or free.
    pub findable: usize,
    /// Those that are kept for nobody who runs.
    pub leased: usize,
}

/// [`Phases`], in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhasesUs {
    /// Deciding who takes part.
    pub plan: f64,
    /// Writing the arrays of the forward pass.
    pub pack: f64,
    /// The forward pass.
    pub forward: f64,
    /// Choosing tokens.
    pub sample: f64,
    /// Appending them, and telling.
    pub apply: f64,
}

impl PhasesUs {
    /// Their names, in their order.
    pub const NAMES: [&str; 5] = ["plan", "pack", "forward", "sample", "apply"];

    /// In their order.
    pub fn parts(&self) -> [f64; 5] {
        [self.plan, self.pack, self.forward, self.sample, self.apply]
    }
}

impl From<Phases> for PhasesUs {
    fn from(phases: Phases) -> Self {
        // A whole number of nanoseconds: in microseconds it has three digits behind the point at most.
        let us = |duration: std::time::Duration| duration.as_nanos() as f64 / 1000.0;
        Self {
            plan: us(phases.plan),
            pack: us(phases.pack),
            forward: us(phases.forward),
            sample: us(phases.sample),
            apply: us(phases.apply),
        }
    }
}
