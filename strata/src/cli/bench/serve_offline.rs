//! `strata bench serve-offline`: many requests at once through the engine.
//!
//! The workload is that of nano-vllm's benchmark: requests of synthetic tokens, with lengths of prompts and completions
//! drawn uniformly, and no completion ending early. All arrive at once, or at random times (`--rate`).

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
use l5_scheduler::engine::ResponseTimes;
use l5_scheduler::{EngineHandle, EngineRequest, FinishReason};

use super::measure::{Rounds, Run, Timings, Workload};
use super::span::Span;
use super::{at_least_one, positive};
use crate::cli::args::{ModelArgs, RuntimeArgs};
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::kv::{KvArgs, StateKind};
use crate::cli::load::Loaded;
use crate::cli::options::SpeculationOptions;
use crate::cli::out;
use crate::cli::serving::{Demand, Parts, SchedulerArgs, Serving};
use meter::{Meter, Tally};
use report::{Report, Static, median};
use server::words::count;
use workload::{Arriving, draw};

/// Decode steps of the static batch and repetitions of the measurement, of which the median is reported.
const STATIC_STEPS: usize = 32;
const STATIC_REPEAT: usize = 3;

/// Measure the engine under many requests at once: throughput and latencies
///
/// Requests are synthetic tokens of random lengths, and no completion ends early, as in nano-vllm's benchmark.
/// Latencies are those of the caller: TTFT from arrival to the first token, ITL between tokens, E2E to the last token.
#[derive(Debug, clap::Args)]
pub struct ServeOfflineArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Number of requests
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    requests: usize,
    /// Number of tokens of a prompt, drawn uniformly from A to B
    #[arg(long, value_name = "A,B", default_value = "100,1024")]
    input: Span,
    /// Number of tokens of a completion, drawn uniformly from A to B
    #[arg(long, value_name = "A,B", default_value = "100,1024")]
    output: Span,
    /// Requests per second, with random arrivals (Poisson) [default: all at once]
    #[arg(long, value_name = "R", value_parser = positive)]
    rate: Option<f64>,
    /// Seed of lengths, tokens and arrivals
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Sampling temperature; 0 for the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.6)]
    temperature: f32,
    /// Compare with a static batch of this many sequences, decoded in a loop without a scheduler
    #[arg(long = "static", value_name = "B", value_parser = at_least_one)]
    static_batch: Option<usize>,
    /// Write the workload to a file, one request per line: {"arrival", "tokens", "output_tokens"}
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
    speculation: SpeculationOptions,
    #[command(flatten)]
    scheduler: SchedulerArgs,
}

/// Runs the command.
///
/// # Errors
/// A model that cannot be loaded, requests that do not fit, an engine that failed.
pub fn run(args: &ServeOfflineArgs, context: &Context) -> anyhow::Result<()> {
    if args.kv.state != StateKind::Paged {
        let why = "requests share one pool of blocks, which requires --state paged";
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
    let demand = Demand { requests: args.requests, longest, max_lora_rank: None };
    let (name, kv) = (&args.model.model, &args.kv);
    let (scheduler, speculation) = (&args.scheduler, &args.speculation);
    let serving = Serving::start(parts.model, name, scheduler, speculation, kv, demand, context)?;
    let handle = serving.engine.handle().clone();
    warm_up(&handle)?;
    let meter = Meter::default();
    handle.observe(Box::new(meter.clone()))?;
    context.say(format_args!("serving {}", count(args.requests, "request")));
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
    let (captures, config) = (rt.gpu().is_some(), &args.speculation.speculative_config);
    let method = config.as_ref().map(|config| config.method);
    let report = Report::new(name, blocks, &served, &tally, captures, method, compared);
    match args.json {
        true => out::json_line(&report)?,
        false => out::text(&report.to_string())?,
    }
    Ok(())
}

/// Results of the requests.
struct Served {
    /// From the first arrival to the last token.
    took: Duration,
    input_tokens: usize,
    output_tokens: usize,
    times: Vec<ResponseTimes>,
}

/// Runs one short request, so that threads are awake and memory was touched.
fn warm_up(handle: &EngineHandle) -> anyhow::Result<()> {
    let stop = StopRules { max_tokens: 4, ignore_eos: true, ..StopRules::default() };
    let request = EngineRequest::new(vec![0; 4], SamplingParams::greedy(), stop);
    handle.submit(request)?.rest();
    Ok(())
}

/// Submits every request when it is due, and reads outputs when all are done, so that no reader is woken meanwhile.
fn serve(handle: &EngineHandle, all: &[Arriving], temperature: f32) -> anyhow::Result<Served> {
    let request = |arriving: &Arriving| {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let max_tokens = arriving.output_tokens;
        let stop = StopRules { max_tokens, ignore_eos: true, ..StopRules::default() };
        EngineRequest { seed: 0, ..EngineRequest::new(arriving.tokens.clone(), params, stop) }
    };
    let requests: Vec<_> = all.iter().map(request).collect();
    let began = Instant::now();
    let mut streams = Vec::with_capacity(requests.len());
    for (arriving, request) in all.iter().zip(requests) {
        let due = began + Duration::from_secs_f64(arriving.arrival);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        streams.extend(handle.submit_waiting(vec![request])?);
    }
    handle.drain()?;
    let took = began.elapsed();
    let (mut output_tokens, mut times) = (0, Vec::with_capacity(streams.len()));
    for mut stream in streams {
        let chunk = stream.rest();
        if let Some(end) = chunk.end.filter(|end| end.finish != FinishReason::Length) {
            let why = end.error.unwrap_or_else(|| end.finish.to_string());
            anyhow::bail!("{} did not finish: {why}", stream.id());
        }
        output_tokens += chunk.tokens.len();
        times.push(stream.times());
    }
    let input_tokens = all.iter().map(|arriving| arriving.tokens.len()).sum();
    Ok(Served { took, input_tokens, output_tokens, times })
}

/// Decodes `batch` sequences in a plain loop, each as long as the engine's sequences were on average at that batch
/// size.
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
    let work = Workload { batch, prompt: 1, context, generate, repeat: STATIC_REPEAT };
    let kv = args.kv.plan(decoder.config(), rt, batch, work.longest())?;
    let mut run = Run::new(rt, decoder, None, &kv, &work)?;
    let mut timings = Timings::default();
    for _ in 0..work.repeat {
        run.round(&mut timings)?;
    }
    let steps: Vec<f64> =
        timings.decode.iter().map(|d| d.as_secs_f64() / generate as f64).collect();
    Ok(Static { batch, context, tokens_per_s: median(steps).map_or(0.0, |step| 1.0 / step) })
}

/// An error about a file that cannot be written.
fn refused(path: &Path, reason: std::io::Error) -> CliError {
    CliError::Output { path: path.to_owned(), reason }
}
