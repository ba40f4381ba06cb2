//! What runs a step, and what comes out of it.

use std::time::Duration;

use crate::{CostModel, FinishReason, RequestId, StepView};

/// What an executor can do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Caps {
    /// The most tokens of a step.
    pub max_tokens: usize,
    /// The most requests of a step.
    pub max_seqs: usize,
    /// Numbers of rows to which it pads a step that only decodes, because it has them captured. Empty: it does not pad.
    pub decode_widths: Vec<usize>,
    /// What a step takes, if that is known.
    pub cost: Option<CostModel>,
}

/// Runs steps: the model, or something that pretends to be one under another clock. It sees tokens and block tables and
/// never a queue; the scheduler sees numbers and never a tensor.
pub trait Executor {
    /// What it must know of a request beside its tokens: how to sample, or what to pretend.
    type Job;

    /// What it can do.
    fn caps(&self) -> Caps;

    /// A request was added, in this place (see [`StepRow::place`](crate::StepRow::place)).
    fn begin(&mut self, place: u32, id: RequestId, job: Self::Job);

    /// Run a step: tokens for every row that samples, in the order of the rows.
    ///
    /// # Errors
    /// [`ExecuteError`]: nothing of the step counts, and the scheduler takes it back. What is wrong with one request only is not
    /// an error but that request's end, [`FinishReason::Failed`].
    fn execute(&mut self, step: &StepView<'_>, out: &mut StepOutput) -> Result<(), ExecuteError>;

    /// A request is about to end with [`FinishReason::Failed`], because of a step that could not be run.
    fn fail(&mut self, place: u32, id: RequestId, error: &ExecuteError) {
        let _ = (place, id, error);
    }

    /// A request has ended, for whatever reason: its place may be somebody else's from now on.
    fn end(&mut self, place: u32, id: RequestId, reason: FinishReason);
}

/// What comes out of a step. Memory is used again.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    tokens: Vec<u32>,
    rows: Vec<OutputRow>,
    /// What the parts of the step took.
    pub phases: Phases,
    /// Of a step that was captured before and launched as a whole: the rows that it was filled up to. `None` where its
    /// kernels were launched one by one, or on a CPU.
    pub replayed: Option<usize>,
}

/// One row's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OutputRow {
    /// Number of the row in the step.
    row: usize,
    /// Its tokens end here.
    end: usize,
    finish: Option<FinishReason>,
}

/// What the parts of a step took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Deciding who takes part.
    pub plan: Duration,
    /// Writing the arrays of the forward pass.
    pub pack: Duration,
    /// The forward pass; on a device, telling it what to do.
    pub forward: Duration,
    /// Choosing tokens, and telling who waits for them; on a device, waiting for it above all.
    pub sample: Duration,
    /// Appending them, and ending who is done.
    pub apply: Duration,
}

impl Phases {
    /// All parts.
    pub fn total(&self) -> Duration {
        self.plan + self.pack + self.forward + self.sample + self.apply
    }
}

impl StepOutput {
    /// Begin another step.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.rows.clear();
        self.phases = Phases::default();
        self.replayed = None;
    }

    /// Row `row` of the step samples these tokens (several where drafts were accepted or a guide left no choice), and ends
    /// with the last of them if there is a reason beyond its end tokens and lengths, which are not the executor's business.
    /// Rows come in their order.
    pub fn push(&mut self, row: usize, tokens: &[u32], finish: Option<FinishReason>) {
        self.tokens.extend_from_slice(tokens);
        self.rows.push(OutputRow { row, end: self.tokens.len(), finish });
    }

    /// Row by row: which of the step, its tokens, and why it ends.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &[u32], Option<FinishReason>)> + '_ {
        self.rows.iter().enumerate().map(|(i, output)| {
            let start = i.checked_sub(1).map_or(0, |before| self.rows[before].end);
            (output.row, &self.tokens[start..output.end], output.finish)
        })
    }
}

/// A step that could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The model.
    #[error(transparent)]
    Model(#[from] l2_model::Error),
    /// The memory of keys and values.
    #[error(transparent)]
    Kv(#[from] l3_paged_kv::KvError),
    /// The device.
    #[error("cuda: {0}")]
    Cuda(#[from] l1_tensor::cuda::Error),
    /// The sampler.
    #[error(transparent)]
    Sampler(#[from] l4_sampler::Error),
    /// An executor that does not keep its side: what came out does not fit the step.
    #[error("{0}")]
    Malformed(String),
}
