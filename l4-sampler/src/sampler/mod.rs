//! The sampler: one token for each row of a step's logits, with the parameters of the row's request.
//!
//! Rows are distributed to threads; a row is one thread's work from its first logit to its token, with one fixed order
//! of sums and its own random number. So a token does not depend on the batch.
//!
//! One file for each idea: `shared` gives the rows to the threads, `worker` has the stages of one row in their order,
//! `blocks` the passes over a row, `select` the k largest and `nucleus` the mass p, both without a sort; `device` has
//! what is different for logits on a device.

mod blocks;
mod device;
mod nucleus;
mod select;
mod shared;
mod worker;

use std::sync::{Mutex, PoisonError};

use l1_tensor::cpu::Isa;
use l1_tensor::{Device, Runtime, TensorMut, TensorRef};

use crate::draft::{Drafted, Drawn};
use crate::error::{Error, Result, RowError};
use crate::logprobs::{LogprobsOf, LogprobsScratch, TokenLogprobs, processed_into, raw_into};
use crate::{Distribution, DrawKey, History, Purpose, SamplingParams, TokenMask};

pub(crate) use shared::{Line, Pieces};
pub(crate) use worker::Worker;

use device::OnDevice;
use shared::Lines;

/// Logits of a step: f32 `[S, V]`, a row for each token to be sampled. On a device they must be contiguous.
pub enum Logits<'a> {
    /// Read only. Rows that must be changed are copied first.
    Shared(TensorRef<'a>),
    /// Given to the sampler, which may overwrite them: no copy is made.
    Owned(TensorMut<'a>),
}

impl Logits<'_> {
    fn view(&self) -> TensorRef<'_> {
        match self {
            Logits::Shared(logits) => *logits,
            Logits::Owned(logits) => logits.as_ref(),
        }
    }
}

/// The request of one row of logits.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// Sampling parameters.
    pub params: &'a SamplingParams,
    /// History: counts of prompt and output tokens.
    pub history: &'a History,
    /// Tokens that end the output: banned before `min_tokens`.
    pub ends: &'a [u32],
    /// Tokens that the guide allows; `None` without a guide.
    pub mask: Option<&'a TokenMask>,
    /// Key of the random numbers.
    pub key: DrawKey,
}

/// Outcome of one row.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// The sampled token.
    pub token: Result<u32, RowError>,
    /// Log probabilities, if requested (the buffer is reused from step to step).
    pub logprobs: Option<TokenLogprobs>,
}

impl Default for Sampled {
    /// Outcome of a row that was not sampled yet.
    fn default() -> Self {
        Self { token: Err(RowError::NothingLeft), logprobs: None }
    }
}

/// Samples one token for each row of a step. It owns the memory for that, one part for each thread; a steady step
/// allocates nothing.
///
/// # Example
///
/// ```
/// use l1_tensor::{Runtime, RuntimeOptions, Tensor};
/// use l4_sampler::{DrawKey, History, Logits, Row, Sampled, Sampler, SamplingParams};
///
/// let mut sampler = Sampler::new(&Runtime::new(RuntimeOptions::default())?, 4); // a vocabulary of 4 tokens
/// let logits = Tensor::from_slice(&[0.0_f32, 3.0, 1.0, 2.0, 9.0, 0.0, 0.0, 0.0], &[2, 4])?;
///
/// let greedy = SamplingParams::greedy();
/// let without_0 = SamplingParams { banned_tokens: vec![0], top_k: 1, ..SamplingParams::default() };
/// let history = History::new(&[1, 2], 16); // the prompt, and room for 16 output tokens
/// let key = DrawKey { seed: 7, sample: 0, position: 2 };
/// let rows = [&greedy, &without_0]
///     .map(|params| Row { params, history: &history, ends: &[], mask: None, key });
///
/// let mut out = vec![Sampled::default(); 2];
/// sampler.sample(Logits::Shared(logits.view()), &rows, &mut out)?;
/// assert_eq!(out[0].token, Ok(1), "the largest logit");
/// assert_eq!(out[1].token, Ok(1), "token 0 is banned; of equal logits the lowest id is the most likely");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sampler {
    rt: Runtime,
    vocab: usize,
    /// One part for each thread; its lock is never contended.
    benches: Vec<Mutex<Bench>>,
    /// First row of each proposal that is verified.
    pub(crate) starts: Vec<usize>,
    /// State for logits on a device, created for the first of them.
    device: Option<Box<OnDevice>>,
}

