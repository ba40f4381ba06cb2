//! `strata bench` on CUDA: the same work through the engine's own steps, and the limits of the device.
//!
//! A decode step is what the engine makes of it: captured, replayed, its tokens chosen on the device, one wait. What is
//! timed is what its callers wait for, the scheduler's part included.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use l1_tensor::Runtime;
use l1_tensor::cpu::machine::Readings;
use l1_tensor::cuda::ops::{Accumulate, Arithmetic, linear};
use l1_tensor::cuda::{self, Buffer, Float, Gpu, Mat, MatMut, Timer};
use l2_model::Decoder;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::{
    ChoiceJob, EngineCore, ModelRunner, OutputEnd, OutputSink, RequestAdapter, RequestId,
    Scheduler, SchedulerConfig, TokenDelta,
};

use super::measure::{Rounds, Timings, WARM_UP, Workload, made_up};
use super::report::Limits;
use crate::cli::kv::KvArgs;

/// Maximum number of tokens of a step: enough for it to be compute-bound.
const STEP_TOKENS: usize = 8192;

/// Number of measurements of a limit.
const TRIES: usize = 5;

/// The engine's loop over requests of equal length.
pub(super) struct Run {
    gpu: Arc<Gpu>,
    work: Workload,
    adapter: Option<RequestAdapter>,
    core: EngineCore<ModelRunner>,
    vocab: usize,
    next: u64,
}

impl Run {
    /// An engine for a workload on a device.
    ///
    /// # Errors
    /// No memory, or what a step reports.
    pub fn new(
        gpu: &Arc<Gpu>,
        rt: &Runtime,
        decoder: &Arc<Decoder>,
        adapter: Option<&RequestAdapter>,
        kv: &KvArgs,
        work: &Workload,
        eager: bool,
    ) -> anyhow::Result<Self> {
        let config = decoder.config();
        let spec = kv.spec(config, rt)?;
        let longest = (work.longest() + slack(work) + WARM_UP + 1).min(config.max_context);
        let blocks = work.batch * longest.div_ceil(kv.blocks.block_size) + 1;
        let prompts = work.batch.saturating_mul(work.prompt.max(work.context));
        let limits = SchedulerConfig {
            max_num_seqs: work.batch,
            max_num_batched_tokens: prompts.clamp(work.batch, STEP_TOKENS.max(work.batch)),
            max_model_len: longest,
            // The same prompts come again and again.
            enable_prefix_caching: false,
            ..SchedulerConfig::new(blocks, kv.blocks.block_size)
        };
        let runner = ModelRunner::new(Arc::clone(decoder), None, rt, &limits, spec.dtype())?;
        let mut runner = runner.with_adapters(adapter.map(|a| a.weights.rank()))?;
        if !eager {
            runner.capture_widths(vec![work.batch])?;
        }
        let core = EngineCore::new(Scheduler::new(limits)?, runner);
        let (gpu, work, adapter) = (Arc::clone(gpu), *work, adapter.cloned());
        let mut run = Self { gpu, work, adapter, core, vocab: config.vocab, next: 0 };
        run.decode(&work, 1)?;
        Ok(run)
    }

    /// Adds a prompt for every sequence of the batch, with completions of this many tokens.
    fn submit(
        &mut self,
        batch: usize,
        prompt: usize,
        output_len: usize,
    ) -> anyhow::Result<Vec<RequestId>> {
        let stop = StopRules { max_tokens: output_len, ignore_eos: true, ..StopRules::default() };
        let mut ids = Vec::with_capacity(batch);
        for slot in 0..batch {
            let tokens: Vec<u32> =
                (0..prompt.max(1)).map(|i| made_up(slot, i, self.vocab)).collect();
            let params = SamplingParams::greedy();
            let mut job = ChoiceJob::new(tokens, params, stop.clone(), Box::new(DiscardOutput));
            job.adapter = self.adapter.clone();
            let id = RequestId(self.next);
            self.next += 1;
            let request = job.request(id, self.core.now());
            self.core.add_request(request, job)?;
            ids.push(id);
        }
        Ok(ids)
    }

    /// All prompts, from the first token to the token after the last.
    fn prefill(&mut self, work: &Workload) -> anyhow::Result<Duration> {
        self.submit(work.batch, work.prompt, 1)?;
        let started = Instant::now();
        while self.core.has_unfinished() {
            self.core.step()?;
        }
        Ok(started.elapsed())
    }

