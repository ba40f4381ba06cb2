//! The executor of the real model.
//!
//! ```text
//! pack      tokens of all rows, one row behind the other; block table and slots of each row
//! forward   one pass through the model; meanwhile the masks of guided rows
//! sample    a row of logits -> a token, by the request's sampling parameters -> text, stop strings, finish reasons
//! ```
//!
//! The scheduler sees numbers only. The runner keeps the other state of a request (sampling parameters, history, guide
//! and text) until the request ends; a step finds it by the request's seat.

mod adapters;
mod called;
mod capture;
mod choice;
mod draft;
mod job;
mod pack;
mod sample;

use std::sync::Arc;
use std::time::Instant;

use l1_tensor::{DType, Device, Runtime, Tensor};
use l2_model::tokenizer::Tokenizer;
use l2_model::{Batch, Decoder, Tap, Workspace, WorkspaceSpec};
use l3_paged_kv::{ForwardMeta, PagedKv, StepState};
use l4_sampler::draft::{Drafted, Drafter};
use l4_sampler::guide::MaskAhead;
use l4_sampler::output::NewTokens;
use l4_sampler::{Row, Sampled, Sampler, TokenLogprobs};

pub use draft::DraftCounts;
pub use job::{ChoiceJob, OutputEnd, OutputSink, RelayFailure, TokenDelta};
pub use pack::Packed;
pub(crate) use sample::emptied;

use crate::adapters::AdapterLimits;
use crate::speculation::WindowMode;
use crate::tiers::{TierMover, Tiers};
use crate::{
    AdapterRejection, BySeat, Caps, ExecuteError, Executor, FinishReason, KvCompletion, Phases,
    RequestId, RowView, SchedulerConfig, StepHandle, StepOutput, StepRow, StepView, Turn, Turns,
};
use adapters::{AdapterTable, NO_ADAPTER};
use capture::Captured;
use choice::RunningChoice;
use draft::Speculation;

/// Receives every row of logits that a token is chosen from: request id, position of that token in prompt and output,
/// and the row as the model computed it.
pub type LogitsTap = Box<dyn FnMut(RequestId, usize, &[f32]) + Send>;

/// Executor of the real model: decoder, KV memory, sampler, and the state of each choice. Its buffers are made once: a
/// steady step of plain requests allocates nothing.
pub struct ModelRunner {
    /// Captured steps. First, because fields are dropped in their order, and the graphs hold addresses of the others.
    captured: Captured,
    /// Memories behind the pool. `None`: keys and values stay in the pool.
    tiers: Option<TierMover>,
    /// Turns that this runner shares with those of other engines, and its own turn while a step runs.
    turns: Option<Turns>,
    turn: Option<Turn>,
    decoder: Arc<Decoder>,
    tokenizer: Option<Tokenizer>,
    ws: Workspace,
    kv: PagedKv,
    meta: ForwardMeta,
    packed: Packed,
    sampler: Sampler,
    caps: Caps,
    max_model_len: usize,
    /// Choices of all unfinished requests.
    choices: BySeat<RunningChoice>,
    /// Thread that computes masks while the model runs. Started for the first request with a guide.
    ahead: Option<MaskAhead>,
    /// Choices whose masks are being computed.
    masks: sample::Masks,
    /// Maximum number of bytes of all large guides together.
    guide_memory: usize,
    /// Bytes of the large guides in the last step that had any.
    large_guides: usize,
    sampled: Vec<Sampled>,
    /// Rows of logits that tokens were taken from.
    read: sample::ReadRows,
    /// What is new in one row, and its log probabilities. Both are reused for every row.
    new: NewTokens,
    rated: Vec<TokenLogprobs>,
    /// Drafts for the next step. `None`: no speculation.
    speculation: Option<Speculation>,
    /// Adapters of the unfinished requests, and which are allowed. `None`: none.
    adapters: AdapterTable,
    adapter_limits: Option<AdapterLimits>,
    /// Hidden rows that the drafter reads.
    taps: Vec<Tap>,
    /// Of the launched step: durations of its phases, and the width of the captured step that was replayed.
    phases: Phases,
    replayed: Option<usize>,
    /// Memory for the sampler's rows and for drafts that were drawn, empty between steps.
    rows: Vec<Row<'static>>,
    drafted: Vec<Option<Drafted<'static>>>,
    tap: Option<LogitsTap>,
}

