//! Whole models of random weights: the shapes of Qwen3-0.6B and Qwen3-8B.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kernels::{Buffer, Gpu, Timer};
use l1_tensor::Precision;
use l2_model::{Decoder, ModelConfig};

use super::{Limits, Measure, Ratio, Runs, Target, by_matmul, filled, time};
use crate::step::{Capacity, Steps};
use crate::{Context, Numbers};

/// A model whose speed is measured, and bounds on the duration of its steps.
struct Plan {
    name: &'static str,
    config: &'static str,
    /// Sequences, tokens of each, and maximum duration of a step as a multiple of the time in which the bytes
    /// it must read can be read.
    decode: &'static [(usize, usize, Option<f64>)],
    /// Sequences and tokens of each, for a step that verifies drafts.
    verify: &'static [(usize, usize)],
    prompt: usize,
    prefill_least: f64,
}

/// The larger one last: it is kept for what follows.
const PLANS: [Plan; 2] = [
    Plan {
        name: "Qwen3-0.6B",
        config: "configs/qwen3-0.6b.json",
        decode: &[(1, 128, None), (64, 1024, None), (256, 512, None)],
        verify: &[(1, 4096)],
        prompt: 8192,
        prefill_least: 0.50,
    },
    Plan {
        name: "Qwen3-8B",
        config: "configs/qwen3-8b.json",
        decode: &[(1, 128, Some(1.25)), (64, 1024, Some(1.35)), (256, 512, None)],
        verify: &[(1, 1024), (1, 16_384), (3, 4096), (16, 1024)],
        prompt: 8192,
        prefill_least: 0.50,
    },
];

const TINY: Plan = Plan {
    name: "tiny-qwen3",
    config: "tiny-qwen3/config.json",
    decode: &[(1, 8, None), (3, 5, None)],
    verify: &[(2, 7)],
    prompt: 16,
    prefill_least: 0.50,
};

/// Maximum duration of a recorded step, as a multiple of the same launches enqueued one by one.
const CAPTURED_MOST: f64 = 1.15;

/// Drafts of each sequence in a step that verifies them.
const DRAFTS: usize = 4;

/// Maximum duration of such a step, as a multiple of a step of one token for each sequence: both read the same bytes.
const VERIFY_MOST: f64 = 1.2;

/// Maximum number of seconds that the host may take for a replay.
const HOST_MOST: f64 = 20e-6;

pub(super) fn run(ctx: &Context, limits: &Limits, take: &mut dyn FnMut(Measure)) -> Result<()> {
    let plans = if ctx.tiny() { std::slice::from_ref(&TINY) } else { &PLANS[..] };
    for plan in plans {
        let decoder = ctx.random(plan.config)?;
        for (batch, context, most) in plan.decode {
            decode(ctx, limits, plan.name, &decoder, (*batch, *context), *most, take)
                .with_context(|| format!("{}, batch {batch}", plan.name))?;
        }
        for (batch, context) in plan.verify {
            verify(ctx, plan.name, &decoder, (*batch, *context), take)
                .with_context(|| format!("{}, drafts, batch {batch}", plan.name))?;
        }
        prefill(ctx, limits, plan, &decoder, take).with_context(|| plan.name)?;
    }
    Ok(())
}

/// Number of bytes of keys and values of a token.
fn kv_bytes(config: &ModelConfig) -> usize {
    config.attention_layers().map(|(_, a)| 2 * a.kv_heads * a.head_dim * 2).sum()
}

fn decode(
    ctx: &Context,
    limits: &Limits,
    name: &str,
    decoder: &Arc<Decoder>,
    (batch, context): (usize, usize),
    most: Option<f64>,
    take: &mut dyn FnMut(Measure),
) -> Result<()> {
    let rt = ctx.device(Precision::Bf16, false);
    let capacity = Capacity {
        sequences: batch,
        context: context + 1,
        tokens: batch,
        rows: batch,
        block_size: 16,
    };
    let mut steps = Steps::new(rt, decoder, capacity)?;
    let tokens = Numbers::new(name).tokens(batch, decoder.config().vocab);
    let parts: Vec<_> = (0..batch).map(|s| (s, context, &tokens[s..=s])).collect();
    steps.set(&parts, false)?;
    let workload = format!("{name}, decode, batch {batch}, context {context}");

    let queued = queued(ctx, &mut steps)?;
    steps.capture()?;
    let replayed = time(&ctx.gpu, Runs::long(ctx), |_| steps.replay())?;
    let bytes = decoder.bytes_per_step() + batch * context * kv_bytes(decoder.config());
    let floor = bytes as f64 / limits.copy;
    take(Measure {
        name: "decode step, recorded".into(),
        workload: workload.clone(),
        value: replayed.as_secs_f64() * 1e3,
        unit: "ms",
        seconds: replayed.as_secs_f64(),
        ratio: Some(Ratio {
            of: "the time to read its bytes".into(),
            value: replayed.as_secs_f64() / floor,
            share: false,
            target: most.map(Target::AtMost),
        }),
    });
    take(Measure {
        name: "the same launches, queued one by one".into(),
        workload: workload.clone(),
        value: queued.as_secs_f64() * 1e3,
        unit: "ms",
        seconds: queued.as_secs_f64(),
        ratio: Some(Ratio {
            of: "the time of these launches".into(),
            value: replayed.as_secs_f64() / queued.as_secs_f64().max(1e-9),
            share: false,
            target: Some(Target::AtMost(CAPTURED_MOST)),
        }),
    });

    let host = host_times(ctx, &mut steps)?;
    for (name, took, most) in
        [("host: a replay", host.0, Some(HOST_MOST)), ("host: staging a step", host.1, None)]
    {
        take(Measure {
            name: name.into(),
            workload: workload.clone(),
            value: took.as_secs_f64() * 1e6,
            unit: "us",
            seconds: took.as_secs_f64(),
            ratio: most.map(|most| Ratio {
                of: "20 us".into(),
                value: took.as_secs_f64() / most,
                share: false,
                target: Some(Target::AtMost(1.0)),
            }),
        });
    }
    Ok(())
}

