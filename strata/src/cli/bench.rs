//! `strata bench`: the speed of a model on this machine, beside the limits of the machine.
//!
//! A figure in tokens per second says little by itself. Two limits give it a scale:
//!
//! * **Decode** of few sequences reads every weight for every step, so it can be no faster than
//!   memory: `read bandwidth / bytes per step`.
//! * **Prefill** (and decode of many sequences) reuses each weight it has read, so it can be no
//!   faster than the multipliers: `peak FLOP/s / FLOP per token`.
//!
//! (This is the roofline model; Williams, Waterman and Patterson 2009.) Both limits are measured in the same run: the
//! peak at the start, the bandwidth again right before and after every decode, because on shared machines it changes
//! from one minute to the next. The fraction that is reached is what should be compared between machines and versions.
//! (On CUDA the bandwidth is that of a copy on the device, what is read and what is written counted, and the steps are
//! the engine's own, captured ones.)

mod agents;
pub(super) mod coding_agent;
mod fit;
mod measure;
mod on_device;
pub(super) mod random;
mod report;
mod serve;
mod serve_offline;
mod span;
mod speculation;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use l1_tensor::Precision;
use l1_tensor::cpu::machine::{flop_peak, read_bandwidth};

use super::args::{ModelArgs, RuntimeArgs};
use super::context::Context;
use super::error::CliError;
use super::kv::{KvArgs, StateKind};
use super::load::Loaded;
use super::options::CaptureOptions;
use super::out;
use measure::{Workload, measure};
use report::{Limits, Report};

/// Measure prefill and decode, and compare them with the limits of this machine
///
/// Prompts are synthetic tokens, decoded greedily; the speed of a dense model does not depend on the tokens. Fractions
/// are of the memory bandwidth and of the peak FLOP/s, both measured in the same run.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    model: ModelArgs,
    /// Use random weights with the shapes of --config, instead of reading a model
    #[arg(long, requires = "config", conflicts_with = "model")]
    random_weights: bool,
    /// The config.json of a model with random weights
    #[arg(long, value_name = "FILE", requires = "random_weights")]
    config: Option<PathBuf>,
    /// Number of tokens of each prompt in the prefill measurement
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    prompt_tokens: usize,
    /// Number of tokens that each sequence generates in the decode measurement
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    gen_tokens: usize,
    /// Number of tokens of each sequence when its decode measurement begins
    #[arg(long, value_name = "N", default_value_t = 128)]
    context: usize,
    /// Batch sizes, measured one after the other
    #[arg(long, value_name = "N,..", default_value = "1,8,32", value_delimiter = ',')]
    #[arg(value_parser = at_least_one)]
    batch: Vec<usize>,
    /// Number of repetitions of each measurement; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    repeat: usize,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Measure steps of the engine instead, and write a cost model to this file, for `strata simulate --cost-model`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "batch", "repeat"])]
    fit_cost: Option<PathBuf>,
    #[command(flatten)]
    capture: CaptureOptions,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

impl BenchArgs {
    /// Name of what is measured.
    fn name(&self) -> String {
        match &self.config {
            Some(config) => format!("{} with random weights", config.display()),
            None => self.model.model.clone(),
        }
    }
}

/// Measurements of a server, and of the engine under load.
#[derive(Debug, clap::Subcommand)]
enum What {
    Agents(Box<agents::AgentsBenchArgs>),
    Serve(Box<serve::ServeBenchArgs>),
    ServeOffline(Box<serve_offline::ServeOfflineArgs>),
}

fn at_least_one(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(n) => Ok(n),
        Err(e) => Err(e.to_string()),
    }
}

fn positive(s: &str) -> Result<f64, String> {
    match s.parse::<f64>() {
        Ok(x) if x.is_finite() && x > 0.0 => Ok(x),
        Ok(_) => Err("must be above 0".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

/// Runs the command.
///
/// # Errors
/// A model that cannot be found or loaded, sequences longer than its context, no memory for the
/// state of the largest batch.
pub fn run(args: &BenchArgs, context: &Context) -> anyhow::Result<()> {
    match &args.what {
        Some(What::Agents(args)) => return agents::run(args, context),
        Some(What::Serve(args)) => return serve::run(args, context),
        Some(What::ServeOffline(args)) => return serve_offline::run(args, context),
        None => {}
    }
    let loaded = match &args.config {
        Some(config) => Loaded::random(config, &args.runtime, context)?,
        None => Loaded::open(&args.model, &args.runtime, context)?,
    };
    if let Some(file) = &args.fit_cost {
        return fit::run(loaded, &args.kv, file, args.capture.eager, context);
    }
    let Loaded { rt, decoder, took, .. } = loaded;
    let decoder = Arc::new(decoder);
    if rt.gpu().is_some() && args.kv.state != StateKind::Paged {
        let why = "on CUDA the engine's steps are measured, over --state paged";
        return Err(CliError::Usage(why.into()).into());
    }
    let workload = |batch| Workload {
        batch,
        prompt: args.prompt_tokens,
        context: args.context,
        generate: args.gen_tokens,
        repeat: args.repeat,
    };
    let (longest, room) = (workload(1).longest(), decoder.config().max_context);
    ensure!(
        longest <= room,
        "sequences would have {longest} tokens, but the context of {} holds {room}: \
         lower --prompt-tokens, --context or --gen-tokens",
        args.name()
    );

    // Refused before anything is measured.
    let config = decoder.config();
    let plan = |batch| args.kv.plan(config, &rt, batch, longest);
    let largest = plan(args.batch.iter().copied().max().unwrap_or(1))?;
    largest.explain(&args.kv, context);

    context.say("measuring this machine");
    let limits = match rt.gpu() {
        Some(gpu) => on_device::limits(gpu)?,
        None => Limits {
            read_bytes_per_s: read_bandwidth(rt.pool()),
            bf16_flops: flop_peak(&rt, Precision::Bf16),
            f32_flops: flop_peak(&rt, Precision::F32),
        },
    };
    let mut report = Report::new(args, &rt, &decoder, took, limits, largest);
    for &batch in &args.batch {
        context.say(format_args!("measuring batch {batch}"));
        let timings = match rt.gpu() {
            Some(gpu) => on_device::measure(
                gpu,
                &rt,
                &decoder,
                &args.kv,
                &workload(batch),
                args.capture.eager,
            ),
            None => measure(&rt, &decoder, &plan(batch)?, &workload(batch)),
        };
        report.add(batch, &timings.with_context(|| format!("batch {batch}"))?);
    }
    match args.json {
        true => out::json_line(&report.json())?,
        false => out::text(&report.to_string())?,
    }
    Ok(())
}