impl ModelRunner {
    /// Creates a runner with memory for the blocks of a scheduler of this configuration. Keys and values are stored as
    /// `kv_dtype`: F32, BF16 or F8E4M3. Without a `tokenizer` there is no text, and there are no stop strings.
    ///
    /// # Errors
    /// A `max_model_len` beyond the model's context; too little memory.
    pub fn new(
        decoder: Arc<Decoder>,
        tokenizer: Option<Tokenizer>,
        rt: &Runtime,
        config: &SchedulerConfig,
        kv_dtype: DType,
    ) -> Result<Self, ExecuteError> {
        let (wanted, longest) = (config.max_model_len, decoder.config().max_context);
        if wanted > longest {
            let why = format!(
                "max_model_len must be at most {longest}, this model's context length, got {wanted}"
            );
            return Err(ExecuteError::Malformed(why.into()));
        }
        let SchedulerConfig { block_size, num_gpu_blocks, max_num_seqs, .. } = *config;
        // A request has at most one row in a step, and a row has at least one token.
        let max_tokens = config.max_num_batched_tokens.max(max_num_seqs);
        let max_rows = config.max_logit_rows();
        let max_tokens = max_tokens.max(max_rows);
        let spec = WorkspaceSpec { max_tokens, max_rows, max_context: wanted };
        let max_blocks = config.blocks(wanted).min(config.capacity());
        let model = decoder.config();
        let kv = PagedKv::new_on(rt.device(), model, num_gpu_blocks, block_size, kv_dtype)?;
        Ok(Self {
            captured: Captured::default(),
            tiers: None,
            turns: None,
            turn: None,
            ws: Workspace::new(rt, model, spec)?,
            kv,
            // A captured step has as many sequences as tokens.
            meta: ForwardMeta::new(max_tokens, max_rows, max_blocks, block_size)
                .with_captured_queries(1 + config.num_speculative_tokens),
            packed: Packed::with_capacity(max_tokens, max_rows, max_rows),
            sampler: Sampler::new(rt, model.vocab),
            caps: Caps { max_tokens, max_seqs: max_num_seqs, ..Caps::default() },
            max_model_len: wanted,
            choices: BySeat::default(),
            ahead: None,
            masks: Vec::new(),
            guide_memory: sample::GUIDE_MEMORY,
            large_guides: 0,
            sampled: sample::outcomes(max_rows),
            read: sample::ReadRows::with_capacity(max_rows),
            new: NewTokens::default(),
            rated: Vec::new(),
            speculation: None,
            adapters: AdapterTable::default(),
            adapter_limits: None,
            taps: Vec::new(),
            phases: Phases::default(),
            replayed: None,
            rows: Vec::with_capacity(max_rows),
            drafted: Vec::new(),
            tap: None,
            decoder,
            tokenizer,
        })
    }

    /// Pads steps that only decode to the next of these row counts. A device runs captured steps of these widths faster
    /// ([`ModelRunner::capture`]). On a CPU, and in batch-invariant mode, padding does not change a bit of the results.
    #[must_use]
    pub fn with_decode_widths(mut self, mut widths: Vec<usize>) -> Self {
        widths.retain(|width| (1..=self.max_width()).contains(width));
        widths.sort_unstable();
        widths.dedup();
        self.caps.decode_widths = widths;
        self
    }

    /// Maximum number of rows and drafts of a step.
    fn max_width(&self) -> usize {
        self.ws.spec().max_rows
    }

    /// Takes turns with the runners of other engines on the same runtime: a step waits for its turn, and has it until
    /// it was collected.
    #[must_use]
    pub fn with_turns(mut self, turns: Option<Turns>) -> Self {
        self.turns = turns;
        self
    }

    /// Loads blocks from tiers, and stores those of leases in them. The scheduler needs the other half,
    /// [`Tiers::connector`].
    #[must_use]
    pub fn with_tiers(mut self, tiers: Option<&Tiers>) -> Self {
        self.tiers = tiers.map(|tiers| TierMover::new(tiers.clone()));
        self.caps.can_store = tiers.is_some();
        self
    }

    /// Proposes drafts of this drafter, at most `most` for a request in a step. The scheduler keeps at most
    /// [`num_speculative_tokens`](SchedulerConfig::num_speculative_tokens) of them.
    #[must_use]
    pub fn with_drafter(
        mut self,
        drafter: Box<dyn Drafter>,
        most: usize,
        window: WindowMode,
    ) -> Self {
        let vocab = self.decoder.config().vocab;
        self.speculation = Some(Speculation::new(drafter, most, window, vocab));
        self
    }

