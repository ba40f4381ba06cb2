//! Whole models: the tiny ones of `fixtures`, of every family.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use l1_tensor::{Precision, Runtime};
use l2_model::{
    Batch, ContiguousState, Decoder, ModelFiles, SequenceState, Workspace, WorkspaceSpec,
};
use l4_sampler::stop::StopRules;
use l4_sampler::{LogprobsRequest, SamplingParams};
use l5_scheduler::engine::{EngineModel, Startup};
use l5_scheduler::speculation::{DraftMethod, SpeculativeConfig, WindowMode};
use l5_scheduler::{DraftCounts, Engine, EngineOptions, EngineRequest};

use super::{Check, Outcome, Tolerance, close};
use crate::step::{Capacity, Steps};
use crate::{Context, Numbers};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "models in full precision", run: |ctx| forced(ctx, Precision::F32) },
    Check { name: "models in bf16", run: |ctx| forced(ctx, Precision::Bf16) },
    Check {
        name: "a replayed step is the same bits as one launched kernel by kernel",
        run: replayed,
    },
    Check { name: "a recorded step serves other batches of its shape", run: other_batches },
    Check {
        name: "batch invariance: a sequence is the same bits alone and in a batch",
        run: company,
    },
    Check { name: "paged and contiguous keys and values give the same logits", run: paged },
    Check { name: "an engine gives the same output with and without recorded steps", run: engines },
    Check { name: "an engine gives the same output with and without drafts", run: drafts },
];

/// One model of each family, those in NVFP4, and one with another rope scaling.
const MODELS: [&str; 8] = [
    "tiny-llama",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-llama-nvfp4",
    "tiny-qwen3-modelopt-nvfp4",
    "tiny-llama-untied",
    "tiny-llama-yarn",
];

/// Number of tokens of a sequence, and how many of them are its prompt.
const LEN: usize = 28;
const PROMPT: usize = 19;

fn model(ctx: &Context, rt: &Runtime, name: &str) -> Result<Arc<Decoder>> {
    let files = ModelFiles::open(&ctx.fixtures.join(name)).with_context(|| name.to_string())?;
    Ok(Arc::new(files.decoder(rt)?))
}

fn capacity(sequences: usize) -> Capacity {
    let tokens = sequences * LEN;
    Capacity { sequences, context: 2 * LEN, tokens, rows: tokens, block_size: 8 }
}

/// Returns the logits of every token of a sequence that is fed as a prompt, then token by token.
fn fed(rt: &Runtime, decoder: &Arc<Decoder>, tokens: &[u32]) -> Result<Vec<f32>> {
    let mut steps = Steps::new(rt, decoder, capacity(1))?;
    let mut logits = steps.run(&[(0, 0, &tokens[..PROMPT])], true)?;
    for at in PROMPT..tokens.len() {
        logits.extend(steps.run(&[(0, at, &tokens[at..=at])], true)?);
    }
    Ok(logits)
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
    row.iter().map(|x| f64::from(x - most) - sum.ln()).collect()
}

fn likeliest(row: &[f64]) -> usize {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0)
}

