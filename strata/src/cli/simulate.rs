//! `strata simulate`: the scheduler without a model.
//!
//! A *scenario* lists requests with the tokens that they will produce; its trace shows every decision of the scheduler.
//! A *workload*, or *jobs of agents*, run under a clock that follows a cost model; their report shows latencies and
//! capacity.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use clap::Arg;
use l3_paged_kv::sizing::Bytes;
use l5_scheduler::sim::{
    AgentJobs, ArrivalProcess, Arrivals, Goodput, Planner, Scenario, Workload, WorkloadError,
    replay,
};
use l5_scheduler::{Compose, CostModel, EngineOptions, PolicyKind, SchedulerConfig};

use super::context::Context;
use super::error::CliError;
use super::job_history::JobHistoryFile;
use super::options::{
    BlockOptions, GivenOptions, PrefixCachingOptions, SchedulerOptions, defaults_to, values,
};
use super::out;
use server::words::count;

const EXAMPLES: &str = "\
Examples:
  strata simulate scenario.json --out trace.json
  strata trace blocks trace.json                      makes a page that shows the blocks
  strata simulate --workload load.json --rate 4 --policy priority
  strata simulate --workload load.json --rate inf --max-num-seqs 32 --json
  strata simulate --workload log.jsonl --goodput ttft:500ms,itl:50ms
  strata simulate --workload load.json --rate 4 --compose stable --decode-widths 1,2,4,8,16,32
  strata simulate --agents agents.json --rate 0.5 --num-gpu-blocks 2049
  strata simulate --agents agents.json --num-gpu-blocks 2049 --host-memory 4GiB --load-bandwidth 20GB
  strata simulate --agents agents.json --num-gpu-blocks 2049 --policy continuum --continuum-ttl cdf --json
  strata bench --fit-cost cost.json && strata simulate --workload load.json --rate 4 --cost-model cost.json

