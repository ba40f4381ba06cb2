//! The measured work: prompts through a model, then greedy steps, with a clock around each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use l1_tensor::Runtime;
use l1_tensor::cpu::machine::{Readings, read_bandwidths};
use l1_tensor::ops::argmax;
use l2_model::adapter::LoraAdapter;
use l2_model::generate::PREFILL_CHUNK;
use l2_model::{Batch, Decoder, SequenceState, Workspace, WorkspaceSpec};

use crate::cli::kv::Kv;

/// Decode steps before the clock starts: they bring the threads and the caches back from the
/// bandwidth reading.
pub(super) const WARM_UP: usize = 2;

/// The workload to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    /// Batch size.
    pub batch: usize,
    /// Tokens of each prompt in the prefill measurement.
    pub prompt: usize,
    /// Tokens of a sequence when decoding starts.
    pub context: usize,
    /// Decode steps.
    pub generate: usize,
    /// Number of repetitions.
    pub repeat: usize,
}

impl Workload {
    /// Tokens of a sequence at its longest.
    pub fn longest(&self) -> usize {
        self.prompt.max(self.context.saturating_add(self.generate.max(WARM_UP)))
    }
}

/// Times, one entry for each repetition.
#[derive(Clone, Debug, Default)]
pub(super) struct Timings {
    /// All prompts, from the first token to the logits after the last.
    pub prefill: Vec<Duration>,
    /// All decode steps, with the choice of each next token.
    pub decode: Vec<Duration>,
    /// Bytes per second that memory gave right before and after the decode.
    pub read_bytes_per_s: Vec<Readings>,
}

/// A workload that is ready to run, as often as one likes.
pub(super) trait Rounds {
    /// Runs it once, and adds its times.
    ///
    /// # Errors
    /// What the model reports.
    fn round(&mut self, out: &mut Timings) -> anyhow::Result<()>;
}

/// Equal sequences, one a slot, with everything a step needs. Tokens are made up: what a token is does not change how
/// long a dense model takes.
pub(super) struct Run<'a> {
    work: Workload,
    rt: Runtime,
    decoder: &'a Decoder,
    /// `[batch]` zeros, the adapter's index; empty without an adapter.
    adapters: Vec<i32>,
    state: Box<dyn SequenceState>,
    ws: Workspace,
    batch: usize,
    /// Tokens that every sequence holds.
    len: usize,
    /// `[batch]`: the token each sequence continues with.
    next: Vec<u32>,
    step: Step,
}

/// The slices of one [`Batch`].
#[derive(Default)]
struct Step {
    tokens: Vec<u32>,
    positions: Vec<i32>,
    cu_seqlens: Vec<i32>,
    slots: Vec<u32>,
    rows: Vec<u32>,
}

impl Step {
    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.rows.clear();
        self.cu_seqlens.clear();
        self.cu_seqlens.push(0);
    }

    /// Add tokens of one sequence, which go to positions `from..`.
    fn add(&mut self, slot: usize, from: usize, tokens: impl Iterator<Item = u32>) {
        self.tokens.extend(tokens);
        let end = self.tokens.len() as i32;
        let count = end - self.cu_seqlens[self.cu_seqlens.len() - 1];
        self.positions.extend(from as i32..from as i32 + count);
        self.cu_seqlens.push(end);
        self.slots.push(slot as u32);
    }

    /// Ask for the logits of the token added last.
    fn want_last(&mut self) {
        self.rows.push(self.tokens.len() as u32 - 1);
    }

    fn batch<'b>(&'b self, adapters: &'b [i32]) -> Batch<'b> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            cu_seqlens_q: &self.cu_seqlens,
            state_slots: &self.slots,
            logit_rows: &self.rows,
            // A step of a prefill may have fewer sequences.
            adapters: &adapters[..adapters.len().min(self.slots.len())],
            ..Batch::default()
        }
    }
}