/// Both sides are fed the same tokens, whichever they would have chosen. So one difference does not lead to
/// another text, and every position can be compared.
fn forced(ctx: &Context, precision: Precision) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let models = if ctx.tiny() { &MODELS[..5] } else { &MODELS[..] };
    let (mut all, mut regrets) = (Vec::new(), Vec::new());
    for name in models {
        let on_cpu = model(ctx, ctx.cpu(), name)?;
        let vocab = on_cpu.config().vocab;
        let tokens = Numbers::new(name).tokens(LEN, vocab);
        let wanted = fed(ctx.cpu(), &on_cpu, &tokens)?;
        for batch_invariant in [false, true] {
            let rt = ctx.device(precision, batch_invariant);
            let got = fed(rt, &model(ctx, rt, name)?, &tokens)?;
            ensure!(
                got.len() == wanted.len(),
                "{name}: {} logits, not {}",
                got.len(),
                wanted.len()
            );
            let mut differences = Vec::new();
            for (got, wanted) in got.chunks(vocab).zip(wanted.chunks(vocab)) {
                let (got, wanted) = (log_softmax(got), log_softmax(wanted));
                differences.extend(got.iter().zip(&wanted).map(|(a, b)| (a - b).abs()));
                // Loss of log probability where the device would choose another token.
                regrets.push(wanted[likeliest(&wanted)] - wanted[likeliest(&got)]);
            }
            outcome.add(differences.iter().copied().fold(0.0, f64::max));
            all.extend(differences);
        }
    }
    all.sort_unstable_by(f64::total_cmp);
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    let p99 = all.get(all.len() * 99 / 100).copied().unwrap_or(0.0);
    let regret = regrets.iter().copied().fold(0.0, f64::max);
    outcome.note = format!(
        "log probabilities are off by {mean:.1e} on average and {p99:.1e} at the 99th percentile; the \
         device's choice is less likely by {regret:.1e} at most"
    );
    // In full precision only the order of sums differs. bf16 has eight bits: a relative error of 2^-9
    // for each rounding, a few dozen of them in a row, in logits of a few units.
    let (mean_most, p99_most, regret_most) = match precision {
        Precision::F32 => (2e-5, 2e-4, 1e-3),
        Precision::Bf16 => (2e-2, 8e-2, 0.1),
    };
    let within = mean <= mean_most && p99 <= p99_most && regret <= regret_most;
    ensure!(within, "{outcome} (allowed: {mean_most:e}, {p99_most:e}, {regret_most:e})");
    Ok(outcome)
}

fn replayed(ctx: &Context) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (name, precision) in [
        ("tiny-llama", Precision::F32),
        ("tiny-qwen3", Precision::Bf16),
        ("tiny-qwen2", Precision::Bf16),
        ("tiny-llama-nvfp4", Precision::Bf16),
    ] {
        let rt = ctx.device(precision, false);
        let decoder = model(ctx, rt, name)?;
        let vocab = decoder.config().vocab;
        let mut numbers = Numbers::new(name);
        let prompts: Vec<Vec<u32>> = (0..3).map(|_| numbers.tokens(PROMPT, vocab)).collect();
        let mut steps = Steps::new(rt, &decoder, capacity(3))?;
        let parts: Vec<_> = prompts.iter().enumerate().map(|(s, p)| (s, 0, p.as_slice())).collect();
        steps.run(&parts, false)?;
        let next = numbers.tokens(3, vocab);
        let parts: Vec<_> = (0..3).map(|s| (s, PROMPT, &next[s..=s])).collect();
        // A step stores the same keys however often it runs.
        let eager = steps.run(&parts, false)?;
        steps.capture()?;
        for _ in 0..2 {
            steps.stage()?;
            steps.replay()?;
            let replayed = steps.logits()?;
            // Launches of a recorded step are sized for the largest context, so a long one may be split
            // differently than here. These contexts are short: without a split the sums have one order.
            outcome.add(close(name, &replayed, &eager, Tolerance::EXACT)?);
        }
    }
    Ok(outcome)
}

fn other_batches(ctx: &Context) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let rt = ctx.device(Precision::Bf16, true);
    let decoder = model(ctx, rt, "tiny-qwen3")?;
    let vocab = decoder.config().vocab;
    let mut numbers = Numbers::new("other batches");
    let mut steps = Steps::new(rt, &decoder, capacity(4))?;
    let prompts: Vec<Vec<u32>> = (0..4).map(|s| numbers.tokens(PROMPT - 3 * s, vocab)).collect();
    let parts: Vec<_> = prompts.iter().enumerate().map(|(s, p)| (s, 0, p.as_slice())).collect();
    steps.run(&parts, false)?;
    let filler = [0_u32];
    steps.set(&[(0, PROMPT, &filler), (1, PROMPT - 3, &filler)], false)?;
    steps.capture()?;
    // Other sequences, of other lengths, at later positions.
    for pair in [[2, 3], [3, 1], [0, 2], [1, 0]] {
        let tokens = numbers.tokens(2, vocab);
        let part = |i: usize| (pair[i], prompts[pair[i]].len(), &tokens[i..=i]);
        let parts = [part(0), part(1)];
        steps.set(&parts, false)?;
        steps.stage()?;
        steps.replay()?;
        let replayed = steps.logits()?;
        let eager = steps.run(&parts, false)?;
        let tolerance = Tolerance { absolute: 1e-3, relative: 1e-3 };
        outcome.add(close(&format!("sequences {pair:?}"), &replayed, &eager, tolerance)?);
        steps.set(&parts, false)?;
        steps.capture()?;
    }
    Ok(outcome)
}

