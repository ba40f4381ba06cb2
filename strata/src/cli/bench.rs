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
mod by_op;
pub(super) mod coding_agent;
mod comparison;
mod fit;
mod measure;
mod on_device;
pub(super) mod random;
mod report;
mod serve;
mod serve_offline;
mod span;
mod speculation;
mod subject;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use indicatif::ProgressBar;
use l1_tensor::cpu::machine::{flop_peak, read_bandwidths};
use l1_tensor::{Precision, WeightStorage};

use super::adapter::AdapterArgs;
use super::args::DeviceArgs;
use super::context::Context;
use super::error::CliError;
use super::kv::{Kv, KvArgs, StateKind};
use super::options::CaptureOptions;
use super::out;
use super::progress;
use by_op::{ByOp, ByOps};
use comparison::Comparison;
use measure::{Timings, Workload};
use report::{Limits, Report};
use subject::{Subject, anonymous_bytes, growth};

/// Measure prefill and decode, and compare them with the limits of this machine
///
/// Prompts are synthetic tokens, decoded greedily; the speed of a dense model does not depend on the tokens. Fractions
/// are of the memory bandwidth and of the peak FLOP/s, both measured in the same run. Several models (-m), storages of
/// weights (--weights packed,bf16), and a model with and without an adapter are measured in turns and compared.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// The model: smollm2, a hub id (org/name), a Hugging Face directory, or a .gguf file
    #[arg(short, long, value_name = "MODEL", default_value = "smollm2")]
    model: Vec<String>,
    /// Use random weights with the shapes of --config, instead of reading a model
    #[arg(long, requires = "config", conflicts_with = "model")]
    random_weights: bool,
    /// The config.json of a model with random weights
    #[arg(long, value_name = "FILE", requires = "random_weights", conflicts_with = "model")]
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
    /// Measure the time of each op of a step as well, for each batch size and for the prefill of one prompt. CPU only
    #[arg(long)]
    by_op: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Measure steps of the engine instead, and write a cost model to this file, for `strata simulate --cost-model`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "batch", "repeat", "by_op", "adapter"])]
    fit_cost: Option<PathBuf>,
    #[command(flatten)]
    capture: CaptureOptions,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    adapter: AdapterArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Weights of a quantised checkpoint in memory: packed (codes and scales as in the file), bf16 (expanded, 2 bytes a
    /// weight), or auto: packed on processors with AVX-512 BF16, where it is fast. Several are compared. The results
    /// are the same bits. On CUDA only NVFP4 can be packed (auto: unless --precision f32 or --batch-invariant is set);
    /// others are bf16
    #[arg(long, value_name = "STORAGE,..", default_value = "auto", value_delimiter = ',')]
    weights: Vec<WeightStorage>,
}

impl BenchArgs {
    /// Names of the models.
    fn models(&self) -> Vec<String> {
        match &self.config {
            Some(config) => vec![format!("{} with random weights", config.display())],
            None => self.model.clone(),
        }
    }