/// Working memory of one thread.
#[derive(Default)]
pub(crate) struct Bench {
    pub(crate) worker: Worker,
    pub(crate) distribution: Distribution,
    /// Distribution of a draft's row, when one is verified.
    pub(crate) draft: Distribution,
    logprobs: LogprobsScratch,
}

impl Sampler {
    /// Creates a sampler for rows of `vocab` logits.
    pub fn new(rt: &Runtime, vocab: usize) -> Self {
        let bench = || Bench { worker: Worker::new(vocab), ..Bench::default() };
        let benches = (0..rt.pool().threads()).map(|_| Mutex::new(bench())).collect();
        Self { rt: rt.clone(), vocab, benches, starts: Vec::new(), device: None }
    }

    /// Samples a token for every row, rows in parallel. Row `i` of `logits` belongs to `rows[i]`, its outcome is
    /// `out[i]`, and does not depend on the other rows.
    ///
    /// Logits on a device are waited for, once. Rows that want only temperature, top-k, top-p and min-p are sampled
    /// there, with sums in f32: the token differs from a CPU's where the draw is within rounding of a border.
    ///
    /// # Errors
    /// Lengths and types that do not fit, and errors of a device. What is wrong with one row is that row's outcome.
    pub fn sample(
        &mut self,
        logits: Logits<'_>,
        rows: &[Row<'_>],
        out: &mut [Sampled],
    ) -> Result<()> {
        self.sample_drafted(logits, rows, &[], out)
    }

    /// [`Sampler::sample`] for rows some of which verify a draft that was drawn from a distribution: `drafted[i]` is
    /// that of `rows[i]`, and rows beyond its end have none. The outcome of such a row is the draft, if it is accepted,
    /// or its replacement, by the rule of [`crate::verify`]. It has the distribution of plain sampling, and is not the
    /// token that plain sampling gives for the same key.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample_drafted(
        &mut self,
        logits: Logits<'_>,
        rows: &[Row<'_>],
        drafted: &[Option<Drafted<'_>>],
        out: &mut [Sampled],
    ) -> Result<()> {
        const OP: &str = "sample";
        if logits.view().device() != Device::Cpu {
            return self.sample_on_device(logits.view(), rows, drafted, out);
        }
        let lines = match logits {
            Logits::Shared(logits) => Lines::Shared(logits.rows::<f32>(OP)?),
            Logits::Owned(logits) => Lines::Owned(Pieces::rows(logits.rows_mut::<f32>(OP)?)),
        };
        let (n, vocab) = lines.dims();
        self.check_lengths([n, vocab], rows.len(), out.len())?;
        let out = Pieces::of(out);
        self.rt.pool().run(n, &|i, thread| {
            // SAFETY: the pool gives every row to one thread.
            let (line, out) = unsafe { (lines.get(i), out.get(i)) };
            let drafted = drafted.get(i).copied().flatten();
            // exercise l4.sampler
            self.at_bench(thread, |bench| self.one(bench, line, &rows[i], drafted, &mut out[0]));
            // end of exercise
        });
        Ok(())
    }

    /// Samples one row, which may verify a draft.
    fn one(
        &self,
        bench: &mut Bench,
        line: Line<'_>,
        row: &Row<'_>,
        drafted: Option<Drafted<'_>>,
        out: &mut Sampled,
    ) {
        let Bench { worker, distribution, logprobs, .. } = bench;
        let isa = self.rt.isa();
        let asked = row.params.logprobs;
        let raw = asked.is_some_and(|asked| asked.of == LogprobsOf::Raw);
        // The model's own log probabilities are taken afterwards, so its row must not be changed.
        let (line, untouched) = match line {
            Line::Owned(line) if raw => (Line::Shared(&*line), Some(&*line)),
            Line::Shared(line) => (Line::Shared(line), Some(line)),
            owned => (owned, None),
        };
        out.token = choose(isa, worker, line, row, distribution);
        if let (Some(drafted), Ok(token)) = (drafted, &mut out.token) {
            *token = drafted.choose(distribution, row.key);
        }
        let (Some(asked), Ok(token)) = (asked, out.token) else {
            out.logprobs = None;
            return;
        };
        let about = out.logprobs.get_or_insert_default();
        match untouched {
            Some(line) if raw => raw_into(isa, line, token, asked.top, about, logprobs),
            _ => processed_into(distribution, token, asked.top, about, logprobs),
        }
    }

    /// Draws a token for every row of `logits`, f32 `[S, V]`, as [`Sampler::sample`] does, and keeps what it was drawn
    /// from. A row without tokens gets none. Logits on a device are fetched first, into memory that is allocated for
    /// the call.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn draw(
        &mut self,
        logits: TensorRef<'_>,
        rows: &[Row<'_>],
        out: &mut [Drawn],
    ) -> Result<()> {
        let mut copy = None;
        let lines = logits.on_cpu(&mut copy)?.rows::<f32>("draw")?;
        self.check_lengths([lines.n, lines.len], rows.len(), out.len())?;
        let out = Pieces::of(out);
        self.rt.pool().run(lines.n, &|i, thread| {
            // SAFETY: the pool gives every row to one thread.
            let out = unsafe { &mut out.get(i)[0] };
            let (isa, line) = (self.rt.isa(), Line::Shared(lines.row(i)));
            let drawn = self.at_bench(thread, |Bench { worker, .. }| {
                choose(isa, worker, line, &rows[i], &mut out.from)
            });
            out.token = drawn.ok();
        });
        Ok(())
    }

    /// Distribution that [`Sampler::sample`] would sample one row's token from.
    ///
    /// # Errors
    /// [`RowError`] if no token can be sampled.
    pub fn distribution(&mut self, logits: &[f32], row: &Row<'_>) -> Result<Distribution> {
        expect("logits in a row", self.vocab, logits.len())?;
        let mut made = Distribution::default();
        self.at_bench(0, |bench| {
            bench.worker.distribution(self.rt.isa(), Line::Shared(logits), row, &mut made)
        })?;
        Ok(made)
    }

    /// Checks that logits `[n, vocab]` and these numbers of rows and outcomes belong together.
    fn check_lengths(&self, [n, vocab]: [usize; 2], rows: usize, outcomes: usize) -> Result<()> {
        expect("logits in a row", self.vocab, vocab)?;
        expect("rows of logits", rows, n)?;
        expect("outcomes", rows, outcomes)
    }

    /// Runtime of the sampler.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// Logits in a row.
    pub(crate) fn vocab(&self) -> usize {
        self.vocab
    }

    /// Runs `work` with the memory of thread `thread` of the pool. It must not call this function again.
    pub(crate) fn at_bench<T>(&self, thread: usize, work: impl FnOnce(&mut Bench) -> T) -> T {
        // After a panic the memory is as good as before: everything in it is written before it is read.
        work(&mut self.benches[thread].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Samples one row's token.
fn choose(
    isa: Isa,
    worker: &mut Worker,
    line: Line<'_>,
    row: &Row<'_>,
    distribution: &mut Distribution,
) -> Result<u32, RowError> {
    // exercise l4.sampler
    worker.distribution(isa, line, row, distribution)?;
    Ok(distribution.draw(row.key.uniform(Purpose::Draw)))
    // end of exercise
}

/// Checks a length.
pub(crate) fn expect(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Shape { what, expected, got }) }
}