fn company(ctx: &Context) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (name, precision) in [("tiny-llama", Precision::F32), ("tiny-qwen3", Precision::Bf16)] {
        let rt = ctx.device(precision, true);
        let decoder = model(ctx, rt, name)?;
        let vocab = decoder.config().vocab;
        let tokens = Numbers::new(name).tokens(LEN, vocab);
        let alone = fed(rt, &decoder, &tokens)?;
        let mut others = Numbers::new("company");
        // As the middle one of five, in chunks of other sizes.
        let mut steps = Steps::new(rt, &decoder, capacity(5))?;
        let (mut at, mut together) = (0, Vec::new());
        for piece in [7, 1, 12, 1, 7] {
            let company: Vec<Vec<u32>> =
                (0..4).map(|s| others.tokens(1 + (3 * s + at) % 9, vocab)).collect();
            let part = |s: usize| (s, 0, company[s].as_slice());
            let parts = [part(0), part(1), (4, at, &tokens[at..at + piece]), part(2), part(3)];
            let before = (company[0].len() + company[1].len()) * vocab;
            let logits = steps.run(&parts, true)?;
            together.extend_from_slice(&logits[before..before + piece * vocab]);
            at += piece;
        }
        outcome.add(close(name, &together, &alone, Tolerance::EXACT)?);
    }
    Ok(outcome)
}

fn paged(ctx: &Context) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (name, precision) in [("tiny-llama", Precision::F32), ("tiny-mistral", Precision::Bf16)] {
        let rt = ctx.device(precision, true);
        let decoder = model(ctx, rt, name)?;
        let config = decoder.config();
        let tokens = Numbers::new(name).tokens(LEN, config.vocab);
        let in_blocks = fed(rt, &decoder, &tokens)?;
        let dtype = rt.activation_dtype();
        let mut state = ContiguousState::new_on(rt.device(), config, 1, LEN, dtype)?;
        let spec = WorkspaceSpec { max_tokens: LEN, max_rows: LEN, max_context: LEN };
        let mut ws = Workspace::new(rt, config, spec)?;
        let positions: Vec<i32> = (0..LEN as i32).collect();
        let rows: Vec<u32> = (0..LEN as u32).collect();
        let mut in_one = Vec::new();
        let pieces = [(0, PROMPT)].into_iter().chain((PROMPT..LEN).map(|at| (at, 1)));
        for (at, n) in pieces {
            let batch = Batch {
                tokens: &tokens[at..at + n],
                positions: &positions[at..at + n],
                cu_seqlens_q: &[0, n as i32],
                state_slots: &[0],
                logit_rows: &rows[..n],
                ..Batch::default()
            };
            in_one.extend(decoder.forward(&batch, &mut state, &mut ws)?.to_vec_f32()?);
        }
        ensure!(state.len(0) == LEN, "{name}: {} tokens were stored", state.len(0));
        outcome.add(close(name, &in_blocks, &in_one, Tolerance::EXACT)?);
    }
    Ok(outcome)
}

/// Output of a request: its tokens, and the bits of their log probabilities.
type Output = (Vec<u32>, Vec<u32>);

fn engines(ctx: &Context) -> Result<Outcome> {
    let rt = ctx.device(Precision::Bf16, true);
    let decoder = model(ctx, rt, "tiny-qwen3")?;
    let (eager, _) = serve(rt, &decoder, EngineOptions { eager: true, ..options() })?;
    let (recorded, _) = serve(rt, &decoder, options())?;
    same_outputs(&eager, &recorded)
}