    /// Draws the drafts of requests that sample, and verifies them by the rule of [`l4_sampler::verify`]. More of them
    /// are accepted. The tokens of such a request then depend on its drafts; their distribution does not. Call it
    /// behind [`with_drafter`](Self::with_drafter), with a drafter that has a network.
    #[must_use]
    pub fn with_drawn_drafts(mut self) -> Self {
        if let Some(speculation) = &mut self.speculation {
            speculation.draws = true;
        }
        self.drafted.reserve_exact(self.ws.spec().max_rows);
        self
    }

    /// Hands the drafter the hidden rows of every step at these taps, at most four of them.
    #[must_use]
    pub fn with_hidden_rows(mut self, mut taps: Vec<Tap>) -> Self {
        taps.truncate(draft::MAX_TAPS);
        self.taps = taps;
        self
    }

    /// Makes buffers for LoRA adapters of at most this rank; `None`: requests with an adapter are refused. A step with an
    /// adapter is launched kernel by kernel: it is never replayed from a captured one.
    ///
    /// # Errors
    /// Too little memory.
    pub fn with_adapters(mut self, max_rank: Option<usize>) -> Result<Self, ExecuteError> {
        if let Some(rank) = max_rank {
            self.ws.allow_adapters(rank)?;
        }
        let model = || self.decoder.config().clone();
        self.adapter_limits = max_rank.map(|max_rank| AdapterLimits { model: model(), max_rank });
        Ok(self)
    }

    /// Maximum rank of adapters. `None`: no adapter is allowed.
    pub fn max_lora_rank(&self) -> Option<usize> {
        self.adapter_limits.as_ref().map(|limits| limits.max_rank)
    }

    /// Adapters that it takes. `None`: none.
    pub(crate) fn adapter_limits(&self) -> Option<AdapterLimits> {
        self.adapter_limits.clone()
    }

    /// Number of adapters that unfinished requests have.
    pub fn adapters_in_use(&self) -> usize {
        self.adapters.len()
    }

    /// Sets the maximum number of bytes of all large guides together; beyond it the largest fail.
    #[must_use]
    pub fn with_guide_memory(mut self, bytes: usize) -> Self {
        self.guide_memory = bytes;
        self
    }

    /// Sets the receiver of every row of logits that a token is chosen from.
    pub fn set_tap(&mut self, tap: Option<LogitsTap>) {
        self.tap = tap;
    }

    /// Checks a job before its request is added. An invalid job would fail at its first token.
    ///
    /// # Errors
    /// A parameter out of its range, a token that the model does not have, stop strings without a tokenizer.
    /// [`ModelRunner::check_adapter`] checks its adapter.
    pub fn check(&self, job: &ChoiceJob) -> Result<(), l4_sampler::Error> {
        choice::check(job, self.decoder.config().vocab)?;
        if self.tokenizer.is_none() && !job.stop.strings.is_empty() {
            return Err(l4_sampler::ParamError::StopWithoutText.into());
        }
        Ok(())
    }

    /// Checks the adapter of a job before its request is added. A step with an adapter that does not fit fails.
    ///
    /// # Errors
    /// [`AdapterRejection`].
    pub fn check_adapter(&self, job: &ChoiceJob) -> Result<(), AdapterRejection> {
        AdapterLimits::check(self.adapter_limits.as_ref(), job.adapter.as_ref())
    }

