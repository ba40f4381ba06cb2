//! `strata ensemble simulate`: router, admission and schedulers of an ensemble, without models.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use l6_ensemble::sim::{EnsembleSim, EnsembleWorkload, SimWorkload};

use super::super::context::{Context, warn};
use super::super::error::CliError;
use super::super::out;
use super::super::serve::ensemble;
use server::words::count;

/// The workload of `strata ensemble simulate demo`.
const DEMO_WORKLOAD: &str = include_str!("../../../../deploy/ensemble-workload.toml");

const EXAMPLE: &str = "\
With an ensemble file, the workload is the traffic, and the rest is as strata serve --ensemble has it:
  strata ensemble simulate demo workload.toml

  requests = 100000
  max_num_waiting = 256                  # the default
  # cost = { base = 5e-3, per_prefill_token = 0.286e-3, .. }, as strata bench --fit-cost measures it
  # [lane.NAME] has cost, own_device = true, priority_floor = 5 for a specialist

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
  intent = \"debug\"                       # the router decides by it and by the texts, of which each request has one;
  texts = [\"main.cpp:3: error: ..\"]      # or, as if clients named a specialist: lanes = [[\"debug\", 1.0]]

Without one, the workload also lists lanes, and streams name them:
  strata ensemble simulate workload.toml

  spill_below = 0.3                      # the second choice serves refused requests with a score below this
  [[lane]]
  name = \"debug\"
  max_num_seqs = 16
  num_gpu_blocks = 2049
  # defaults: block_size = 16, max_num_batched_tokens = 256, max_num_waiting = 256, policy = \"strict-priority\",
  # own_device = false, no priority_floor, cost as above
  [[stream]]
  lanes = [[\"debug\", 1.0]]               # with weights; and the fields above but for intent and texts
  second = \"build\"                       # second choice of the router, with a random score of the first

Times are simulated seconds. A quote is what the door expects of a request before it decides; it is wrong if the request
took more than 25% and more than 0.1 s longer or shorter. Each probe is another simulation, in which one refused request
is admitted. Shadows and breakers are not simulated, nor are specialists with replicas = 0.";

/// Run an ensemble without models, under a simulated clock: what is admitted, refused and spilled, and how soon it is
/// served
///
/// Each lane has the scheduler and the admission of the server; the duration of its steps follows a cost model.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct SimulateArgs {
    /// The ensemble file, or demo for the one that is part of this program, and the workload, TOML; `-` reads the
    /// workload from stdin. demo alone has a small workload, deploy/ensemble-workload.toml; another workload alone has
    /// lanes of its own
    #[arg(value_names = ["FILE.toml", "WORKLOAD.toml"], num_args = 1..=2, required = true)]
    files: Vec<PathBuf>,
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
    let (file, workload) = match args.files.as_slice() {
        [demo] if demo == Path::new("demo") => (Some(demo), None),
        [workload] => (None, Some(workload)),
        [file, workload, ..] => (Some(file), Some(workload)),
        [] => return Ok(()),
    };
    let named = || workload.map_or("the built-in workload".to_owned(), |file| name(file));
    let invalid = |problems| CliError::Invalid { what: named(), problems };
    let text = match workload {
        Some(workload) => read(workload)?,
        None => DEMO_WORKLOAD.to_owned(),
    };
    let (sim, requests) = match file {
        None => {
            is_no_ensemble(&text, &named())?;
            let own = SimWorkload::from_toml(&text);
            let mut own = own.map_err(|why| invalid(why.problems()))?;
            own.requests = args.requests.unwrap_or(own.requests);
            own.seed = args.seed.unwrap_or(own.seed);
            let requests = own.requests;
            (EnsembleSim::new(own).map_err(|why| invalid(why.problems()))?, requests)
        }
        Some(file) => {
            let config = ensemble::read(&file.to_string_lossy())?;
            let own = EnsembleWorkload::from_toml(&text);
            let mut own = own.map_err(|why| invalid(why.problems()))?;
            own.requests = args.requests.unwrap_or(own.requests);
            own.seed = args.seed.unwrap_or(own.seed);
            for remote in config.specialists.iter().filter(|own| own.replicas == 0) {
                warn(format_args!(
                    "note: specialist `{}` runs on other machines only and is not simulated: its requests are left out",
                    remote.name
                ));
            }
            let sim = EnsembleSim::of_ensemble(&config, &own);
            (sim.map_err(|why| invalid(why.problems()))?, own.requests)
        }
    };
    let report = sim.probe(args.probes).with_context(named)?;
    context.say(format_args!(
        "simulated {} in {:.2} s",
        count(requests as usize, "request"),
        began.elapsed().as_secs_f64()
    ));
    match args.json {
        true => out::json_line(&report)?,
        false => out::text(&report.to_string())?,
    }
    Ok(())
}

/// Reports an ensemble file in the place of a workload.
fn is_no_ensemble(text: &str, file: &str) -> Result<(), CliError> {
    let table: toml::Table = text.parse().unwrap_or_default();
    if table.contains_key("specialist") {
        let what = format!(
            "{file} is an ensemble file: give a workload as well, as in strata ensemble simulate {file} workload.toml"
        );
        return Err(CliError::Usage(what));
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
