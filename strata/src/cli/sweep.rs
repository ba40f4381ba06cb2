//! `strata sweep`: policies for agents, compared on the same jobs.
//!
//! Arrivals at random differ by more than most policies do, so every policy gets the same jobs at the same times, and
//! what is compared are ratios. A cell of the grid is a pool and a rate; each is run with several seeds.

mod grid;
mod plot;
mod summary;
mod table;
mod traffic;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use l3_paged_kv::sizing::Bytes;
use l5_scheduler::CostModel;
use serde::Serialize;

use super::context::Context;
use super::error::CliError;
use super::options::values;
use super::{out, progress, simulate};
use grid::{Grid, Jobs, Machine, Outcome, Variant};
use plot::Kind;
use server::words::count;
use summary::{Cells, Row};
use traffic::{Load, Traffic};

const EXAMPLES: &str = "\
Examples:
  strata sweep --out sweep
  strata sweep --policies continuum,adaptive --rates 2,8,12 --num-gpu-blocks 5402 --seeds 5 --out sweep
  strata sweep --traffic mixed --host-memory 64GB --load-bandwidth 25GB --rates 2,4 --out sweep
  strata sweep --agents agents.json --cost-model cost.json --rates 0.5,1 --num-gpu-blocks 401,1025 --out sweep

Built-in traffic:
  coding     a coding agent: eight turns, whose prompts grow from 92 to 2,915 tokens; outputs of 13 to 80 tokens; cat,
             ls, grep, python and sed, of which python takes 2 to 5 s and the others less than 0.3 s
  long       5 to 11 turns, outputs of 10 to 150 tokens, lognormal tools of up to a minute
  mixed      half coding agents, half chats without a job id: 1 to 3 turns, lognormal think times around 8 s
  no-return  coding agents, of which 15% call a tool and never return
  no-ids     coding agents, of which half give no job id
  adversary  coding agents, and a tenant with a quarter of the jobs, whose tools are all cat and take 30 s

Policies are those of `strata simulate`, and continuum-cdf (continuum with --continuum-ttl cdf). The host memory is for
lmcache, and for any policy with +host behind its name, such as adaptive+host; fcfs has none, and is always run.

DIR gets table.md, results.json (each simulation, and the ratios), pool-N.svg for each pool, pools.svg and speedup.svg.
The same options give the same files, whatever the number of threads.";

/// Tokens of a block.
const BLOCK_SIZE: usize = 16;

/// Costs of the built-in engine: those of a step, of a row that decodes, and of a token whose keys are read, in
/// seconds.
const STEP_SECONDS: f64 = 9.5e-3;
const DECODE_SECONDS: f64 = 30e-6;
const KV_TOKEN_SECONDS: f64 = 80e-9;

/// Bytes of keys and values of a token of the built-in engine: a block of 16 tokens has 2 MiB.
const KV_TOKEN_BYTES: f64 = 131_072.0;