    /// The model.
    pub fn decoder(&self) -> &Arc<Decoder> {
        &self.decoder
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Keys and values of all blocks.
    pub fn kv(&self) -> &PagedKv {
        &self.kv
    }

    /// The tiers behind the pool.
    pub fn tiers(&self) -> Option<&Tiers> {
        self.tiers.as_ref().map(TierMover::tiers)
    }

    /// Begins the step's operations on blocks.
    fn move_blocks(&mut self, step: &StepView<'_>) -> Result<(), ExecuteError> {
        match (&mut self.tiers, step.step().ops.first()) {
            (Some(tiers), _) => tiers.begin(step.step(), &self.kv),
            (None, None) => {}
            (None, Some(_)) => {
                let why = "this runner cannot load or store keys and values outside the pool";
                return Err(ExecuteError::Malformed(why.into()));
            }
        }
        Ok(())
    }

    /// Forgets the operations on blocks of a step that does not count.
    fn abandon<T>(
        &mut self,
        step: &StepView<'_>,
        result: Result<T, ExecuteError>,
    ) -> Result<T, ExecuteError> {
        if let (Err(_), Some(tiers)) = (&result, &mut self.tiers) {
            tiers.abandon(step.step().number);
        }
        result
    }

    /// Packs the step and runs the forward pass.
    fn begin_step(&mut self, step: &StepView<'_>) -> Result<StepHandle, ExecuteError> {
        let asked = Instant::now();
        let turn = self.turns.as_ref().map(Turns::take);
        let began = Instant::now();
        self.move_blocks(step)?;
        self.pack(step)?;
        let packed = Instant::now();
        let ran = self.prepare(step).and_then(|()| self.forward(step));
        self.finish_masks();
        self.replayed = ran?;
        self.phases = Phases {
            turn: began - asked,
            pack: packed - began,
            forward: packed.elapsed(),
            ..Phases::default()
        };
        self.turn = turn;
        Ok(StepHandle::of(step))
    }

    fn sample_step(
        &mut self,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let logits = step.step().rows.iter().map(StepRow::logit_rows).sum();
        if logits > 0 {
            self.sample(step, logits)?;
            // What can fail comes before any choice takes a token.
            let copy = self.fetch_logits(logits)?;
            self.deal(step, out)?;
            self.show(logits, copy.as_ref())?;
        }
        self.propose(step, out)?;
        self.note_tools(step, out);
        Ok(())
    }

    fn pack(&mut self, step: &StepView<'_>) -> Result<(), ExecuteError> {
        let mut failed = false;
        for row in step.rows() {
            match self.choices.seated(row.row.seat, row.row.id) {
                Some(choice) if choice.adapter.is_none() => return Err(unfit(row.row.id)),
                Some(choice) => failed |= choice.has_failed(),
                None => return Err(missing(row.row.id)),
            }
        }
        let Self { packed, meta, caps, choices, .. } = self;
        let index = |row: RowView<'_>| choices.get_seated(row.row.seat, row.row.id)?.adapter;
        packed.set_adapters(step.rows().map(|row| index(row).unwrap_or(NO_ADAPTER)));
        let Caps { decode_widths, max_seqs, .. } = caps;
        let widths = if packed.has_adapters() { &[][..] } else { decode_widths };
        let drafts = step.step().drafts() > 0;
        if !(drafts && packed.pack_decodes(step, meta, widths, *max_seqs)?) {
            packed.pack(step, meta, widths)?;
        }
        // The tokens of a failed choice may be invalid, and the other rows of the step must still run.
        if failed {
            self.packed.feed_known(self.decoder.config().vocab);
        }
        Ok(())
    }

    /// The forward pass. Returns the width of the captured step that was replayed, if one was.
    fn forward(&mut self, step: &StepView<'_>) -> Result<Option<usize>, ExecuteError> {
        let Self { decoder, ws, kv, meta, packed, captured, caps, taps, .. } = self;
        let width = meta.sequences();
        let padded = kv.device() != Device::Cpu
            && caps.decode_widths.contains(&width)
            && packed.only_decodes(meta, step.step().tokens)
            && !packed.has_adapters();
        if padded {
            packed.want_all();
        }
        let batch = Batch { taps, ..packed.batch(meta) };
        let mut state = StepState { kv, meta, captured: padded };
        decoder.stage(&batch, &mut state, ws)?;
        let graph = captured.of(width).filter(|_| padded);
        let replayed = graph.is_some().then_some(width);
        match graph {
            // SAFETY: all memory that the graph uses belongs to this runner, which never reallocates it, or to the
            // device.
            Some(graph) => unsafe { graph.replay()? },
            None => decoder.run(&batch, &mut state, ws)?,
        }
        decoder.finish(&batch, &mut state, ws)?;
        Ok(replayed)
    }

    /// The choice has ended: its adapter has one request less.
    fn free_adapter(&mut self, choice: &RunningChoice) {
        if let Some(index) = choice.adapter {
            self.adapters.end(&mut self.ws, index);
        }
    }

    /// Copies the step's logits from a device, if they are to be shown, which waits for it.
    fn fetch_logits(&self, logits: usize) -> Result<Option<Tensor>, ExecuteError> {
        let mut copy = None;
        if self.tap.is_some() {
            let logits = self.ws.logits(logits)?;
            logits.on_cpu(&mut copy).map_err(l2_model::Error::from)?;
        }
        Ok(copy)
    }

    /// Shows the rows of logits that tokens were taken from.
    fn show(&mut self, logits: usize, copy: Option<&Tensor>) -> Result<(), ExecuteError> {
        let Self { tap: Some(tap), ws, read, .. } = self else { return Ok(()) };
        let logits = copy.map_or_else(|| ws.logits(logits), |copy| Ok(copy.view()))?;
        let logits = logits.rows("a step's logits").map_err(l2_model::Error::from)?;
        read.rows.iter().for_each(|(id, position, row)| tap(*id, *position, logits.row(*row)));
        Ok(())
    }
}

impl Executor for ModelRunner {
    type Job = ChoiceJob;
    type Error = ExecuteError;

