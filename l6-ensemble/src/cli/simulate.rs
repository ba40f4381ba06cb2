//! `strata simulate`: the scheduler without a model.
//!
//! Two questions, one scheduler. *What does it do?* A scenario brings requests with the answers that they will get, and
//! the trace tells every decision. *What would that machine bear?* A workload runs under a clock that goes by a cost
//! model, and the report tells how long requests wait.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use l5_scheduler::sim::{Arrivals, Goodput, Planner, Scenario, Workload, replay};
use l5_scheduler::{CostModel, PolicyKind, SchedulerConfig};

use super::context::Context;
use super::error::CliError;
use super::out;

const EXAMPLES: &str = "\
Examples:
  strata simulate scenario.json --out trace.json
  strata trace blocks trace.json                      draws what became of the blocks
  strata simulate --workload load.json --rate 4 --policy priority
  strata simulate --workload load.json --rate inf --max-num-seqs 32 --json
  strata simulate --workload log.jsonl --goodput ttft:500ms,itl:50ms
  strata bench --fit-cost cost.json && strata simulate --workload load.json --rate 4 --cost-model cost.json

A workload is a specification:
  {\"requests\":1000,\"input\":{\"uniform\":[100,1024]},\"output\":{\"constant\":128},
   \"shared_prefix\":{\"tokens\":512,\"groups\":8,\"fraction\":0.5},\"priorities\":[[0,0.1],[10,0.9]],\"deadline\":20}
with lengths {\"constant\":n}, {\"uniform\":[least,most]}, {\"exponential\":mean} or {\"choice\":[[n,weight],..]};
or a list, with a line for each request in the order of arrival:
  {\"prompt_tokens\":200,\"output_tokens\":50,\"arrival\":0.25,\"priority\":1,\"prefix\":{\"id\":\"system\",\"tokens\":512}}
prompt_tokens may be a list of token ids; only the first two fields are needed.

Times are simulated, in seconds; percentiles are exact (nearest rank).";

/// Run the scheduler without a model: a scenario step by step, or a workload under a simulated clock
///
/// With SCENARIO, writes the trace of every decision, in the form in which vLLM's scheduler was recorded. With --workload,
/// plans capacity: latencies, throughput and use of the KV cache on a machine whose steps take what a cost model says.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SimulateArgs {
    /// The scenario, JSON; `-` reads stdin
    #[arg(
        value_name = "SCENARIO.json",
        required_unless_present = "workload",
        conflicts_with_all = ["workload", "PlanArgs"]
    )]
    scenario: Option<PathBuf>,
    /// Where the trace goes [default: stdout]
    #[arg(long, value_name = "TRACE.json", conflicts_with = "workload")]
    out: Option<PathBuf>,
    /// Plan capacity for the requests of this file, a specification (JSON) or a list (JSONL); `-` reads stdin
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    #[command(flatten)]
    plan: PlanArgs,
}

/// Options of the capacity planner. Those of the scheduler have vLLM's names.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Capacity planner")]
struct PlanArgs {
    /// Requests per second, each at any moment as likely as at any other; inf for all at once
    /// [default: as the file says, else inf]
    #[arg(long, value_name = "R", requires = "workload", value_parser = rate)]
    rate: Option<f64>,
    /// Take so many requests, instead of as many as a specification says or at most so many of a list
    #[arg(long, value_name = "N", requires = "workload")]
    requests: Option<u64>,
    /// What everything that is by chance follows from
    #[arg(long, value_name = "N", requires = "workload", default_value_t = 0)]
    seed: u64,
    /// Who goes first: fcfs, priority or strict-priority
    #[arg(long, value_name = "P", requires = "workload", default_value = "fcfs")]
    policy: PolicyKind,
    /// What steps take, as `strata bench --fit-cost FILE` writes it [default: SmolLM2 in bf16 on two cores]
    #[arg(long, value_name = "FILE", requires = "workload")]
    cost_model: Option<PathBuf>,
    /// Count requests that keep all of these bounds as good: ttft, itl (the longest), tpot (the mean), e2e. Units are ms
    /// and s; a number without a unit counts seconds (milliseconds in `strata bench serve`)
    #[arg(long, value_name = "ttft:500ms,itl:50ms,..", requires = "workload")]
    goodput: Option<Goodput>,
    /// Print one JSON object instead of a table
    #[arg(long, requires = "workload")]
    json: bool,
    /// Blocks of the KV cache, the null block included
    #[arg(long, value_name = "N", requires = "workload", default_value_t = 8193)]
    num_gpu_blocks: usize,
    /// Tokens of a block, a power of two
    #[arg(long, value_name = "N", requires = "workload", default_value_t = 16)]
    block_size: usize,
    /// The most requests that run at once
    #[arg(long, value_name = "N", requires = "workload", default_value_t = 256)]
    max_num_seqs: usize,
    /// The most tokens of a step
    #[arg(long, value_name = "N", requires = "workload", default_value_t = 2048)]
    max_num_batched_tokens: usize,
    /// The most tokens of a request, prompt and answer together [default: what the KV cache holds]
    #[arg(long, value_name = "N", requires = "workload")]
    max_model_len: Option<usize>,
    /// The most tokens that one of several requests takes of a step; 0 for no limit
    #[arg(long, value_name = "N", requires = "workload", default_value_t = 0)]
    long_prefill_token_threshold: usize,
    /// Raise that limit to a fair share of the step, where the share is larger
    #[arg(long, requires = "workload")]
    long_prefill_token_threshold_adaptive: bool,
    /// Let every prompt wait for a step that takes all of it
    #[arg(long, requires = "workload")]
    no_enable_chunked_prefill: bool,
    /// Compute every prompt from its beginning
    #[arg(long, requires = "workload")]
    no_enable_prefix_caching: bool,
    /// Admit a request as soon as its first chunk fits
    #[arg(long, requires = "workload")]
    no_scheduler_reserve_full_isl: bool,
    /// The part of the KV cache that stays free when a request is admitted beside others
    #[arg(long, value_name = "SHARE", requires = "workload", default_value_t = 0.0)]
    watermark: f64,
}