/// Compare policies for agents over pools and rates, on the same jobs
///
/// Simulates every policy on every pool with the jobs of every rate and seed, under a clock that follows a cost model,
/// and writes tables and plots of the seconds that jobs take, from their arrival to the end of their last turn.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SweepArgs {
    /// Built-in traffic: coding, long, mixed, no-return, no-ids or adversary
    #[arg(long, value_name = "NAME", default_value = "coding", conflicts_with = "agents")]
    traffic: Traffic,
    /// Jobs of this file instead, a specification (JSON) or a list (JSONL), as `strata simulate --agents` reads them
    #[arg(long, value_name = "FILE")]
    agents: Option<PathBuf>,
    /// Policies, beside fcfs [default: all for agents]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    policies: Vec<Variant>,
    /// Jobs per second, as Poisson processes [default: 2,4,8,12; with --agents, as the file says]
    #[arg(long, value_name = "R,..", value_delimiter = ',', value_parser = simulate::rate)]
    rates: Vec<f64>,
    /// Numbers of blocks of 16 tokens, including the null block
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = values::num_blocks)]
    #[arg(default_value = "3000,5402,9000,13000")]
    num_gpu_blocks: Vec<usize>,
    /// Number of seeds: jobs are drawn anew for each
    #[arg(long, value_name = "N", default_value = "5", value_parser = values::count)]
    seeds: usize,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Seconds in which jobs arrive; they are then run to their ends
    #[arg(long, value_name = "S", default_value_t = 92.0, value_parser = seconds, conflicts_with = "agents")]
    seconds: f64,
    /// Number of jobs, instead of --seconds; of a list, the maximum number that is read
    #[arg(long, value_name = "N", value_parser = values::count)]
    jobs: Option<usize>,
    /// First tokens of the conversations of agents, outputs included, that all jobs have in common; 0 for none
    #[arg(long, value_name = "N", default_value = "2048", value_parser = values::any_count)]
    #[arg(conflicts_with = "agents")]
    shared_history: usize,
    /// Tokens of prompts that the built-in engine computes in a second. Its steps take 9.5 ms, 30 us for each row that
    /// decodes, and 80 ns for each token whose keys are read; a token has 128 KiB of keys and values
    #[arg(long, value_name = "N", default_value_t = 12_000.0, value_parser = simulate::rate)]
    #[arg(conflicts_with = "cost_model")]
    prefill_rate: f64,
    /// Cost model of a step, written by `strata bench --fit-cost FILE`
    #[arg(long, value_name = "FILE")]
    cost_model: Option<PathBuf>,
    /// Size of the host memory, such as 64GB
    #[arg(long, visible_alias = "dram", value_name = "SIZE")]
    host_memory: Option<Bytes>,
    /// Bytes per second between host memory and KV cache, such as 25GB [default: that of the cost model, else no limit]
    #[arg(long, visible_alias = "reload-bandwidth", value_name = "SIZE", value_parser = simulate::bandwidth)]
    #[arg(requires = "host_memory")]
    load_bandwidth: Option<f64>,
    /// Maximum number of running requests
    #[arg(long, value_name = "N", default_value = "256", value_parser = values::count)]
    max_num_seqs: usize,
    /// Maximum number of tokens of a step
    #[arg(long, value_name = "N", default_value = "2048", value_parser = values::count)]
    max_num_batched_tokens: usize,
    /// Number of simulations at a time [default: one for each core]
    #[arg(long, value_name = "N", value_parser = values::count)]
    threads: Option<usize>,
    /// Directory for the tables and plots; made if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn seconds(s: &str) -> Result<f64, String> {
    let wrong = || "must be a number of seconds above 0, at most a day".to_owned();
    let seconds: f64 = s.parse().map_err(|_| wrong())?;
    if seconds > 0.0 && seconds <= 86_400.0 { Ok(seconds) } else { Err(wrong()) }
}

/// What `results.json` has.
#[derive(Serialize)]
struct Results<'a> {
    subject: &'a str,
    policies: &'a [Variant],
    simulations: &'a [Outcome],
    ratios: Vec<Row>,
}

/// Runs the command.
///
/// # Errors
/// Files that cannot be read or written, or are malformed; options of the scheduler that contradict each other.
pub fn run(args: &SweepArgs, context: &Context) -> anyhow::Result<()> {
    let grid = args.grid()?;
    fs::create_dir_all(&args.out)
        .map_err(|reason| CliError::Output { path: args.out.clone(), reason })?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let template = "[{wide_bar}] {pos}/{len} {elapsed} of ~{duration}";
    let (began, bar) = (Instant::now(), progress::bar(grid.len(), template, context));
    let outcomes = grid.run(args.threads.unwrap_or_else(cores), || bar.inc(1));
    drop(bar);
    let outcomes = outcomes?;
    context.say(format_args!(
        "ran {} in {:.1} s",
        count(outcomes.len(), "simulation"),
        began.elapsed().as_secs_f64()
    ));
    let (subject, cells) = (args.subject(&grid), Cells::new(&grid, &outcomes));
    let unfinished = outcomes.iter().map(|one| one.jobs - one.finished).sum();
    let table = table::table(&subject, &cells, unfinished);
    write(&args.out.join("table.md"), &table)?;
    let results = Results {
        subject: &subject,
        policies: &grid.variants,
        simulations: &outcomes,
        ratios: cells.rows(),
    };
    write(&args.out.join("results.json"), &format!("{}\n", serde_json::to_string(&results)?))?;
    args.plot(&grid, &cells)?;
    Ok(out::text(&table)?)
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    fs::write(path, text).map_err(|reason| CliError::Output { path: path.to_owned(), reason })
}

impl SweepArgs {
    fn grid(&self) -> anyhow::Result<Grid> {
        let variants = self.variants()?;
        Ok(Grid {
            pools: sorted(&self.num_gpu_blocks, usize::cmp),
            jobs: self.all_jobs()?,
            variants,
            machine: Machine {
                cost: self.cost()?,
                host_memory: self.host_memory.map_or(0, |Bytes(bytes)| bytes),
                block_size: BLOCK_SIZE,
                max_num_seqs: self.max_num_seqs,
                max_num_batched_tokens: self.max_num_batched_tokens,
            },
        })
    }

    /// The policies, the baseline first.
    fn variants(&self) -> Result<Vec<Variant>, CliError> {
        let named = match self.policies[..] {
            [] => Variant::defaults(self.host_memory.is_some()),
            _ => self.policies.clone(),
        };
        let mut variants = vec![Variant::BASELINE];
        for variant in named {
            if variant.host && self.host_memory.is_none() {
                let why =
                    format!("--policies {variant} needs --host-memory, where it stores blocks");
                return Err(CliError::Usage(why));
            }
            if !variants.contains(&variant) {
                variants.push(variant);
            }
        }
        Ok(variants)
    }