/// A step that verifies drafts, recorded, beside the same step without drafts.
fn verify(
    ctx: &Context,
    name: &str,
    decoder: &Arc<Decoder>,
    (batch, context): (usize, usize),
    take: &mut dyn FnMut(Measure),
) -> Result<()> {
    let rt = ctx.device(Precision::Bf16, false);
    let tokens = Numbers::new(name).tokens(batch * (1 + DRAFTS), decoder.config().vocab);
    let step = |each: usize| -> Result<Duration> {
        let capacity = Capacity {
            sequences: batch * each,
            context: context + each,
            tokens: batch * each,
            rows: batch * each,
            block_size: 16,
        };
        let mut steps = Steps::new(rt, decoder, capacity)?;
        let parts: Vec<_> =
            (0..batch).map(|s| (s, context, &tokens[s * each..(s + 1) * each])).collect();
        steps.set(&parts, true)?;
        steps.pad_sequences()?;
        steps.capture()?;
        time(&ctx.gpu, Runs::long(ctx), |_| steps.replay())
    };
    let (plain, drafted) = (step(1)?, step(1 + DRAFTS)?);
    take(Measure {
        name: "step with drafts, recorded".into(),
        workload: format!("{name}, {DRAFTS} drafts each, batch {batch}, context {context}"),
        value: drafted.as_secs_f64() * 1e3,
        unit: "ms",
        seconds: drafted.as_secs_f64(),
        ratio: Some(Ratio {
            of: "the step without drafts".into(),
            value: drafted.as_secs_f64() / plain.as_secs_f64().max(1e-9),
            share: false,
            target: Some(Target::AtMost(VERIFY_MOST)),
        }),
    });
    Ok(())
}

/// Duration of a step's kernels when all of them are in the queue before the first of them runs: behind a
/// copy that takes longer than launching them. It includes only the device's own gaps between kernels.
fn queued(ctx: &Context, steps: &mut Steps) -> Result<Duration> {
    let gpu: &Gpu = &ctx.gpu;
    let (size, copies) = if ctx.tiny() { (1 << 10, 1) } else { (1 << 30, 40) };
    let from = filled(&ctx.gpu, size)?;
    let mut to = Buffer::zeroed(&ctx.gpu, size)?;
    let mut timer = Timer::new(gpu)?;
    steps.eager()?;
    gpu.synchronize()?;
    let mut times = Vec::new();
    for _ in 0..Runs::long(ctx).samples {
        for _ in 0..copies {
            to.view_mut().copy_within_device(gpu, from.view())?;
        }
        times.push(timer.time(gpu, || steps.eager())?);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Returns the medians of the time that the host takes to launch a recorded step, and to stage it before.
fn host_times(ctx: &Context, steps: &mut Steps) -> Result<(Duration, Duration)> {
    let (mut replays, mut stages) = (Vec::new(), Vec::new());
    for _ in 0..if ctx.tiny() { 3 } else { 50 } {
        ctx.gpu.synchronize()?;
        let started = Instant::now();
        steps.stage()?;
        let staged = Instant::now();
        steps.replay()?;
        replays.push(staged.elapsed());
        stages.push(staged - started);
    }
    ctx.gpu.synchronize()?;
    replays.sort_unstable();
    stages.sort_unstable();
    Ok((replays[replays.len() / 2], stages[stages.len() / 2]))
}

fn prefill(
    ctx: &Context,
    limits: &Limits,
    plan: &Plan,
    decoder: &Arc<Decoder>,
    take: &mut dyn FnMut(Measure),
) -> Result<()> {
    let (t, config) = (plan.prompt, decoder.config());
    let capacity = Capacity { sequences: 1, context: t, tokens: t, rows: 1, block_size: 16 };
    let mut steps = Steps::new(ctx.device(Precision::Bf16, false), decoder, capacity)?;
    let tokens = Numbers::new("prompt").tokens(t, config.vocab);
    steps.set(&[(0, 0, &tokens)], false)?;
    let took = time(&ctx.gpu, Runs::long(ctx), |_| steps.eager())?;
    // Every weight of a layer multiplies every token; of the head's rows only one token's are computed.
    let head = config.vocab * config.hidden;
    let layers = (decoder.bytes_per_step() / 2).saturating_sub(head);
    let pairs = (t * t / 2) as f64;
    let heads: usize = config.attention_layers().map(|(_, a)| a.q_heads * a.head_dim).sum();
    let operations =
        2.0 * layers as f64 * t as f64 + 2.0 * head as f64 + 4.0 * pairs * heads as f64;
    let workload = format!("{}, {t} tokens", plan.name);
    take(by_matmul(limits, "prefill", workload, operations, took, plan.prefill_least));
    let rate = t as f64 / took.as_secs_f64().max(1e-9);
    take(Measure {
        name: "prefill".into(),
        workload: format!("{}, {t} tokens", plan.name),
        value: rate,
        unit: "tokens/s",
        seconds: took.as_secs_f64(),
        ratio: None,
    });
    Ok(())
}
