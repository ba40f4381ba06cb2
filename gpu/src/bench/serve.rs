//! Many requests at once, through the engine: compared with transformers.

use std::time::Instant;

use anyhow::{Result, ensure};
use l1_tensor::Precision;
use l3_paged_kv::sizing::Budget;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::engine::{EngineModel, Startup};
use l5_scheduler::{Engine, EngineOptions, EngineRequest};
use serde::Serialize;

use super::{Limits, Measure};
use crate::{Context, Numbers};

/// Requests of one length that all arrive at the start; each is decoded greedily to its last token.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Workload {
    /// The model's config, in `fixtures`.
    pub config: &'static str,
    /// Number of requests.
    pub requests: usize,
    /// Number of tokens of a prompt.
    pub prompt: usize,
    /// Number of output tokens of a request.
    pub answer: usize,
}

/// The workloads, here and with transformers: one request alone, and many.
pub const SERVED: [Workload; 2] = [
    Workload { config: "configs/qwen3-8b.json", requests: 1, prompt: 128, answer: 128 },
    Workload { config: "configs/qwen3-8b.json", requests: 256, prompt: 256, answer: 128 },
];

const TINY: [Workload; 2] = [
    Workload { config: "tiny-qwen3/config.json", requests: 1, prompt: 6, answer: 4 },
    Workload { config: "tiny-qwen3/config.json", requests: 5, prompt: 7, answer: 4 },
];

/// Result of a workload.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Served {
    /// Name of the workload.
    pub workload: Workload,
    /// Output tokens of all requests per second, prefill time included.
    pub tokens_per_second: f64,
    /// Seconds from the first request to the last token.
    pub seconds: f64,
    /// Fraction of steps that were replayed.
    pub replayed: Option<f64>,
}

/// Runs a workload twice: the first run does not count.
///
/// # Errors
/// Too little memory; a request that failed.
pub fn serve(ctx: &Context, workload: Workload) -> Result<Served> {
    let decoder = ctx.random(workload.config)?;
    let vocab = decoder.config().vocab;
    let rt = ctx.device(Precision::Bf16, false).clone();
    let startup = Startup::default();
    let model = EngineModel {
        rt,
        decoder,
        tokenizer: None,
        stop_tokens: Vec::new(),
        digest: None,
        startup,
    };
    let length = workload.prompt + workload.answer;
    let free = ctx.gpu.memory()?.0 as u64;
    let defaults = EngineOptions::default();
    let engine = Engine::new(
        model,
        &EngineOptions {
            max_num_seqs: workload.requests.min(256),
            max_num_batched_tokens: if ctx.tiny() { 16 } else { 8192 },
            max_model_len: Some(length),
            enable_prefix_caching: false,
            // Half of the free memory: the rest is for a step's buffers.
            kv_memory: if ctx.tiny() { None } else { Some(Budget::exact(free / 2)) },
            ..defaults
        },
    )?;
    let mut numbers = Numbers::new("served");
    let mut last = None;
    for _ in 0..2 {
        let requests: Vec<EngineRequest> = (0..workload.requests)
            .map(|_| EngineRequest {
                prompt: numbers.tokens(workload.prompt, vocab).into(),
                params: SamplingParams::greedy().into(),
                stop: StopRules {
                    max_tokens: workload.answer,
                    ignore_eos: true,
                    ..StopRules::default()
                },
                ..EngineRequest::default()
            })
            .collect();
        let started = Instant::now();
        let mut tokens = 0;
        for mut answer in engine.handle().submit_all(requests)? {
            let piece = answer.rest();
            let error = piece.end.and_then(|end| end.error);
            ensure!(error.is_none(), "a request failed: {error:?}");
            tokens += piece.tokens.len();
        }
        let seconds = started.elapsed().as_secs_f64();
        let due = workload.requests * workload.answer;
        ensure!(tokens == due, "{tokens} tokens came, {due} were due");
        last = Some((tokens as f64 / seconds, seconds));
    }
    let replayed = engine.handle().load().replay_rate();
    engine.shutdown()?;
    let (tokens_per_second, seconds) = last.unwrap_or_default();
    Ok(Served { workload, tokens_per_second, seconds, replayed })
}

pub(super) fn run(ctx: &Context, _limits: &Limits, take: &mut dyn FnMut(Measure)) -> Result<()> {
    for workload in workloads(ctx) {
        let served = serve(ctx, *workload)?;
        let Workload { config, requests, prompt, answer } = *workload;
        let replayed =
            served.replayed.map_or(String::new(), |r| format!(", {:.0}% replayed", 100.0 * r));
        take(Measure {
            name: "offline throughput".into(),
            workload: format!("{config}, {requests} x ({prompt} + {answer}) tokens{replayed}"),
            value: served.tokens_per_second,
            unit: "tokens/s",
            seconds: served.seconds,
            ratio: None,
        });
    }
    Ok(())
}

/// Measures all workloads on this device.
pub(crate) fn workloads(ctx: &Context) -> &'static [Workload] {
    if ctx.tiny() { &TINY } else { &SERVED }
}