    /// The jobs of each rate and seed.
    fn all_jobs(&self) -> anyhow::Result<Vec<Jobs>> {
        let text = self.agents.as_deref().map(simulate::read).transpose()?;
        let rates: Vec<Option<f64>> = match (&self.rates[..], &text) {
            ([], Some(_)) => vec![None],
            ([], None) => [2.0, 4.0, 8.0, 12.0].map(Some).into(),
            (rates, _) => sorted(rates, f64::total_cmp).into_iter().map(Some).collect(),
        };
        let mut all = Vec::new();
        for rate in rates {
            for seed in (0..self.seeds as u64).map(|nth| self.seed.wrapping_add(nth)) {
                let jobs = match &text {
                    Some(text) => Jobs {
                        rate,
                        seed,
                        text: text.clone(),
                        draws_arrivals: true,
                        most: self.jobs.map(|jobs| jobs as u64),
                    },
                    None => self.built_in(rate.unwrap_or_default(), seed)?,
                };
                all.push(jobs);
            }
        }
        Ok(all)
    }

    fn built_in(&self, rate: f64, seed: u64) -> Result<Jobs, CliError> {
        if rate.is_infinite() && self.jobs.is_none() {
            return Err(CliError::Usage("--rates inf needs --jobs".to_owned()));
        }
        let text = self.traffic.jobs(&Load {
            rate,
            seconds: self.seconds,
            jobs: self.jobs,
            history: self.shared_history,
            seed,
        });
        if text.is_empty() {
            let why = format!(
                "no job arrives in {} s at --rates {rate} with seed {seed}: raise --seconds, or give --jobs",
                self.seconds
            );
            return Err(CliError::Usage(why));
        }
        Ok(Jobs { rate: Some(rate), seed, text, draws_arrivals: false, most: None })
    }

    fn cost(&self) -> anyhow::Result<CostModel> {
        let mut cost = match &self.cost_model {
            Some(path) => CostModel::from_json(&simulate::read(path)?)
                .with_context(|| path.display().to_string())?,
            None => CostModel {
                base: STEP_SECONDS,
                per_prefill_token: 1.0 / self.prefill_rate,
                per_decode_token: DECODE_SECONDS,
                per_verify_token: None,
                per_kv_byte: KV_TOKEN_SECONDS / KV_TOKEN_BYTES,
                kv_bytes_per_token: KV_TOKEN_BYTES,
                load_bytes_per_second: None,
            },
        };
        cost.load_bytes_per_second = self.load_bandwidth.or(cost.load_bytes_per_second);
        Ok(cost)
    }

    /// What was simulated, in a line.
    fn subject(&self, grid: &Grid) -> String {
        let jobs = match &self.agents {
            Some(file) => format!("Jobs of {}", file.display()),
            None => format!(
                "Traffic `{}`, of which {} tokens are shared",
                self.traffic.name(),
                self.shared_history
            ),
        };
        let prompts = match &self.cost_model {
            Some(file) => format!("the cost model of {}", file.display()),
            None => format!("{} tokens of prompts per second", self.prefill_rate),
        };
        let mean = grid.jobs.len() / self.seeds;
        let host = self.host_memory.map_or(String::new(), |size| format!(", host memory {size}"));
        let (rates, seeds) = (count(mean, "rate"), count(self.seeds, "seed"));
        format!("{jobs}; {prompts}{host}; {rates}, {seeds}; every policy has the same jobs.")
    }

    fn plot(&self, grid: &Grid, cells: &Cells) -> anyhow::Result<()> {
        let jobs = match &self.agents {
            Some(file) => file.display().to_string(),
            None => format!("traffic {}", self.traffic.name()),
        };
        let draw = |file: &str, title: String, kind: Kind, pools: &[usize]| {
            let svg = plot::svg(&title, kind, pools, cells)
                .map_err(|why| anyhow!("cannot draw {file}: {why}"))?;
            Ok::<(), anyhow::Error>(write(&self.out.join(file), &svg)?)
        };
        for pool in &grid.pools {
            let file = format!("pool-{pool}.svg");
            draw(&file, format!("Job seconds, {jobs}"), Kind::Seconds, &[*pool])?;
        }
        draw("pools.svg", format!("Job seconds, {jobs}"), Kind::Seconds, &grid.pools)?;
        draw("speedup.svg", format!("Speed-up over fcfs, {jobs}"), Kind::SpeedUp, &grid.pools)
    }
}

/// Values in ascending order, each once.
fn sorted<T: Copy + PartialEq>(
    values: &[T],
    order: impl Fn(&T, &T) -> std::cmp::Ordering,
) -> Vec<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(order);
    sorted.dedup();
    sorted
}
