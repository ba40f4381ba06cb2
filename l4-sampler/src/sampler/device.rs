//! Rows of logits that lie on a device.
//!
//! Most rows want nothing but temperature and filters. Their tokens are chosen where the logits are, and four bytes come
//! back of each instead of half a megabyte. What else a row may want (penalties, bans, a guide's mask, log probabilities,
//! the typical filter) needs the whole of it here: its logits are fetched, and go the way of all rows on a CPU. Both are
//! enqueued before anybody waits, so a step waits for its device once.
//!
//! The same rules, but not the same sums: a device adds in f32, in an order of its own, and has the first 24 bits of a row's
//! random number. So a token is the one that a CPU would have chosen from these logits unless the dart falls, or the edge
//! of a filter lies, within rounding of a border between two tokens. Greedy tokens are the same always.

use std::sync::Arc;

use l1_tensor::TensorRef;
use l1_tensor::cuda::ops::SampleRow;
use l1_tensor::cuda::{self, Buffer, Float, Gpu, Mat, Pinned, View};

use super::shared::{Line, Pieces};
use super::worker::is_changed;
use super::{Row, Sampled, Sampler, expect};
use crate::Purpose;
use crate::error::Result;

const OP: &str = "sample";

/// Memory on both sides, for the largest step there was.
pub(super) struct OnDevice {
    gpu: Arc<Gpu>,
    vocab: usize,
    /// What the rows want: here, and there.
    wanted: Pinned<SampleRow>,
    params: Buffer,
    /// Their tokens: there, and here.
    tokens: Buffer,
    chosen: Pinned<u32>,
    /// Logits that were fetched, row after row, and of which rows.
    logits: Pinned<f32>,
    fetched: Vec<usize>,
}

impl OnDevice {
    fn new(gpu: &Arc<Gpu>, vocab: usize) -> cuda::Result<Self> {
        Ok(Self {
            gpu: Arc::clone(gpu),
            vocab,
            wanted: Pinned::zeroed(gpu, 0)?,
            params: Buffer::zeroed(gpu, 0)?,
            tokens: Buffer::zeroed(gpu, 0)?,
            chosen: Pinned::zeroed(gpu, 0)?,
            logits: Pinned::zeroed(gpu, 0)?,
            fetched: Vec::new(),
        })
    }

    /// Room for so many rows, of which so many are fetched.
    fn reserve(&mut self, rows: usize, fetched: usize) -> cuda::Result<()> {
        let (gpu, vocab) = (&self.gpu, self.vocab);
        if rows > self.wanted.as_slice().len() {
            let rows = rows.next_power_of_two();
            self.wanted = Pinned::zeroed(gpu, rows)?;
            self.params = Buffer::zeroed(gpu, rows * size_of::<SampleRow>())?;
            self.tokens = Buffer::zeroed(gpu, rows * size_of::<u32>())?;
            self.chosen = Pinned::zeroed(gpu, rows)?;
        }
        if fetched * vocab > self.logits.as_slice().len() {
            self.logits = Pinned::zeroed(gpu, fetched.next_power_of_two() * vocab)?;
        }
        Ok(())
    }