/// Drafts of each kind that needs no other model. Requests come twice: the second time `suffix` knows what the outputs
/// will be, while most drafts of `ngram` are wrong.
fn drafts(ctx: &Context) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let rt = ctx.device(Precision::Bf16, true);
    let decoder = model(ctx, rt, "tiny-qwen3")?;
    let (plain, _) = serve(rt, &decoder, options())?;
    for method in [DraftMethod::Ngram, DraftMethod::Suffix] {
        for eager in [true, false] {
            let mut config = SpeculativeConfig::new(method, 4);
            config.window = WindowMode::Fixed;
            if method == DraftMethod::Ngram {
                // Random prompts repeat single tokens, hardly more.
                (config.prompt_lookup_min, config.prompt_lookup_max) = (Some(1), Some(2));
            }
            let with = EngineOptions { eager, speculative: Some(config), ..options() };
            let (drafted, counts) = serve(rt, &decoder, with)?;
            let same = same_outputs(&plain, &drafted).with_context(|| format!("{method:?}"))?;
            ensure!(counts.proposed > 0, "{method:?}: no draft was verified");
            let known = method == DraftMethod::Suffix;
            ensure!(counts.accepted > 0 || !known, "{method:?}: no draft was accepted");
            outcome.cases += same.cases;
        }
    }
    Ok(outcome)
}

fn options() -> EngineOptions {
    EngineOptions {
        max_num_seqs: 4,
        max_num_batched_tokens: 32,
        max_model_len: Some(64),
        ..EngineOptions::default()
    }
}

fn same_outputs(one: &[Output], other: &[Output]) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    ensure!(one.len() == other.len(), "{} outputs, and {}", one.len(), other.len());
    for (i, (one, other)) in one.iter().zip(other).enumerate() {
        ensure!(one.0.len() == one.1.len(), "request {i}: {} log probabilities", one.1.len());
        ensure!(one.0 == other.0, "request {i}: {:?}, and {:?}", one.0, other.0);
        ensure!(one.1 == other.1, "request {i}: other log probabilities");
        outcome.add(0.0);
    }
    Ok(outcome)
}

/// Outputs of some requests, greedy ones and sampled ones, each of them twice, and how many drafts were verified and
/// accepted.
fn serve(
    rt: &Runtime,
    decoder: &Arc<Decoder>,
    options: EngineOptions,
) -> Result<(Vec<Output>, DraftCounts)> {
    let vocab = decoder.config().vocab;
    let model = EngineModel {
        rt: rt.clone(),
        decoder: Arc::clone(decoder),
        tokenizer: None,
        stop_tokens: Vec::new(),
        digest: None,
        startup: Startup::default(),
    };
    let engine = Engine::new(model, &options)?;
    let mut numbers = Numbers::new("engines");
    let requests: Vec<EngineRequest> = (0..6)
        .map(|i| EngineRequest {
            prompt: numbers.tokens(3 + 4 * i, vocab).into(),
            params: SamplingParams {
                temperature: [0.0, 0.8][i % 2],
                logprobs: Some(LogprobsRequest::default()),
                ..SamplingParams::default()
            }
            .into(),
            stop: StopRules { max_tokens: 8 + 4 * i, ignore_eos: true, ..StopRules::default() },
            seed: i as u64,
            ..EngineRequest::default()
        })
        .collect();
    let (mut all, mut counts) = (Vec::new(), DraftCounts::default());
    for requests in [requests.clone(), requests] {
        for mut response in engine.handle().submit_all(requests)? {
            let output = response.rest();
            let drafts = output.end.as_ref().map(|end| end.drafts).unwrap_or_default();
            counts.proposed += drafts.proposed;
            counts.accepted += drafts.accepted;
            let error = output.end.and_then(|end| end.error);
            ensure!(error.is_none(), "a request failed: {error:?}");
            let logprobs = output.logprobs.iter().map(|l| l.logprob.to_bits()).collect();
            all.push((output.tokens, logprobs));
        }
    }
    engine.shutdown()?;
    Ok((all, counts))
}