A workload is a specification:
  {\"requests\":1000,\"input\":{\"uniform\":[100,1024]},\"output\":{\"constant\":128},
   \"shared_prefix\":{\"tokens\":512,\"groups\":8,\"fraction\":0.5},\"priorities\":[[0,0.1],[10,0.9]],\"deadline\":20}
with lengths {\"constant\":n}, {\"uniform\":[least,most]}, {\"exponential\":mean} or {\"choice\":[[n,weight],..]};
or a list with one line for each request, in the order of arrival:
  {\"prompt_tokens\":200,\"output_tokens\":50,\"arrival\":0.25,\"priority\":1,\"prefix\":{\"id\":\"system\",\"tokens\":512}}
prompt_tokens may be a list of token ids; only the first two fields are needed.

Jobs of agents are a specification:
  {\"jobs\":40,\"rate\":0.5,\"seed\":1,\"turns\":{\"uniform\":[2,8]},\"input\":{\"uniform\":[60,120]},
   \"output\":{\"uniform\":[13,80]},\"tool_result\":{\"exponential\":300},\"shared_prefix\":{\"tokens\":512},
   \"tools\":[{\"name\":\"ls\",\"weight\":3,\"seconds\":{\"uniform\":[0.05,0.1]}},
            {\"name\":\"python\",\"seconds\":{\"lognormal\":{\"median\":3,\"sigma\":0.5}}}]}
with seconds {\"constant\":s}, {\"uniform\":[least,most]}, {\"exponential\":mean}, {\"lognormal\":{..}} or
{\"choice\":[[s,weight],..]}; or a list with one line for each job, in the order of arrival:
  {\"job\":\"j1\",\"arrival\":0.4,\"turns\":[{\"prompt_tokens\":92,\"output_tokens\":25,\"tool\":\"ls\",\"tool_seconds\":0.1},
   {\"prompt_tokens\":469,\"output_tokens\":17}]}
prompt_tokens counts the whole prompt of a turn: the conversation so far, and what the tool adds. The next turn arrives
tool_seconds after the end of this one. \"command\" beside a tool is what it runs, such as \"ls -la\", for --policy
context-serve. One seed gives the same jobs whatever the scheduler's options are.
The dataset.jsonl of `aiperf synthesize agentic-code` is such a list, too, with a line for each turn.

Times are simulated seconds; percentiles are exact (nearest rank).";

/// Run the scheduler without a model: a scenario step by step, or a workload under a simulated clock
///
/// With SCENARIO, writes a trace of every decision, in the format of the recorded traces of vLLM's scheduler. With
/// --workload or --agents, plans capacity: latencies, throughput and KV cache usage on a machine whose steps follow a
/// cost model.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SimulateArgs {
    /// The scenario, JSON; `-` reads stdin
    #[arg(value_name = "SCENARIO.json", conflicts_with = "traffic")]
    scenario: Option<PathBuf>,
    /// File for the trace [default: stdout]
    #[arg(long, value_name = "TRACE.json", conflicts_with = "traffic")]
    out: Option<PathBuf>,
    #[command(flatten)]
    traffic: TrafficArgs,
    #[command(flatten)]
    plan: PlanArgs,
}

/// What arrives.
#[derive(Debug, clap::Args)]
#[group(id = "traffic", multiple = false)]
struct TrafficArgs {
    /// Plan capacity for the requests of this file, a specification (JSON) or a list (JSONL); `-` reads stdin
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Plan capacity for the jobs of agents of this file, a specification (JSON) or a list (JSONL), in which a job's
    /// next request arrives when its tool is done; or a trace of `aiperf synthesize agentic-code`. `-` reads stdin
    #[arg(long, value_name = "FILE")]
    agents: Option<PathBuf>,
}

/// Options of the capacity planner. Those of the scheduler have vLLM's names.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Capacity planner", mut_args(planned))]
struct PlanArgs {
    /// Options that are on the command line.
    #[command(flatten)]
    given: GivenOptions,
    /// Requests (jobs, with --agents) per second, with random arrivals (Poisson); inf for all at once [default: the
    /// file's rate or arrivals, else inf]
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Number of requests (jobs, with --agents), instead of the specification's number; of a list, the maximum number
    /// that is read
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Seed of all random numbers [default: that of a specification of jobs, else 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Cost model of a step, written by `strata bench --fit-cost FILE` [default: SmolLM2 in bf16 on two cores]
    #[arg(long, value_name = "FILE")]
    cost_model: Option<PathBuf>,
    /// Store the blocks of finished requests in a host memory of this size, such as 4GiB, and load them from there
    #[arg(long, visible_alias = "dram", value_name = "SIZE")]
    host_memory: Option<Bytes>,
    /// Bytes per second between host memory and KV cache, such as 25GB [default: that of the cost model, else no limit]
    #[arg(long, visible_alias = "reload-bandwidth", value_name = "SIZE", value_parser = bandwidth, requires = "host_memory")]
    load_bandwidth: Option<f64>,
    /// Also report the requests that meet all of these bounds: ttft, itl (the longest), tpot (the mean), e2e. Units are
    /// ms and s; a number without a unit is in seconds (in milliseconds in `strata bench serve`)
    #[arg(long, value_name = "ttft:500ms,itl:50ms,..")]
    goodput: Option<Goodput>,
    /// With --agents, write which KV blocks were held for jobs, for how long and of what use, to this file, as JSON
    #[arg(long, value_name = "FILE", requires = "agents")]
    job_history: Option<PathBuf>,
    /// Print one JSON object instead of a table; with --agents also each job and turn
    #[arg(long)]
    json: bool,
    /// Number of blocks of the KV cache, including the null block
    #[arg(long, value_name = "N", default_value_t = 8193, value_parser = values::num_blocks)]
    num_gpu_blocks: usize,
    #[command(flatten)]
    blocks: BlockOptions,
    #[command(flatten)]
    prefix_caching: PrefixCachingOptions,
    #[command(flatten)]
    limits: SchedulerOptions,
    /// Raise --long-prefill-token-threshold to an equal share of the step where that is larger
    #[arg(long)]
    long_prefill_token_threshold_adaptive: bool,
    /// Admit a request as soon as its first chunk fits, instead of when its whole prompt fits
    #[arg(long)]
    no_scheduler_reserve_full_isl: bool,
    /// Share of the KV cache that must stay free when a request is admitted while others run
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    watermark: f64,
    /// Maximum number of steps in a row with one adapter while requests of another one are ready; a step then has one
    /// adapter only. 0: adapters share steps
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::any_count)]
    adapter_turn: usize,
    /// Maximum number of drafts (speculative tokens) of a request in a step
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::any_count)]
    num_speculative_tokens: usize,
    /// With --num-speculative-tokens: probability that a draft is right, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.7, value_parser = share)]
    acceptance_rate: f64,
    /// Also report how many steps a device would replay that has captured decode steps of these widths: steps of as
    /// many rows or fewer that all decode. A draft (--num-speculative-tokens) counts as a row
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = values::count)]
    decode_widths: Option<Vec<usize>>,
}

/// Options of the planner need a workload or jobs, and exclude a scenario. States the defaults that the planner
/// computes.
fn planned(arg: Arg) -> Arg {
    let arg = match arg.get_id().as_str() {
        "scenario" | "out" | "workload" | "agents" => return arg,
        "max_num_seqs" => defaults_to(arg, "256"),
        "max_num_batched_tokens" => defaults_to(arg, "2048"),
        "max_model_len" => defaults_to(arg, "what the KV cache holds"),
        _ => arg,
    };
    arg.requires("traffic").conflicts_with("scenario")
}

/// A rate above 0, or `inf`.
pub(super) fn rate(s: &str) -> Result<f64, String> {
    // A lower rate would put arrivals at times that are no numbers.
    match s.parse::<f64>() {
        Ok(rate) if rate >= 1e-9 => Ok(rate),
        _ => Err("must be a number from 1e-9, or inf".to_owned()),
    }
}

fn share(s: &str) -> Result<f64, String> {
    let share: f64 = s.parse().map_err(|_| "must be a number from 0 to 1".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be from 0 to 1".to_owned()) }
}

/// Bytes per second, above 0.
pub(super) fn bandwidth(s: &str) -> Result<f64, String> {
    match s.parse::<Bytes>().map_err(|e| e.to_string())? {
        Bytes(0) => Err("must be above 0".to_owned()),
        Bytes(bytes) => Ok(bytes as f64),
    }
}

impl PlanArgs {
    /// Rejects options that would have no effect beside the others.
    fn check(&self) -> Result<(), CliError> {
        let mixed = self.limits.compose == Compose::Mixed;
        let drafts = self.num_speculative_tokens > 0;
        let leases_by_ttl =
            matches!(self.limits.policy, PolicyKind::Continuum | PolicyKind::ContextServe);
        let without_effect = [
            ("acceptance_rate", !drafts, "--num-speculative-tokens of at least 1"),
            ("max_decode_steps", mixed, "--compose stable"),
            ("prefill_chunk", mixed, "--compose stable"),
            ("continuum_ttl", !leases_by_ttl, "--policy continuum or context-serve"),
        ];
        match without_effect.iter().find(|(id, ignored, _)| *ignored && self.given.has(id)) {
            None => Ok(()),
            Some((id, _, needed)) => {
                let option = id.replace('_', "-");
                Err(CliError::Usage(format!("--{option} has no effect without {needed}")))
            }
        }
    }

    fn scheduler(&self) -> SchedulerConfig {
        let usual = SchedulerConfig::new(self.num_gpu_blocks, self.blocks.block_size);
        let mut options = EngineOptions {
            block_size: self.blocks.block_size,
            enable_prefix_caching: self.prefix_caching.on(),
            watermark: self.watermark,
            ..EngineOptions::default()
        };
        self.limits.set(&mut options);
        let max_model_len = options.max_model_len.unwrap_or(usual.max_model_len);
        SchedulerConfig {
            long_prefill_token_threshold_adaptive: self.long_prefill_token_threshold_adaptive,
            scheduler_reserve_full_isl: !self.no_scheduler_reserve_full_isl,
            adapter_turn: self.adapter_turn,
            num_speculative_tokens: self.num_speculative_tokens,
            ..options.scheduler(self.num_gpu_blocks, max_model_len)
        }
    }

    fn cost(&self) -> anyhow::Result<CostModel> {
        let mut cost = match &self.cost_model {
            None => CostModel::SMOLLM2_TWO_CORES,
            Some(path) => {
                let json = fs::read_to_string(path).map_err(|reason| unreadable(path, reason))?;
                CostModel::from_json(&json).with_context(|| path.display().to_string())?
            }
        };
        cost.load_bytes_per_second = self.load_bandwidth.or(cost.load_bytes_per_second);
        Ok(cost)
    }
}

/// Runs the command.
///
/// # Errors
/// Files that cannot be read or written, or are malformed.
pub fn run(args: &SimulateArgs, context: &Context) -> anyhow::Result<()> {
    let traffic = &args.traffic;
    match (&traffic.workload, &traffic.agents, &args.scenario) {
        (Some(workload), _, _) => plan(workload, &args.plan, context, |file, plan| {
            let (rate, requests) = (plan.rate, plan.requests);
            let seed = plan.seed.unwrap_or_default();
            Workload::read(file, ArrivalProcess { rate, requests, seed })
        }),
        (None, Some(agents), _) => plan(agents, &args.plan, context, |file, plan| {
            let jobs = AgentJobs::read(file, plan.rate, plan.requests, plan.seed)?;
            Ok(if plan.json { jobs.with_records() } else { jobs })
        }),
        (None, None, Some(scenario)) => play(scenario, args.out.as_deref()),
        (None, None, None) => Err(CliError::Usage(
            "SCENARIO.json, --workload FILE or --agents FILE is required".into(),
        )
        .into()),
    }
}

/// Writes the trace of a scenario.
fn play(path: &Path, to: Option<&Path>) -> anyhow::Result<()> {
    let json = read(path)?;
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

/// Prints the report of what a file says will arrive.
fn plan<A: Arrivals>(
    path: &Path,
    args: &PlanArgs,
    context: &Context,
    read: impl FnOnce(Box<dyn BufRead>, &PlanArgs) -> Result<A, WorkloadError>,
) -> anyhow::Result<()> {
    args.check()?;
    let mut planner =
        Planner::new(args.scheduler(), args.cost()?, args.goodput.unwrap_or_default())?;
    planner = planner.with_acceptance_rate(args.acceptance_rate);
    if let Some(widths) = &args.decode_widths {
        planner = planner.with_decode_widths(widths);
    }
    if let Some(Bytes(bytes)) = args.host_memory {
        planner = planner.with_host_memory(bytes);
    }
    let history = args.job_history.as_deref().map(JobHistoryFile::create).transpose()?;
    if let Some(file) = &history {
        planner = planner.with_job_history(file.history().clone());
    }
    let began = Instant::now();
    let named = || name(path);
    let arrivals = read(open(path)?, args).with_context(named)?;
    let report = planner.run(arrivals).with_context(named)?;
    if let Some(file) = history {
        file.store()?;
    }
    context.say(format_args!(
        "simulated {} in {:.2} s",
        count(report.counts.requests as usize, "request"),
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

/// Reads a file, or stdin if its name is `-`.
pub(super) fn read(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text).map_err(|reason| unreadable(path, reason))?;
    Ok(text)
}

fn unreadable(path: &Path, reason: io::Error) -> CliError {
    CliError::Input { what: name(path), reason }
}

fn name(path: &Path) -> String {
    if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() }
}