    /// Work with a batch size.
    fn workload(&self, batch: usize) -> Workload {
        Workload {
            batch,
            prompt: self.prompt_tokens,
            context: self.context,
            generate: self.gen_tokens,
            repeat: self.repeat,
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
    if let Some(file) = &args.fit_cost {
        let models = args.models();
        let ([model], [weights]) = (models.as_slice(), args.weights.as_slice()) else {
            let why = "--fit-cost measures one model: give one -m and one value of --weights";
            return Err(CliError::Usage(why.into()).into());
        };
        let loaded = Subject::load(args, model, *weights, context)?;
        return fit::run(loaded, &args.kv, file, args.capture.eager, context);
    }
    let subjects = Subject::open_all(args, context)?;
    let mut plans = Vec::with_capacity(subjects.len());
    // Refused before anything is measured.
    for subject in &subjects {
        plans.push(check(args, subject)?);
    }
    for plan in &plans {
        plan.explain(&args.kv, context);
    }
    let Some(first) = subjects.first() else { return Ok(()) };
    let labels = subject::labels(&subjects);
    context.say("measuring this machine");
    let limits = match first.rt.gpu() {
        Some(gpu) => on_device::limits(gpu)?,
        None => Limits {
            read: read_bandwidths(first.rt.pool()),
            bf16_flops: flop_peak(&first.rt, Precision::Bf16),
            f32_flops: flop_peak(&first.rt, Precision::F32),
        },
    };
    let reports = subjects.iter().zip(plans);
    let mut reports: Vec<Report> =
        reports.map(|(subject, plan)| Report::new(args, subject, limits.clone(), plan)).collect();
    for &batch in &args.batch {
        context.say(format_args!("measuring batch {batch}"));
        let runs = args.repeat * subjects.len();
        let template = "[{wide_bar}] {pos}/{len} runs {elapsed} of ~{duration}";
        let bar = progress::bar(runs, template, context);
        measure(args, &subjects, batch, &mut reports, &bar)
            .with_context(|| format!("batch {batch}"))?;
    }
    if args.by_op {
        for ((subject, label), report) in subjects.iter().zip(&labels).zip(&mut reports) {
            context.say(format_args!("measuring the ops of {label}"));
            report.by_op = by_op(args, subject)?;
        }
    }
    print(args, &labels, &reports)
}

/// Checks that a subject's workloads are possible. Returns the memory of the largest batch.
fn check(args: &BenchArgs, subject: &Subject) -> anyhow::Result<Kv> {
    let (rt, config) = (&subject.rt, subject.decoder.config());
    if rt.gpu().is_some() && args.kv.state != StateKind::Paged {
        let why = "on CUDA the engine's steps are measured, over --state paged";
        return Err(CliError::Usage(why.into()).into());
    }
    if args.by_op {
        rt.profiled(&Arc::default()).context("--by-op")?;
    }
    let largest = args.workload(args.batch.iter().copied().max().unwrap_or(1));
    let (longest, room) = (largest.longest(), config.max_context);
    ensure!(
        longest <= room,
        "sequences would have {longest} tokens, but the context of {} holds {room}: \
         lower --prompt-tokens, --context or --gen-tokens",
        subject.model
    );
    plan(args, subject, &largest)
}

fn plan(args: &BenchArgs, subject: &Subject, work: &Workload) -> anyhow::Result<Kv> {
    args.kv.plan(subject.decoder.config(), &subject.rt, work.batch, work.longest())
}

/// Measures all subjects with a batch size, in turns: what slows the machine for a while slows all of them.
fn measure(
    args: &BenchArgs,
    subjects: &[Subject],
    batch: usize,
    reports: &mut [Report],
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    // Drawn before the first run, and after each: never while the clock runs.
    bar.tick();
    let work = args.workload(batch);
    let mut runs = Vec::with_capacity(subjects.len());
    for subject in subjects {
        let before = anonymous_bytes();
        let run = subject.prepare(args, &plan(args, subject, &work)?, &work)?;
        runs.push((run, Timings::default(), growth(before, anonymous_bytes())));
    }
    for _ in 0..work.repeat {
        for (run, timings, grown) in &mut runs {
            let before = anonymous_bytes();
            run.round(timings)?;
            bar.inc(1);
            // A first round touches what was only reserved.
            let more = growth(before, anonymous_bytes());
            *grown = grown.zip(more).map(|(grown, more)| grown + more);
        }
    }
    for ((_, timings, grown), report) in runs.iter().zip(reports) {
        report.add(batch, timings, *grown);
    }
    Ok(())
}

/// Time by op of each batch size, and of the prefill of one prompt.
fn by_op(args: &BenchArgs, subject: &Subject) -> anyhow::Result<Vec<ByOp>> {
    let mut all = Vec::with_capacity(args.batch.len() + 1);
    for &batch in &args.batch {
        let work = args.workload(batch);
        all.push(ByOp::decode(subject, &plan(args, subject, &work)?, &work)?);
    }
    let work = args.workload(1);
    all.push(ByOp::prefill(subject, &plan(args, subject, &work)?, &work)?);
    Ok(all)
}

/// One report, or a comparison of several.
fn print(args: &BenchArgs, labels: &[String], reports: &[Report]) -> anyhow::Result<()> {
    match (args.json, reports) {
        (true, [report]) => Ok(out::json_line(&report.json())?),
        (true, reports) => {
            let all: Vec<_> = reports.iter().map(Report::json).collect();
            Ok(out::json_line(&serde_json::json!({ "comparison": all }))?)
        }
        (false, [report]) => Ok(out::text(&report.to_string())?),
        (false, reports) => {
            let mut text = Comparison { labels, reports }.to_string();
            for (label, report) in labels.iter().zip(reports).filter(|_| args.by_op) {
                text += &format!("\n## {label}\n\n{}", ByOps(&report.by_op));
            }
            Ok(out::text(&text)?)
        }
    }
}
