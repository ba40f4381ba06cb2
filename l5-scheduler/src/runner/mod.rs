//! Steps, run by the real model.
//!
//! ```text
//! pack      everybody's tokens behind each other, and who reads and writes which blocks
//! forward   one pass through the model; meanwhile masks of those who have a guide
//! sample    a row of logits each -> a token each, by each one's own rules -> text, stop strings, ends
//! ```
//!
//! The scheduler knows requests as numbers. What a request is to the model, its sampling parameters, history, guide and
//! text, is here, in a place of the same number.

mod answer;
mod answering;
mod capture;
mod pack;
mod sample;

use std::sync::Arc;
use std::time::Instant;

use l1_tensor::{DType, Device, Runtime, TensorRef};
use l2_model::tokenizer::Tokenizer;
use l2_model::{Decoder, Workspace, WorkspaceSpec};
use l3_paged_kv::{ForwardMeta, PagedKv, StepState};
use l4_sampler::guide::MaskAhead;
use l4_sampler::{Row, Sampled, Sampler};

pub use answer::{AnswerEnd, AnswerJob, AnswerSink, News};
pub use pack::Packed;

use crate::{
    Caps, ExecuteError, Executor, FinishReason, RequestId, SchedulerConfig, StepOp, StepOutput,
    StepView,
};
use answering::Answering;
use capture::Captured;

/// Is shown every row of logits that a token is chosen from: whose, the place of that token in prompt and answer, and the
/// row as the model gave it.
pub type LogitsTap = Box<dyn FnMut(RequestId, usize, &[f32]) + Send>;

/// The model, its memory of keys and values, and the answers it is giving. Its buffers are made once: a steady step of
/// plain requests allocates nothing.
pub struct ModelRunner {
    /// Before all that its recordings have the addresses of: fields are dropped in their order.
    captured: Captured,
    decoder: Arc<Decoder>,
    tokenizer: Option<Tokenizer>,
    ws: Workspace,
    kv: PagedKv,
    meta: ForwardMeta,
    packed: Packed,
    sampler: Sampler,
    caps: Caps,
    max_model_len: usize,
    /// The answers, by the places of their requests.
    places: Vec<Option<Answering>>,
    /// Computes masks while the model runs. Made for the first request that has a guide.
    ahead: Option<MaskAhead>,
    /// Answers whose masks are being computed.
    masks: sample::Masks,
    /// Bytes that large guides may take together.
    guide_memory: usize,
    /// Bytes that they took in the last step with any.
    large_guides: usize,
    sampled: Vec<Sampled>,
    /// Of one row: its tokens and their text.
    tokens: Vec<u32>,
    text: String,
    /// Always empty: memory for what the sampler is shown.
    rows: Vec<Row<'static>>,
    tap: Option<LogitsTap>,
}

