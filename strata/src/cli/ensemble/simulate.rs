//! `strata ensemble simulate`: router, admission and schedulers of an ensemble, without models.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use l6_ensemble::sim::{EnsembleSim, SimWorkload};

use super::super::context::Context;
use super::super::error::CliError;
use super::super::out;

const EXAMPLE: &str = "\
A workload lists lanes and streams of requests:
  requests = 100000
  spill_below = 0.3                      # the second choice serves refused requests with a score below this

  [[lane]]
  name = \"debug\"
  max_num_seqs = 16
  num_gpu_blocks = 2049
  block_size = 16                        # the default
  max_num_batched_tokens = 256           # the default
  max_num_waiting = 256                  # the default
  policy = \"strict-priority\"             # the default
  priority_floor = 5                     # default: none
  own_device = false                     # the default: the steps of lanes take turns
  # cost = { base = 5e-3, per_prefill_token = 0.286e-3, .. }, as strata bench --fit-cost measures it

  [[stream]]
  name = \"traces\"
  rate = 20.0                            # requests a second, Poisson
  input = { uniform = [50, 300] }        # also constant, exponential, choice
  output = { uniform = [20, 120] }
  max_tokens = 256                       # default: the output, which the door then knows
  priorities = [[0, 0.1], [1, 0.9]]
  deadline = { uniform = [3.0, 15.0] }   # seconds from the arrival; also constant, exponential, lognormal, choice
  deadline_fraction = 0.8                # default: 1
  shared_prefix = { tokens = 64, groups = 3, fraction = 0.5 }
  lanes = [[\"debug\", 1.0]]               # with weights
  # second = \"build\"                     # second choice of the router

Times are simulated seconds. A quote is what the door expects of a request before it decides; it is wrong if the request
took more than 25% longer or shorter. Each probe is another simulation, in which one refused request is admitted.";

/// Run an ensemble without models, under a simulated clock: what is admitted, refused and spilled, and how soon it is
/// served
///
/// Each lane has the scheduler and the admission of the server; the duration of its steps follows a cost model.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct SimulateArgs {
    /// Lanes and streams of requests, TOML; `-` reads stdin
    #[arg(value_name = "WORKLOAD.toml")]
    workload: PathBuf,
    /// Number of requests, instead of the workload's
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Seed of all random numbers, instead of the workload's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of refused requests whose quotes are checked by simulating that they were admitted
    #[arg(long, value_name = "N", default_value_t = 0)]
    probes: usize,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// A workload that cannot be read or is invalid.
pub fn run(args: &SimulateArgs, context: &Context) -> anyhow::Result<()> {
    let began = Instant::now();
    let named = || name(&args.workload);
    let mut workload = SimWorkload::from_toml(&read(&args.workload)?).with_context(named)?;
    workload.requests = args.requests.unwrap_or(workload.requests);
    workload.seed = args.seed.unwrap_or(workload.seed);
    let requests = workload.requests;
    let report = EnsembleSim::new(workload)
        .map_err(anyhow::Error::from)
        .and_then(|sim| Ok(sim.probe(args.probes)?))
        .with_context(named)?;
    context.say(format_args!(
        "simulated {requests} requests in {:.2} s",
        began.elapsed().as_secs_f64()
    ));
    match args.json {
        true => out::json_line(&report)?,
        false => out::text(&report.to_string())?,
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, CliError> {
    let read = match path == Path::new("-") {
        true => io::read_to_string(io::stdin().lock().take(MAX_BYTES)),
        false => fs::read_to_string(path),
    };
    read.map_err(|reason| CliError::Input { what: name(path), reason })
}

/// Maximum number of bytes that are read of stdin.
const MAX_BYTES: u64 = 16 << 20;

fn name(path: &Path) -> String {
    if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() }
}
