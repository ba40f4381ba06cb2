//! Sampling from logits on a device.
//!
//! Most rows want only temperature and filters. Their tokens are sampled on the device, and four bytes of each come
//! back instead of half a megabyte. Rows that want more (penalties, bans, a guide's mask, log probabilities, typical-p,
//! a draft that was drawn) are fetched and sampled on the CPU. Both are enqueued before anything is waited for, so a
//! step waits for its device once.
//!
//! The rules are those of the CPU, but not the sums: a device adds in f32, in an order of its own, and uses the first
//! 24 bits of a row's random number. So the token is the one that a CPU would sample from these logits, unless the
//! random number or the edge of a filter lies within rounding of a border between two tokens. Greedy tokens are always
//! the same.

use std::sync::Arc;

use l1_tensor::TensorRef;
use l1_tensor::cuda::ops::SampleRow;
use l1_tensor::cuda::{self, Buffer, Float, Gpu, Mat, Pinned, View};

use super::shared::{Line, Pieces};
use super::worker::is_changed;
use super::{Row, Sampled, Sampler};
use crate::Purpose;
use crate::draft::Drafted;
use crate::error::Result;

const OP: &str = "sample";

/// Buffers on the host and on the device, for the largest step so far.
pub(super) struct OnDevice {
    gpu: Arc<Gpu>,
    vocab: usize,
    /// Parameters of the rows, on the host and on the device.
    wanted: Pinned<SampleRow>,
    params: Buffer,
    /// Tokens, on the device and on the host.
    tokens: Buffer,
    chosen: Pinned<u32>,
    /// Fetched logits, row after row, and the rows they belong to.
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

    /// Makes room for `rows` rows, of which `fetched` are fetched.
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

    /// Samples plain rows on the device, and fetches the logits of the other rows. Returns when the device is done:
    /// tokens are in `out`, and `self.fetched` has the fetched rows. On an error, too, nothing is running any more.
    fn choose(
        &mut self,
        logits: View<'_, f32>,
        rows: &[Row<'_>],
        drafted: &[Option<Drafted<'_>>],
        out: &mut [Sampled],
    ) -> cuda::Result<()> {
        let chosen = self.enqueue_and_wait(logits, rows, drafted, out);
        if chosen.is_err() {
            // What was enqueued before may still read or write the memory of the next step. The error to report is the
            // first one.
            let _ = self.gpu.synchronize();
        }
        chosen
    }

    fn enqueue_and_wait(
        &mut self,
        logits: View<'_, f32>,
        rows: &[Row<'_>],
        drafted: &[Option<Drafted<'_>>],
        out: &mut [Sampled],
    ) -> cuda::Result<()> {
        let is_plain = |i: usize| is_plain(&rows[i]) && drafted.get(i).is_none_or(Option::is_none);
        self.fetched.clear();
        self.fetched.extend((0..rows.len()).filter(|i| !is_plain(*i)));
        let elsewhere = self.fetched.len();
        self.reserve(rows.len(), elsewhere)?;
        if elsewhere < rows.len() {
            self.enqueue(logits, rows)?;
        }
        self.enqueue_fetch(logits)?;
        self.gpu.synchronize()?;
        let chosen = self.chosen.as_slice().iter().zip(out).enumerate();
        for (i, (token, out)) in chosen.filter(|(i, _)| is_plain(*i)) {
            if (*token as usize) < self.vocab {
                (out.token, out.logprobs) = (Ok(*token), None);
            } else {
                // No token can be sampled from the row. The CPU finds the reason, which is worth another wait.
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

    /// Samples a token for every row. The tokens of fetched rows are meaningless.
    fn enqueue(&mut self, logits: View<'_, f32>, rows: &[Row<'_>]) -> cuda::Result<()> {
        let Self { gpu, vocab, wanted, params, tokens, chosen, .. } = self;
        for (wanted, row) in wanted.as_mut_slice().iter_mut().zip(rows) {
            *wanted = as_kernels_read(row);
        }
        let n = rows.len();
        let mut there = params.view_mut().cast::<SampleRow>().part(0, n);
        // SAFETY: `choose` returns when the device is done, so nothing touches `wanted` or frees `params` before. After
        // a panic, `wanted` is dropped first and waits for the device.
        unsafe { wanted.enqueue_copy(&mut there) }?;
        let mut tokens = tokens.view_mut().cast::<u32>().part(0, n);
        let logits = Mat::dense(logits.cast(), Float::F32, n, *vocab)?;
        cuda::ops::sample(gpu, logits, there.as_view(), tokens.reborrow())?;
        // SAFETY: as above, for `chosen` and `tokens`.
        unsafe { chosen.enqueue_fetch(0, tokens.as_view()) }
    }

    /// Enqueues the transfer of the logits of fetched rows.
    fn enqueue_fetch(&mut self, logits: View<'_, f32>) -> cuda::Result<()> {
        for (at, row) in self.fetched.iter().enumerate() {
            let row = logits.part(row * self.vocab, self.vocab);
            // SAFETY: `choose` returns when the device is done, and reads `self.logits` only then. The caller of
            // `choose` holds the logits until then. After a panic, `Pinned` waits for the device when it is dropped.
            unsafe { self.logits.enqueue_fetch(at * self.vocab, row) }?;
        }
        Ok(())
    }
}

impl Sampler {
    /// [`Sampler::sample_drafted`] for logits on a device.
    pub(super) fn sample_on_device(
        &mut self,
        logits: TensorRef<'_>,
        rows: &[Row<'_>],
        drafted: &[Option<Drafted<'_>>],
        out: &mut [Sampled],
    ) -> Result<()> {
        let (n, vocab) = match *logits.dims() {
            [n, vocab] => (n, vocab),
            _ => (0, 0),
        };
        self.check_lengths([n, vocab], rows.len(), out.len())?;
        let (gpu, logits) = logits.on_device::<f32>(OP)?;
        let mut device = match self.device.take() {
            Some(device) => device,
            None => Box::new(OnDevice::new(gpu, vocab).map_err(l1_tensor::Error::from)?),
        };
        let chosen = device.choose(logits, rows, drafted, out);
        if chosen.is_ok() {
            let OnDevice { logits, fetched, .. } = &mut *device;
            let lines = Pieces::chunks(logits.as_mut_slice(), fetched.len(), vocab);
            let out = Pieces::of(out);
            self.rt.pool().run(fetched.len(), &|i, thread| {
                let row = fetched[i];
                // SAFETY: the pool gives every `i` to one thread, and no row was fetched twice.
                let (line, out) = unsafe { (lines.get(i), out.get(row)) };
                let (line, drafted) = (Line::Owned(line), drafted.get(row).copied().flatten());
                self.at_bench(thread, |bench| {
                    self.one(bench, line, &rows[row], drafted, &mut out[0])
                });
            });
        }
        self.device = Some(device);
        Ok(chosen.map_err(l1_tensor::Error::from)?)
    }
}

/// Whether a device can sample a row's token: it supports temperature, top-k, top-p and min-p.
fn is_plain(row: &Row<'_>) -> bool {
    row.params.logprobs.is_none() && row.params.typical_p >= 1.0 && !is_changed(row)
}

/// Parameters of a plain row, as the kernel reads them.
fn as_kernels_read(row: &Row<'_>) -> SampleRow {
    let params = row.params;
    // 24 bits are what an f32 below 1 always holds; rounding more of them could give 1.
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