    /// Choose what can be chosen there, and fetch the logits of the other rows. Returns when all of it has come: tokens are
    /// in `out`, and `self.fetched` says whose logits there are. An error too is returned only when nothing is under way.
    fn choose(
        &mut self,
        logits: View<'_, f32>,
        rows: &[Row<'_>],
        out: &mut [Sampled],
    ) -> cuda::Result<()> {
        let chosen = self.enqueue_and_wait(logits, rows, out);
        if chosen.is_err() {
            // What was enqueued before may still read or write the memory of the next step. Its own error is known.
            let _ = self.gpu.synchronize();
        }
        chosen
    }

    fn enqueue_and_wait(
        &mut self,
        logits: View<'_, f32>,
        rows: &[Row<'_>],
        out: &mut [Sampled],
    ) -> cuda::Result<()> {
        self.fetched.clear();
        self.fetched.extend((0..rows.len()).filter(|i| !is_plain(&rows[*i])));
        let elsewhere = self.fetched.len();
        self.reserve(rows.len(), elsewhere)?;
        if elsewhere < rows.len() {
            self.enqueue(logits, rows)?;
        }
        self.enqueue_fetch(logits)?;
        self.gpu.synchronize()?;
        let chosen = self.chosen.as_slice().iter().zip(rows.iter().zip(out)).enumerate();
        for (i, (token, (_, out))) in chosen.filter(|(_, (_, (row, _)))| is_plain(row)) {
            if (*token as usize) < self.vocab {
                (out.token, out.logprobs) = (Ok(*token), None);
            } else {
                // Nothing can be chosen from it: what is wrong is found out here, and another wait is worth that.
                self.fetched.push(i);
            }
        }
        if self.fetched.len() > elsewhere {
            self.reserve(rows.len(), self.fetched.len())?;
            self.enqueue_fetch(logits)?;
            self.gpu.synchronize()?;
        }
        Ok(())
    }

    /// A token for every row. Those of rows that are fetched too mean nothing.
    fn enqueue(&mut self, logits: View<'_, f32>, rows: &[Row<'_>]) -> cuda::Result<()> {
        let Self { gpu, vocab, wanted, params, tokens, chosen, .. } = self;
        for (wanted, row) in wanted.as_mut_slice().iter_mut().zip(rows) {
            *wanted = as_kernels_read(row);
        }
        let n = rows.len();
        let mut there = params.view_mut().cast::<SampleRow>().part(0, n);
        // SAFETY: `choose` returns when the device is done, so nothing touches `wanted` or frees `params` before. After a
        // panic, `wanted` is dropped first and waits for the device.
        unsafe { wanted.enqueue_copy(&mut there) }?;
        let mut tokens = tokens.view_mut().cast::<u32>().part(0, n);
        let logits = Mat::dense(logits.cast(), Float::F32, n, *vocab)?;
        cuda::ops::sample(gpu, logits, there.as_view(), tokens.reborrow())?;
        // SAFETY: as above, for `chosen` and `tokens`.
        unsafe { chosen.enqueue_fetch(0, tokens.as_view()) }
    }

    /// The logits of the rows that are chosen from here.
    fn enqueue_fetch(&mut self, logits: View<'_, f32>) -> cuda::Result<()> {
        for (at, row) in self.fetched.iter().enumerate() {
            let row = logits.part(row * self.vocab, self.vocab);
            // SAFETY: `choose` returns when the device is done, and looks at `self.logits` only then. The caller of `choose`
            // holds the logits until then. After a panic, `Pinned` waits for the device when it is dropped.
            unsafe { self.logits.enqueue_fetch(at * self.vocab, row) }?;
        }
        Ok(())
    }
}

impl Sampler {
    /// [`Sampler::sample`] for logits on a device.
    pub(super) fn sample_on_device(
        &mut self,
        logits: TensorRef<'_>,
        rows: &[Row<'_>],
        out: &mut [Sampled],
    ) -> Result<()> {
        let (n, vocab) = match *logits.dims() {
            [n, vocab] => (n, vocab),
            _ => (0, 0),
        };
        expect("logits in a row", self.vocab, vocab)?;
        expect("rows of logits", rows.len(), n)?;
        expect("outcomes", rows.len(), out.len())?;
        let (gpu, logits) = logits.on_device::<f32>(OP)?;
        let mut device = match self.device.take() {
            Some(device) => device,
            None => Box::new(OnDevice::new(gpu, vocab).map_err(l1_tensor::Error::from)?),
        };
        let chosen = device.choose(logits, rows, out);
        if chosen.is_ok() {
            let OnDevice { logits, fetched, .. } = &mut *device;
            let lines = Pieces::chunks(logits.as_mut_slice(), fetched.len(), vocab);
            let out = Pieces::of(out);
            self.rt.pool().run(fetched.len(), &|i, thread| {
                let row = fetched[i];
                // SAFETY: the pool gives every `i` to one thread, and no row was fetched twice.
                let (line, out) = unsafe { (lines.get(i), out.get(row)) };
                let line = Line::Owned(line);
                self.at_bench(thread, |bench| self.one(bench, line, &rows[row], &mut out[0]));
            });
        }
        self.device = Some(device);
        Ok(chosen.map_err(l1_tensor::Error::from)?)
    }
}

/// Whether a device can choose a row's token: it knows temperature, top-k, top-p and min-p.
fn is_plain(row: &Row<'_>) -> bool {
    row.params.logprobs.is_none() && row.params.typical_p >= 1.0 && !is_changed(row)
}

/// What a plain row wants, as the kernel reads it.
fn as_kernels_read(row: &Row<'_>) -> SampleRow {
    let params = row.params;
    // 24 bits are what an f32 below 1 holds at all times; rounding more of them could make it 1.
    const STEPS: f64 = (1 << 24) as f64;
    let uniform = (row.key.uniform(Purpose::Draw) * STEPS).floor() / STEPS;
    SampleRow {
        temperature: params.temperature,
        top_p: params.top_p,
        min_p: params.min_p,
        uniform: uniform as f32,
        top_k: i32::try_from(params.top_k).unwrap_or(i32::MAX),
    }
}