impl<'a> Run<'a> {
    /// Makes buffers on a runtime, and touches them: the first pass over fresh memory is not what a server sees later.
    ///
    /// # Errors
    /// No memory; an adapter of another model.
    pub fn new(
        rt: &Runtime,
        decoder: &'a Decoder,
        adapter: Option<&Arc<LoraAdapter>>,
        kv: &Kv,
        work: &Workload,
    ) -> anyhow::Result<Self> {
        let (config, batch, longest) = (decoder.config(), work.batch, work.longest());
        let prompts = batch.saturating_mul(work.prompt.max(work.context));
        let spec = WorkspaceSpec {
            max_tokens: prompts.min(PREFILL_CHUNK).max(batch),
            max_rows: batch,
            max_context: longest,
        };
        let mut ws = Workspace::new(rt, config, spec)?;
        if let Some(adapter) = adapter {
            ws.allow_adapters(adapter.rank())?;
            ws.set_adapter(0, Some(Arc::clone(adapter)))?;
        }
        let mut run = Self {
            work: *work,
            rt: rt.clone(),
            decoder,
            adapters: adapter.map_or_else(Vec::new, |_| vec![0; batch]),
            state: kv.make(config, spec.max_tokens)?,
            ws,
            batch,
            len: 0,
            next: (0..batch).map(|slot| made_up(slot, 0, config.vocab)).collect(),
            step: Step::default(),
        };
        run.fill(work.prompt.min(PREFILL_CHUNK))?;
        Ok(run)
    }

    /// Removes all tokens.
    pub fn empty(&mut self) {
        for slot in 0..self.batch {
            self.state.drop_sequence(slot as u32);
        }
        self.len = 0;
    }

    /// Brings every sequence to the context in which decoding begins.
    pub fn at_context(&mut self) -> anyhow::Result<()> {
        self.cut(self.work.context)?;
        self.fill(self.work.context)
    }

    /// Forget the tokens behind the first `len`, if there are so many.
    fn cut(&mut self, len: usize) -> anyhow::Result<()> {
        if len < self.len {
            for slot in 0..self.batch {
                self.state.rollback(slot as u32, len)?;
            }
            self.len = len;
        }
        Ok(())
    }

    /// Prefill: extend every sequence to `len` tokens. A step takes as many tokens as the workspace
    /// holds, the end of one prompt and the beginning of the next alike; only the last row of each
    /// prompt asks for logits.
    pub fn fill(&mut self, len: usize) -> anyhow::Result<()> {
        let (max, vocab) = (self.ws.spec().max_tokens, self.decoder.config().vocab);
        self.step.clear();
        for slot in 0..self.batch {
            let mut from = self.len;
            while from < len {
                let to = len.min(from + max - self.step.tokens.len());
                self.step.add(slot, from, (from..to).map(|i| made_up(slot, i, vocab)));
                if to == len {
                    self.step.want_last();
                }
                if self.step.tokens.len() == max {
                    self.forward()?;
                }
                from = to;
            }
        }
        if !self.step.tokens.is_empty() {
            self.forward()?;
        }
        self.len = self.len.max(len);
        Ok(())
    }

    fn forward(&mut self) -> anyhow::Result<()> {
        let batch = self.step.batch(&self.adapters);
        self.decoder.forward(&batch, self.state.as_mut(), &mut self.ws)?;
        self.step.clear();
        Ok(())
    }

    /// Generate `steps` tokens in every sequence, greedily.
    pub fn decode(&mut self, steps: usize) -> anyhow::Result<()> {
        for _ in 0..steps {
            self.step.clear();
            for (slot, token) in self.next.iter().enumerate() {
                self.step.add(slot, self.len, std::iter::once(*token));
                self.step.want_last();
            }
            let batch = self.step.batch(&self.adapters);
            let logits = self.decoder.forward(&batch, self.state.as_mut(), &mut self.ws)?;
            argmax(&self.rt, logits, &mut self.next)?;
            self.len += 1;
        }
        Ok(())
    }
}

impl Rounds for Run<'_> {
    fn round(&mut self, out: &mut Timings) -> anyhow::Result<()> {
        let work = self.work;
        self.empty();
        let started = Instant::now();
        self.fill(work.prompt)?;
        out.prefill.push(started.elapsed());

        self.at_context()?;
        let before = read_bandwidths(self.rt.pool());
        self.decode(WARM_UP)?;
        self.at_context()?;
        let started = Instant::now();
        self.decode(work.generate)?;
        out.decode.push(started.elapsed());
        out.read_bytes_per_s.push(before.and(&read_bandwidths(self.rt.pool())));
        Ok(())
    }
}

/// A token of a made-up prompt: scattered over the vocabulary, the same in every run.
pub(super) fn made_up(slot: usize, position: usize, vocab: usize) -> u32 {
    // One round of the finaliser of MurmurHash3 (Appleby).
    let mut x = (slot as u64) << 32 | position as u64;
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    ((x ^ x >> 33) % vocab as u64) as u32
}
