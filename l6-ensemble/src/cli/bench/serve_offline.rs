//! `strata bench serve-offline`: many requests at once through the engine.
//!
//! The workload has the shape of nano-vllm's benchmark: so many requests of made-up tokens, with lengths of prompts and
//! answers drawn uniformly, and no answer ending early. All come at once, or one by one at random moments (`--rate`).

mod meter;
mod report;
mod workload;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::ensure;
use l1_tensor::Runtime;
use l2_model::Decoder;
use l4_sampler::SamplingParams;
use l4_sampler::stop::StopRules;
use l5_scheduler::engine::AnswerTimes;
use l5_scheduler::{EngineHandle, EngineRequest, FinishReason};

use super::measure::{self, measure};
use super::span::Span;
use super::{at_least_one, positive};
use crate::cli::args::{ModelArgs, RuntimeArgs};
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::kv::{KvArgs, StateKind};
use crate::cli::load::Loaded;
use crate::cli::out;
use crate::cli::serving::{Demand, Parts, SchedulerArgs, Serving};
use meter::{Meter, Tally};
use report::{Report, Static, median};
use workload::{Arriving, draw};

/// Decode steps of the static batch, and how often they are measured; the median counts.
const STATIC_STEPS: usize = 32;
const STATIC_REPEAT: usize = 3;

/// Measure many requests at once through the engine: throughput and latencies
///
/// Requests are made-up tokens of random lengths whose answers do not end early, as in nano-vllm's benchmark. Latencies are
/// seen from the caller: TTFT from arrival to the first token, ITL between tokens, E2E to the last one.
#[derive(Debug, clap::Args)]
pub struct ServeOfflineArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    requests: usize,
    /// Tokens of a prompt: each number from A to B is as likely
    #[arg(long, value_name = "A,B", default_value = "100,1024")]
    input: Span,
    /// Tokens of an answer: each number from A to B is as likely
    #[arg(long, value_name = "A,B", default_value = "100,1024")]
    output: Span,
    /// Requests a second, at random moments (Poisson) [default: all at once]
    #[arg(long, value_name = "R", value_parser = positive)]
    rate: Option<f64>,
    /// What lengths, tokens and moments follow from
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Divide logits by this; 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.6)]
    temperature: f32,
    /// Compare with a static batch of so many sequences, decoded in a loop without any scheduler
    #[arg(long = "static", value_name = "B", value_parser = at_least_one)]
    static_batch: Option<usize>,
    /// Write the workload to a file, a request a line: {"arrival", "tokens", "output_tokens"}
    #[arg(long, value_name = "FILE.jsonl")]
    dump_workload: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
    #[command(flatten)]
    scheduler: SchedulerArgs,
}

/// Runs the command.
///
/// # Errors
/// A model that cannot be loaded, requests that do not fit, an engine that failed.
pub fn run(args: &ServeOfflineArgs, context: &Context) -> anyhow::Result<()> {
    if args.kv.state != StateKind::Paged {
        let why = "serving shares one pool of blocks, and only --state paged has any";
        return Err(CliError::Usage(why.into()).into());
    }
    let loaded = Loaded::open(&args.model, &args.runtime, context)?;
    let parts = Parts::new(loaded);
    let (rt, decoder) = (parts.model.rt.clone(), parts.model.decoder.clone());
    let (longest, room) =
        (args.input.to.saturating_add(args.output.to), decoder.config().max_context);
    ensure!(
        longest <= room,
        "requests would have up to {longest} tokens, but the context of {} holds {room}: lower --input or --output",
        args.model.model
    );
    let arriving =
        draw(args.requests, args.input, args.output, args.rate, decoder.config().vocab, args.seed);
    if let Some(path) = &args.dump_workload {
        workload::dump(path, &arriving)?;
    }
    let demand = Demand { requests: args.requests, longest };
    let (name, kv) = (&args.model.model, &args.kv);
    let serving = Serving::start(parts.model, name, &args.scheduler, kv, demand, context)?;
    let handle = serving.engine.handle().clone();
    warm_up(&handle)?;
    let meter = Meter::default();
    handle.observe(Box::new(meter.clone()))?;
    context.say(format_args!("serving {} requests", args.requests));
    let served = serve(&handle, &arriving, args.temperature)?;
    let tally = meter.take();
    let blocks = handle.config().num_gpu_blocks;
    serving.finish()?;

    let compared = match args.static_batch {
        Some(batch) => {
            context.say(format_args!("measuring a static batch of {batch}"));
            Some(static_batch(&rt, &decoder, args, batch, &tally, longest)?)
        }
        None => None,
    };
    let report = Report::new(name, blocks, &served, &tally, rt.gpu().is_some(), compared);
    match args.json {
        true => out::json_line(&report)?,
        false => out::text(&report.to_string())?,
    }
    Ok(())
}

