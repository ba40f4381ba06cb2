//! Interface between the scheduler and what runs a step.

use std::time::Duration;

use crate::token_lists::TokenLists;
use crate::{CostModel, FinishReason, KvCompletion, Note, RequestId, StepView};

/// Capabilities of an executor.
///
/// The scheduler goes by [`can_store`](Caps::can_store) and [`cost`](Caps::cost), [`EngineCore`](crate::EngineCore) by
/// [`async_scheduling`](Caps::async_scheduling). The others are information. In particular no step is cut to
/// `max_tokens` or `max_seqs`: steps keep the limits of the [`SchedulerConfig`](crate::SchedulerConfig), for which the
/// executor must have room. (So an executor without limits of its own may return [`Caps::default`], with zeros.)
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Caps {
    /// Number of tokens of a step that the executor has room for. Information only.
    pub max_tokens: usize,
    /// Number of requests of a step that the executor has room for. Information only.
    pub max_seqs: usize,
    /// Row counts of captured decode steps: a step that only decodes is padded to one of them. Empty: no padding.
    pub decode_widths: Vec<usize>,
    /// Whether it can store blocks elsewhere: without, [`Retain::Offload`](crate::Retain) is as
    /// [`Retain::Free`](crate::Retain), and no step has a [`StepOp::Store`](crate::StepOp).
    pub can_store: bool,
    /// Whether a step can be launched before the step before it was collected. The executor then feeds tokens that it has
    /// just sampled to the rows that [await](crate::StepRow::awaits) them.
    pub async_scheduling: bool,
    /// Cost model of a step, if known.
    pub cost: Option<CostModel>,
}

/// Runs steps: the model, or a fake under a virtual clock. An executor sees tokens and block tables, never a queue; the
/// scheduler sees numbers, never a tensor.
///
/// An engine that shuts down aborts its requests, gives stores a bounded time ([`EngineCore::flush`]) and drops the
/// executor. Loads and stores that have begun may not have ended then. So a drop waits for those, because they use the
/// blocks' memory, and it may come without [`Executor::end`] for requests that load.
///
/// [`EngineCore::flush`]: crate::EngineCore::flush
pub trait Executor {
    /// What the executor needs of a request beside its tokens: sampling parameters, or the output of a fake.
    type Job;

    /// Why a step could not be run.
    type Error: std::error::Error + From<MalformedOutput> + Send + Sync + 'static;

    /// Capabilities.
    fn caps(&self) -> Caps;

    /// Registers a request, before its first step. [`BySeat`](crate::BySeat) is a table for what must be kept of it.
    fn begin(&mut self, id: RequestId, job: Self::Job);

    /// Begins a step. It has rows, or [operations on blocks](crate::StepOp), or both; a step with neither is not
    /// launched, though it counts in [`SchedulerStats::steps`](crate::SchedulerStats). A device returns as soon as it
    /// has the work, and runs its steps in the order of their launch. An executor that computes on the caller's thread
    /// may leave everything to [`Executor::collect`].
    ///
    /// # Errors
    /// [`Executor::Error`]: the step does not run, and the scheduler abandons it.
    fn launch(&mut self, step: &StepView<'_>) -> Result<StepHandle, Self::Error> {
        Ok(StepHandle::of(step))
    }

    /// Waits for the end of a launched step, and returns what it has sampled: at least one token for every row that
    /// samples, in the order of the rows. Steps are collected in the order of their launch.
    ///
    /// What the device returns must be kept by the index of its row, for all rows that sampled when the step was
    /// launched. [`StepRow::samples`](crate::StepRow) can have become `false` since, so pairing the device's samples in
    /// order with the rows that sample now gives tokens to other requests. Go through the rows with their indices, and
    /// skip those that sample no more.
    ///
    /// `step` is the step as it is known now. If it was planned ahead, the step before it may have ended some of its
    /// requests: their rows sample no more, and nothing is returned for them. [`Executor::end`] was called for these
    /// requests, and others can have their ids, so state is looked up for rows that sample only.
    ///
    /// # Errors
    /// [`Executor::Error`]: no result of the step counts, and the scheduler abandons it; loads and stores that it has
    /// begun must have ended, and are not reported. A failure of one request is not an error, but that request's finish
    /// reason, [`FinishReason::Failed`].
    fn collect(
        &mut self,
        handle: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), Self::Error>;

    /// Waits for the end of a launched step whose result does not count, because the step before it has failed. Only an
    /// executor with [`Caps::async_scheduling`] has such steps. If it is dropped while steps run, it waits for them on
    /// its own.
    fn discard(&mut self, handle: StepHandle) {
        let _ = handle;
    }

    /// Runs a step: launches and collects it.
    ///
    /// # Errors
    /// As those two.
    fn execute(&mut self, step: &StepView<'_>, out: &mut StepOutput) -> Result<(), Self::Error> {
        let handle = self.launch(step)?;
        self.collect(handle, step, out)
    }

    /// Reports what has ended since the last call of the loads and stores that steps have begun. Each ends once: one that
    /// fails, or takes too long, ends too, with fewer tokens. It must not wait.
    fn poll(&mut self, completed: &mut Vec<KvCompletion>) {
        let _ = completed;
    }