    fn caps(&self) -> Caps {
        self.caps.clone()
    }

    fn begin(&mut self, id: RequestId, job: ChoiceJob) {
        let vocab = self.decoder.config().vocab;
        let (tokenizer, max_model_len) = (self.tokenizer.as_ref(), self.max_model_len);
        let draws = self.speculation.as_ref().is_some_and(|speculation| speculation.draws);
        let adapter = match &job.adapter {
            None => Some(NO_ADAPTER),
            Some(_) if self.check_adapter(&job).is_err() => None,
            Some(own) => self.adapters.begin(&mut self.ws, &own.weights).ok(),
        };
        let choice = RunningChoice::new(job, tokenizer, vocab, max_model_len, draws, adapter);
        self.choices.insert(id, choice).into_iter().for_each(|old| self.free_adapter(&old));
    }

    /// Packs the step and runs the forward pass; on a device, enqueues it.
    fn launch(&mut self, step: &StepView<'_>) -> Result<StepHandle, ExecuteError> {
        let began = self.begin_step(step);
        self.abandon(step, began)
    }

    /// Samples. All errors of the step occur before any choice takes a token, so an abandoned step has reported
    /// nothing.
    fn collect(
        &mut self,
        _: StepHandle,
        step: &StepView<'_>,
        out: &mut StepOutput,
    ) -> Result<(), ExecuteError> {
        let _turn = self.turn.take();
        let began = Instant::now();
        let sampled = self.sample_step(step, out);
        self.abandon(step, sampled)?;
        out.replayed = self.replayed;
        out.phases = Phases { sample: began.elapsed(), ..self.phases };
        if let Some(speculation) = &mut self.speculation {
            // Waiting for the turn says nothing about the step.
            let Phases { pack, forward, sample, .. } = out.phases;
            speculation.measured(step.step(), pack + forward + sample);
        }
        Ok(())
    }

    fn discard(&mut self, handle: StepHandle) {
        if let Some(tiers) = &mut self.tiers {
            tiers.abandon(handle.step);
        }
    }

    fn poll(&mut self, completed: &mut Vec<KvCompletion>) {
        if let Some(tiers) = &mut self.tiers {
            tiers.poll(&mut self.kv, completed);
        }
    }

    fn num_unwritten(&self) -> usize {
        self.tiers().map_or(0, Tiers::num_unwritten)
    }

    fn fail(&mut self, id: RequestId, error: &ExecuteError) {
        if let Some(choice) = self.choices.get_mut(id) {
            choice.fail(error);
        }
    }

    fn end(&mut self, id: RequestId, reason: FinishReason) {
        if let Some(tiers) = &mut self.tiers {
            tiers.end(id);
        }
        if let Some(choice) = self.choices.remove(id) {
            if let Some(speculation) = &mut self.speculation {
                speculation.end(&choice.drafts);
            }
            self.free_adapter(&choice);
            choice.close(reason);
        }
    }
}

/// Error of a step with a request that was never begun.
fn missing(id: RequestId) -> ExecuteError {
    ExecuteError::Malformed(format!("{id} takes part in a step, but has no job").into())
}

/// Error of a step with a request whose adapter does not fit. If its rows were computed without the adapter, their blocks
/// would be hit by requests that have it.
fn unfit(id: RequestId) -> ExecuteError {
    let why =
        format!("{id} has an adapter that this runner cannot run: see ModelRunner::check_adapter");
    ExecuteError::Malformed(why.into())
}