fn rate(s: &str) -> Result<f64, String> {
    let rate: f64 = s.parse().map_err(|_| "give a number, or inf".to_owned())?;
    if rate > 0.0 { Ok(rate) } else { Err("give a rate above 0, or inf".to_owned()) }
}

impl PlanArgs {
    fn scheduler(&self) -> SchedulerConfig {
        let usual = SchedulerConfig::new(self.num_gpu_blocks, self.block_size);
        SchedulerConfig {
            policy: self.policy,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len.unwrap_or(usual.max_model_len),
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive: self.long_prefill_token_threshold_adaptive,
            enable_chunked_prefill: !self.no_enable_chunked_prefill,
            enable_prefix_caching: !self.no_enable_prefix_caching,
            scheduler_reserve_full_isl: !self.no_scheduler_reserve_full_isl,
            watermark: self.watermark,
            ..usual
        }
    }

    fn cost(&self) -> anyhow::Result<CostModel> {
        let Some(path) = &self.cost_model else { return Ok(CostModel::SMOLLM2_TWO_CORES) };
        let json = fs::read_to_string(path).map_err(|reason| unreadable(path, reason))?;
        CostModel::from_json(&json).with_context(|| path.display().to_string())
    }
}

/// Runs the command.
///
/// # Errors
/// Files that cannot be read or written, or are not what they should be.
pub fn run(args: &SimulateArgs, context: &Context) -> anyhow::Result<()> {
    match (&args.workload, &args.scenario) {
        (Some(workload), _) => plan(workload, &args.plan, context),
        (None, Some(scenario)) => play(scenario, args.out.as_deref()),
        (None, None) => Err(CliError::Usage("give a scenario, or --workload FILE".into()).into()),
    }
}

/// A scenario, to its trace.
fn play(path: &Path, to: Option<&Path>) -> anyhow::Result<()> {
    let mut json = String::new();
    open(path)?.read_to_string(&mut json).map_err(|reason| unreadable(path, reason))?;
    let named = || name(path);
    let scenario = Scenario::from_json(&json).with_context(named)?;
    let trace = replay(&scenario).with_context(named)?;
    let Some(to) = to.filter(|to| *to != Path::new("-")) else {
        let mut stdout = BufWriter::new(io::stdout().lock());
        trace.write(&mut stdout).and_then(|()| stdout.flush()).map_err(CliError::Stdout)?;
        return Ok(());
    };
    let unwritable = |reason| CliError::Output { path: to.to_owned(), reason };
    let mut file = BufWriter::new(File::create(to).map_err(unwritable)?);
    trace.write(&mut file).and_then(|()| file.flush()).map_err(unwritable)?;
    Ok(())
}

/// A workload, to its report.
fn plan(path: &Path, args: &PlanArgs, context: &Context) -> anyhow::Result<()> {
    let arrivals = Arrivals { rate: args.rate, requests: args.requests, seed: args.seed };
    let planner = Planner::new(args.scheduler(), args.cost()?, args.goodput.unwrap_or_default())?;
    let began = Instant::now();
    let named = || name(path);
    let workload = Workload::read(open(path)?, arrivals).with_context(named)?;
    let report = planner.run(workload).with_context(named)?;
    context.say(format_args!(
        "{} requests in {:.2} s of this machine's time",
        report.counts.requests,
        began.elapsed().as_secs_f64()
    ));
    match args.json {
        true => out::json_line(&report)?,
        false => out::text(&report.to_string())?,
    }
    Ok(())
}

fn open(path: &Path) -> Result<Box<dyn BufRead>, CliError> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin().lock())));
    }
    let file = File::open(path).map_err(|reason| unreadable(path, reason))?;
    Ok(Box::new(BufReader::new(file)))
}

fn unreadable(path: &Path, reason: io::Error) -> CliError {
    CliError::Input { what: name(path), reason }
}

fn name(path: &Path) -> String {
    if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() }
}