/// What came of the requests.
struct Served {
    /// From the first arrival to the last token.
    took: Duration,
    input_tokens: usize,
    output_tokens: usize,
    times: Vec<AnswerTimes>,
}

/// One short answer, so that threads are awake and memory was touched.
fn warm_up(handle: &EngineHandle) -> anyhow::Result<()> {
    let stop = StopRules { max_tokens: 4, ignore_eos: true, ..StopRules::default() };
    let request = EngineRequest::new(vec![0; 4], SamplingParams::greedy(), stop);
    handle.submit(request)?.rest();
    Ok(())
}

/// Hands every request in when its moment comes, and reads when all are done: nobody is woken on the way.
fn serve(handle: &EngineHandle, all: &[Arriving], temperature: f32) -> anyhow::Result<Served> {
    let request = |arriving: &Arriving| {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let max_tokens = arriving.output_tokens;
        let stop = StopRules { max_tokens, ignore_eos: true, ..StopRules::default() };
        EngineRequest { seed: 0, ..EngineRequest::new(arriving.tokens.clone(), params, stop) }
    };
    let requests: Vec<_> = all.iter().map(request).collect();
    let began = Instant::now();
    let mut answers = Vec::with_capacity(requests.len());
    for (arriving, request) in all.iter().zip(requests) {
        let due = began + Duration::from_secs_f64(arriving.arrival);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        answers.extend(handle.submit_waiting(vec![request])?);
    }
    handle.drain()?;
    let took = began.elapsed();
    let (mut output_tokens, mut times) = (0, Vec::with_capacity(answers.len()));
    for mut answer in answers {
        let piece = answer.rest();
        if let Some(end) = piece.end.filter(|end| end.finish != FinishReason::Length) {
            let why = end.error.unwrap_or_else(|| end.finish.to_string());
            anyhow::bail!("{} did not come to its end: {why}", answer.id());
        }
        output_tokens += piece.tokens.len();
        times.push(answer.times());
    }
    let input_tokens = all.iter().map(|arriving| arriving.tokens.len()).sum();
    Ok(Served { took, input_tokens, output_tokens, times })
}

/// The same model in a plain loop: as many sequences, each as long as those of the engine were on average while it decoded
/// so many.
fn static_batch(
    rt: &Runtime,
    decoder: &Decoder,
    args: &ServeOfflineArgs,
    batch: usize,
    tally: &Tally,
    longest: usize,
) -> anyhow::Result<Static> {
    let mean = tally.mean_context(batch).unwrap_or(longest / 2);
    let context = mean.saturating_sub(STATIC_STEPS / 2).clamp(1, (longest - 1).max(1));
    let generate = STATIC_STEPS.min(longest - context).max(1);
    let work = measure::Workload { batch, prompt: 1, context, generate, repeat: STATIC_REPEAT };
    let kv = args.kv.plan(decoder.config(), rt, batch, work.longest())?;
    let timings = measure(rt, decoder, &kv, &work)?;
    let steps: Vec<f64> =
        timings.decode.iter().map(|d| d.as_secs_f64() / generate as f64).collect();
    Ok(Static { batch, context, tokens_per_s: median(steps).map_or(0.0, |step| 1.0 / step) })
}

/// For messages about files.
fn refused(path: &Path, reason: std::io::Error) -> CliError {
    CliError::Output { path: path.to_owned(), reason }
}
