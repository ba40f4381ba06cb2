//! A step's rows of logits, each with its own request's parameters, to one token each.
//!
//! Rows are dealt to threads, one at a time; a row is one thread's work from its first logit to its token, in one fixed
//! order of sums, and its random number is its own. So a token does not depend on the batch.
//!
//! The ideas, one file each: `shared` hands the rows to the threads, `worker` has the stages of one row in their order,
//! `blocks` the passes over a row, `select` the k largest and `nucleus` the mass p, both without a sort; `device` has what
//! is different where the logits lie on one.

mod blocks;
mod device;
mod nucleus;
mod select;
mod shared;
mod worker;

use std::sync::{Mutex, PoisonError};

use l1_tensor::cpu::Isa;
use l1_tensor::{Device, Runtime, TensorMut, TensorRef};

use crate::error::{Error, Result, RowError};
use crate::logprobs::{LogprobsOf, LogprobsScratch, TokenLogprobs, processed_into, raw_into};
use crate::{Distribution, DrawKey, History, Purpose, SamplingParams, TokenMask};

pub(crate) use shared::{Line, Pieces};
pub(crate) use worker::Worker;

use device::OnDevice;
use shared::Lines;

/// Logits of a step: f32 `[S, V]`, a row for each token that is to be chosen. They may lie on a device: contiguous then.
pub enum Logits<'a> {
    /// To be read only. Rows that must be changed are copied first.
    Shared(TensorRef<'a>),
    /// Handed over: their contents afterwards are of no use to anybody, and no copy is made.
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

/// What one row of logits is about.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// What its request asks for.
    pub params: &'a SamplingParams,
    /// What its request has seen.
    pub history: &'a History,
    /// Tokens that would end its answer: not chosen before `min_tokens`.
    pub ends: &'a [u32],
    /// What its guide allows.
    pub mask: Option<&'a TokenMask>,
    /// Its random numbers.
    pub key: DrawKey,
}

/// What became of one row.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// The token.
    pub token: Result<u32, RowError>,
    /// What was asked about it (its buffer is reused from step to step).
    pub logprobs: Option<TokenLogprobs>,
}

impl Default for Sampled {
    /// Of a row that nothing was chosen from yet.
    fn default() -> Self {
        Self { token: Err(RowError::NothingLeft), logprobs: None }
    }
}

/// Chooses tokens for the rows of a step. Owns the memory that takes, one piece for each thread; a steady step allocates
/// nothing.
pub struct Sampler {
    rt: Runtime,
    vocab: usize,
    /// One for each thread; the lock is never waited for.
    benches: Vec<Mutex<Bench>>,
    /// The first row of each draft that is verified.
    pub(crate) starts: Vec<usize>,
    /// What it needs for logits on a device. Made for the first of them.
    device: Option<Box<OnDevice>>,
}

/// Where one thread works.
#[derive(Default)]
pub(crate) struct Bench {
    pub(crate) worker: Worker,
    pub(crate) distribution: Distribution,
    /// Of a draft's row, when one is verified.
    pub(crate) draft: Distribution,
    logprobs: LogprobsScratch,
}

impl Sampler {
    /// A sampler for rows of `vocab` logits.
    pub fn new(rt: &Runtime, vocab: usize) -> Self {
        let bench = || Bench { worker: Worker::new(vocab), ..Bench::default() };
        let benches = (0..rt.pool().threads()).map(|_| Mutex::new(bench())).collect();
        Self { rt: rt.clone(), vocab, benches, starts: Vec::new(), device: None }
    }

    /// Choose a token for every row, rows in parallel. Row `i` of `logits` belongs to `rows[i]`, its outcome is
    /// `out[i]`, and nothing about it depends on the others.
    ///
    /// Logits on a device are waited for, once. Rows that want only temperature, top-k, top-p and min-p are chosen from
    /// there, with sums in f32: the token is another one than a CPU's where the draw is within rounding of a border.
    ///
    /// # Errors
    /// Only for lengths and types that do not fit, and what a device reports. What is wrong with a row is its own outcome.
    pub fn sample(
        &mut self,
        logits: Logits<'_>,
        rows: &[Row<'_>],
        out: &mut [Sampled],
    ) -> Result<()> {
        const OP: &str = "sample";
        if logits.view().device() != Device::Cpu {
            return self.sample_on_device(logits.view(), rows, out);
        }
        let lines = match logits {
            Logits::Shared(logits) => Lines::Shared(logits.rows::<f32>(OP)?),
            Logits::Owned(logits) => Lines::Owned(Pieces::rows(logits.rows_mut::<f32>(OP)?)),
        };
        let (n, vocab) = lines.dims();
        expect("logits in a row", self.vocab, vocab)?;
        expect("rows of logits", rows.len(), n)?;
        expect("outcomes", rows.len(), out.len())?;
        let out = Pieces::of(out);
        self.rt.pool().run(n, &|i, thread| {
            // SAFETY: the pool gives every row to one thread.
            let (line, out) = unsafe { (lines.get(i), out.get(i)) };
            // exercise l4.sampler
            self.at_bench(thread, |bench| self.one(bench, line, &rows[i], &mut out[0]));
            // end of exercise
        });
        Ok(())
    }

    /// One row's outcome.
    fn one(&self, bench: &mut Bench, line: Line<'_>, row: &Row<'_>, out: &mut Sampled) {
        let Bench { worker, distribution, logprobs, .. } = bench;
        let isa = self.rt.isa();
        let asked = row.params.logprobs;
        let raw = asked.is_some_and(|asked| asked.of == LogprobsOf::Raw);
        // What the model itself thought is asked afterwards, so its own row has to stay as it was.
        let (line, untouched) = match line {
            Line::Owned(line) if raw => (Line::Shared(&*line), Some(&*line)),
            Line::Shared(line) => (Line::Shared(line), Some(line)),
            owned => (owned, None),
        };
        out.token = choose(isa, worker, line, row, distribution);
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

    /// The distribution that [`Sampler::sample`] would draw one row's token from.
    ///
    /// # Errors
    /// [`RowError`] when there is none.
    pub fn distribution(&mut self, logits: &[f32], row: &Row<'_>) -> Result<Distribution> {
        expect("logits in a row", self.vocab, logits.len())?;
        let mut made = Distribution::default();
        self.at_bench(0, |bench| {
            bench.worker.distribution(self.rt.isa(), Line::Shared(logits), row, &mut made)
        })?;
        Ok(made)
    }

    /// What the rows run on.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// Logits in a row.
    pub(crate) fn vocab(&self) -> usize {
        self.vocab
    }

    /// Work where thread `thread` of the pool works. Not to be called from within itself.
    pub(crate) fn at_bench<T>(&self, thread: usize, work: impl FnOnce(&mut Bench) -> T) -> T {
        // A bench that somebody panicked at is as good as before: everything on it is written before it is read.
        work(&mut self.benches[thread].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One row's token.
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

/// Refuse a length that does not fit.
pub(crate) fn expect(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Shape { what, expected, got }) }
}