    /// `steps` steps in which every sequence gets one token.
    fn decode(&mut self, work: &Workload, steps: usize) -> anyhow::Result<Duration> {
        let room = self.core.scheduler().config().max_model_len;
        let output_len = room.saturating_sub(work.context.max(1)).max(1);
        let ids = self.submit(work.batch, work.context, output_len)?;
        // Prompts that were short of a step's budget come later; the others wait for them, decoding.
        let mut decoding = 0;
        while decoding < WARM_UP.min(output_len - 1) {
            let result = self.core.step()?;
            decoding += usize::from(
                result.scheduled_tokens == work.batch && result.scheduled == work.batch,
            );
            ensure!(result.finished.is_empty(), "the context is too short for {steps} steps");
        }
        let started = Instant::now();
        for _ in 0..steps {
            let result = self.core.step()?;
            ensure!(
                result.finished.len() < work.batch,
                "the context is too short for {steps} steps"
            );
        }
        let took = started.elapsed();
        for id in ids {
            self.core.abort(id);
        }
        self.core.step()?;
        Ok(took)
    }
}

/// Tokens that the first sequence may have decoded before the last one's prompt is in.
fn slack(work: &Workload) -> usize {
    work.batch.saturating_mul(work.context).div_ceil(STEP_TOKENS) + 1
}

/// Does not listen.
struct DiscardOutput;

impl OutputSink for DiscardOutput {
    fn push(&mut self, _: &TokenDelta<'_>) {}
    fn end(&mut self, _: &OutputEnd) {}
}

impl Rounds for Run {
    fn round(&mut self, out: &mut Timings) -> anyhow::Result<()> {
        let work = self.work;
        out.prefill.push(self.prefill(&work)?);
        let before = copy_bandwidth(&self.gpu)?;
        out.decode.push(self.decode(&work, work.generate)?);
        out.read_bytes_per_s.push(before.and(&copy_bandwidth(&self.gpu)?));
        Ok(())
    }
}

/// The limits of the device.
///
/// # Errors
/// No memory for what is measured, or what the device reports.
pub(super) fn limits(gpu: &Arc<Gpu>) -> cuda::Result<Limits> {
    Ok(Limits {
        read: copy_bandwidth(gpu)?,
        bf16_flops: matmul_peak(gpu, Float::Bf16)?,
        f32_flops: matmul_peak(gpu, Float::F32)?,
    })
}

/// Bytes per second of a copy on the device, those that are read and those that are written.
fn copy_bandwidth(gpu: &Arc<Gpu>) -> cuda::Result<Readings> {
    // More than any cache holds; an emulated device shows nothing by it.
    let bytes = if gpu.is_emulated() { 1 << 20 } else { 1 << 29 };
    let (from, mut to) = (Buffer::zeroed(gpu, bytes)?, Buffer::zeroed(gpu, bytes)?);
    let took = times(gpu, || to.view_mut().copy_within_device(gpu, from.view()))?;
    Ok(Readings::new(2.0 * bytes as f64, took))
}

/// FLOP/s of a large square matmul with activations of this type.
fn matmul_peak(gpu: &Arc<Gpu>, dtype: Float) -> cuda::Result<f64> {
    let n = if gpu.is_emulated() { 64 } else { 8192 };
    let (x, weight) = (Buffer::zeroed(gpu, n * n * dtype.size())?, Buffer::zeroed(gpu, n * n * 2)?);
    let mut out = Buffer::zeroed(gpu, n * n * 4)?;
    let took = times(gpu, || {
        let x = Mat::dense(x.view(), dtype, n, n)?;
        let weight = Mat::dense(weight.view(), Float::Bf16, n, n)?;
        let out = MatMut::dense(out.view_mut(), Float::F32, n, n)?;
        linear(gpu, x, weight, Accumulate::Store, Arithmetic::Fast, out)
    })?;
    Ok(Readings::new(2.0 * (n as f64).powi(3), took).best())
}

/// Seconds that `work` takes on the device, in each of several tries.
fn times(gpu: &Arc<Gpu>, mut work: impl FnMut() -> cuda::Result<()>) -> cuda::Result<Vec<f64>> {
    let mut timer = Timer::new(gpu)?;
    let mut time = || timer.time::<cuda::Error>(gpu, &mut work).map(|t| t.as_secs_f64());
    (0..TRIES).map(|_| time()).collect()
}