impl ModelRunner {
    /// A runner with memory for the blocks of a scheduler of this configuration, keys and values stored as `kv_dtype`:
    /// F32, BF16 or F8E4M3. `tokenizer` turns tokens to text; without one there is no text, and no stop strings.
    ///
    /// # Errors
    /// A `max_model_len` beyond the model's; no memory.
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
                "max_model_len is {wanted}, but this model's context ends at {longest}: lower it"
            );
            return Err(ExecuteError::Malformed(why));
        }
        let SchedulerConfig { block_size, num_gpu_blocks, max_num_seqs, .. } = *config;
        // Nobody has more than one row in a step, and a row has a token at least.
        let max_tokens = config.max_num_batched_tokens.max(max_num_seqs);
        let spec = WorkspaceSpec { max_tokens, max_rows: max_num_seqs, max_context: wanted };
        let max_blocks = config.blocks(wanted).min(config.capacity());
        let model = decoder.config();
        let kv = PagedKv::new_on(rt.device(), model, num_gpu_blocks, block_size, kv_dtype)?;
        Ok(Self {
            captured: Captured::default(),
            ws: Workspace::new(rt, model, spec)?,
            kv,
            meta: ForwardMeta::new(max_tokens, max_num_seqs, max_blocks, block_size),
            packed: Packed::with_capacity(max_tokens, max_num_seqs),
            sampler: Sampler::new(rt, model.vocab),
            caps: Caps { max_tokens, max_seqs: max_num_seqs, ..Caps::default() },
            max_model_len: wanted,
            places: Vec::new(),
            ahead: None,
            masks: Vec::new(),
            guide_memory: sample::GUIDE_MEMORY,
            large_guides: 0,
            sampled: sample::outcomes(max_num_seqs),
            tokens: Vec::new(),
            text: String::new(),
            rows: Vec::with_capacity(max_num_seqs),
            tap: None,
            decoder,
            tokenizer,
        })
    }

    /// Fill steps that only decode up to the next of these numbers of rows. A device that has such steps captured runs
    /// them faster ([`ModelRunner::capture`]); without a device, or in its batch-invariant mode, results are the same bits.
    #[must_use]
    pub fn with_decode_widths(mut self, mut widths: Vec<usize>) -> Self {
        widths.retain(|width| (1..=self.caps.max_seqs).contains(width));
        widths.sort_unstable();
        widths.dedup();
        self.caps.decode_widths = widths;
        self
    }

    /// Let the guides that are not small take so many bytes together; beyond that the largest give up.
    #[must_use]
    pub fn with_guide_memory(mut self, bytes: usize) -> Self {
        self.guide_memory = bytes;
        self
    }

    /// Show somebody every row of logits that a token is chosen from.
    pub fn set_tap(&mut self, tap: Option<LogitsTap>) {
        self.tap = tap;
    }

    /// Whether a job can be meant, before its request is added. One that cannot would fail at its first token.
    ///
    /// # Errors
    /// A parameter out of its range, a token that the model does not have, stop strings without a tokenizer.
    pub fn check(&self, job: &AnswerJob) -> Result<(), l4_sampler::Error> {
        answering::check(job, self.decoder.config().vocab)?;
        if self.tokenizer.is_none() && !job.stop.strings.is_empty() {
            return Err(l4_sampler::ParamError::StopWithoutText.into());
        }
        Ok(())
    }

    /// The model.
    pub fn decoder(&self) -> &Arc<Decoder> {
        &self.decoder
    }

    /// What turns tokens to text.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The memory of keys and values.
    pub fn kv(&self) -> &PagedKv {
        &self.kv
    }

    /// What has to happen to blocks before the step.
    fn move_blocks(&mut self, step: &StepView<'_>) -> Result<(), ExecuteError> {
        for op in &step.step().ops {
            match op {
                StepOp::Copy(copy) => self.kv.copy(*copy)?,
                StepOp::Load { .. } | StepOp::Store { .. } => {
                    let why = "keys and values have no other place here than the pool";
                    return Err(ExecuteError::Malformed(why.to_owned()));
                }
            }
        }
        Ok(())
    }

    fn pack(&mut self, step: &StepView<'_>) -> Result<(), ExecuteError> {
        self.packed.pack(step, &mut self.meta, &self.caps.decode_widths)?;
        let mut failed = false;
        for row in step.rows() {
            match sample::at(&self.places, row.row.place) {
                Some(answering) if answering.id == row.row.id => failed |= answering.has_failed(),
                _ => return Err(missing(row.row.id)),
            }
        }
        // The model may not even know its tokens, and others take part in this step.
        if failed {
            self.packed.feed_known(self.decoder.config().vocab);
        }
        Ok(())
    }

    /// The forward pass. Returns the width of the captured step that was replayed, if one was.
    fn forward(&mut self, step: &StepView<'_>) -> Result<Option<usize>, ExecuteError> {
        let Self { decoder, ws, kv, meta, packed, tap, captured, caps, .. } = self;
        let width = meta.sequences();
        let padded = kv.device() != Device::Cpu
            && caps.decode_widths.contains(&width)
            && packed.only_decodes(meta, step.step().rows.len());
        if padded {
            packed.want_all();
        }
        let batch = packed.batch(meta);
        let mut state = StepState { kv, meta, captured: padded };
        decoder.stage(&batch, &mut state, ws)?;
        let graph = captured.of(width).filter(|_| padded);
        let replayed = graph.is_some().then_some(width);
        match graph {
            // SAFETY: what it was recorded over belongs to this runner and is never made anew, or to the device.
            Some(graph) => unsafe { graph.replay()? },
            None => decoder.run(&batch, &mut state, ws)?,
        }
        let logits = decoder.finish(&batch, &mut state, ws)?;
        if let Some(tap) = tap {
            show(tap, step, logits)?;
        }
        Ok(replayed)
    }
}

/// Show a step's logits, row by row. From a device they are fetched, which waits for it.
fn show(tap: &mut LogitsTap, step: &StepView<'_>, logits: TensorRef<'_>) -> l2_model::Result<()> {
    let mut copy = None;
    let logits = logits.on_cpu(&mut copy)?.rows("a step's logits")?;
    for (i, row) in step.rows().filter(|row| row.row.samples).enumerate() {
        tap(row.row.id, row.row.computed + row.row.len, logits.row(i));
    }
    Ok(())
}

impl Executor for ModelRunner {
    type Job = AnswerJob;

    fn caps(&self) -> Caps {
        self.caps.clone()
    }

    fn begin(&mut self, place: u32, id: RequestId, job: AnswerJob) {
        let vocab = self.decoder.config().vocab;
        let (tokenizer, max_model_len) = (self.tokenizer.as_ref(), self.max_model_len);
        let answering = Answering::new(id, job, tokenizer, vocab, max_model_len);
        let place = place as usize;
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        self.places[place] = Some(answering);
    }

    /// Everything that can go wrong for all goes wrong before any answer has taken a token: a step that is taken back has
    /// told nobody anything.
    fn execute(&mut self, step: &StepView<'_>, out: &mut StepOutput) -> Result<(), ExecuteError> {
        let began = Instant::now();
        self.move_blocks(step)?;
        self.pack(step)?;
        let packed = Instant::now();
        let ran = self.prepare(step).and_then(|()| self.forward(step));
        self.finish_masks();
        out.replayed = ran?;
        let forwarded = Instant::now();
        let samples = step.step().samples();
        if samples > 0 {
            self.sample(step, samples)?;
            self.deal(step, out)?;
        }
        out.phases.pack = packed - began;
        out.phases.forward = forwarded - packed;
        out.phases.sample = forwarded.elapsed();
        Ok(())
    }

    fn fail(&mut self, place: u32, id: RequestId, error: &ExecuteError) {
        if let Some(answering) = sample::at_mut(&mut self.places, place).filter(|a| a.id == id) {
            answering.fail(error);
        }
    }

    fn end(&mut self, place: u32, id: RequestId, reason: FinishReason) {
        let answering = self.places.get_mut(place as usize).and_then(Option::take);
        if let Some(answering) = answering {
            debug_assert_eq!(answering.id, id, "whose place {place} is");
            answering.close(reason);
        }
    }
}

/// A step with somebody who never began.
fn missing(id: RequestId) -> ExecuteError {
    ExecuteError::Malformed(format!("{id} takes part in a step, but has no job"))
}