    /// Number of chunks whose store has ended for the scheduler, and which are still on their way to a disk or a network.
    /// They are lost if the executor is dropped. It falls at an [`Executor::poll`].
    fn num_unwritten(&self) -> usize {
        0
    }

    /// Reports that a request is about to end with [`FinishReason::Failed`], because a step with it could not be run.
    fn fail(&mut self, id: RequestId, error: &Self::Error) {
        let _ = (id, error);
    }

    /// Reports that a request has ended, for whatever reason. Another request can have its id from now on. A step that
    /// runs may still have a row of it, which samples no more.
    fn end(&mut self, id: RequestId, reason: FinishReason);
}

/// A launched step, to be collected or discarded once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a launched step must be collected or discarded"]
pub struct StepHandle {
    /// Number of the step.
    pub step: u64,
}

impl StepHandle {
    /// Handle of this step.
    pub fn of(step: &StepView<'_>) -> Self {
        Self { step: step.step().number }
    }
}

/// Output of a step. The memory is reused.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// Tokens of rows, by index of the row in the step, and its finish reason.
    rows: TokenLists<(usize, Option<FinishReason>)>,
    /// Drafts of rows, by index of the row in the step.
    proposals: TokenLists<usize>,
    /// Notes on rows, by index of the row in the step.
    notes: Vec<(usize, Note)>,
    /// Durations of the phases of the step.
    pub phases: Phases,
    /// Number of rows that a captured decode step was padded to. `None` if the kernels were launched one by one, or on
    /// a CPU.
    pub replayed: Option<usize>,
}

/// Durations of the phases of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Planning: choosing the rows.
    pub plan: Duration,
    /// Waiting for the turn, where engines share a machine ([`Turns`](crate::Turns)).
    pub turn: Duration,
    /// Preparing the arrays of the forward pass.
    pub pack: Duration,
    /// The forward pass; on a device, enqueuing it.
    pub forward: Duration,
    /// Sampling, and passing tokens on to their readers; on a device, mostly waiting for it.
    pub sample: Duration,
    /// Appending the tokens, and ending requests.
    pub apply: Duration,
}

impl Phases {
    /// Sum of all phases.
    pub fn total(&self) -> Duration {
        self.plan + self.turn + self.pack + self.forward + self.sample + self.apply
    }
}

impl StepOutput {
    /// Clears the output for another step.
    #[inline]
    pub fn clear(&mut self) {
        self.rows.clear();
        self.proposals.clear();
        self.notes.clear();
        self.phases = Phases::default();
        self.replayed = None;
    }

    /// Adds the tokens of row `row` of the step: several if drafts were accepted or a guide forced tokens. Behind the
    /// accepted drafts there is always one more token. `finish` ends the request with the last of them; stop tokens and
    /// length limits are not the executor's concern. Rows come in their order.
    pub fn push(&mut self, row: usize, tokens: &[u32], finish: Option<FinishReason>) {
        self.rows.push((row, finish), tokens);
    }

    /// Proposes drafts for the next step of the request of row `row`, which has sampled in this step: tokens that may
    /// follow the last one that was pushed. At most
    /// [`num_speculative_tokens`](crate::SchedulerConfig::num_speculative_tokens) of them are kept. Rows come in their
    /// order.
    pub fn propose(&mut self, row: usize, drafts: &[u32]) {
        self.proposals.push(row, drafts);
    }

    /// Iterates over the rows with proposals: index in the step, and drafts.
    pub fn proposals(&self) -> impl Iterator<Item = (usize, &[u32])> + '_ {
        self.proposals.iter()
    }

    /// Adds a note on row `row` of the step, whether or not the row samples. A note is kept until its request ends; of
    /// several notes on one request, the last one counts.
    pub fn note(&mut self, row: usize, note: Note) {
        self.notes.push((row, note));
    }

    /// Iterates over the notes: index of the row in the step, and the note.
    pub fn notes(&self) -> impl Iterator<Item = (usize, &Note)> + '_ {
        self.notes.iter().map(|(row, note)| (*row, note))
    }

    /// Iterates over the rows: index in the step, tokens, and finish reason.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &[u32], Option<FinishReason>)> + '_ {
        self.rows.iter().map(|((row, finish), tokens)| (row, tokens, finish))
    }
}

/// An executor returned an output that does not fit the step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedOutput(pub String);

impl From<String> for MalformedOutput {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl From<&str> for MalformedOutput {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}

/// Why [`ModelRunner`](crate::ModelRunner) could not run a step.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// Error of the model.
    #[error(transparent)]
    Model(#[from] l2_model::Error),
    /// Error of the KV memory.
    #[error(transparent)]
    Kv(#[from] l3_paged_kv::KvError),
    /// Error of the device.
    #[error("cuda: {0}")]
    Cuda(#[from] l1_tensor::cuda::Error),
    /// Error of the sampler.
    #[error(transparent)]
    Sampler(#[from] l4_sampler::Error),
    /// The step cannot be run by this executor, or its output does not fit the step.
    #[error(transparent)]
    Malformed(#[from] MalformedOutput),
}
