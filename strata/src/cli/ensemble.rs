//! `strata ensemble`: several specialists behind one router.

mod simulate;

use clap::{Args, Subcommand};
use serde_json::json;

use super::context::{Context, warn};
use super::out;
use super::serve::{ensemble, ensemble_print};

const EXAMPLES: &str = "\
Examples:
  strata ensemble check deploy/ensemble-demo.toml
  strata ensemble check demo --json
  strata ensemble simulate demo workload.toml
  strata serve --ensemble deploy/ensemble-demo.toml";

/// Check the file of an ensemble of specialists, or simulate the admission of one
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct EnsembleArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Validate an ensemble file, and print all values in force, with those that the file leaves out
    ///
    /// Also checks that this machine can serve the file: that the models are here or have names on the hub, that the
    /// classifier can be loaded, and that the environment has the API keys of remotes. Weights are not read, and no
    /// other machine is asked. All errors are reported, one a line. Paths in the file are relative to its directory.
    Check(CheckArgs),
    Simulate(simulate::SimulateArgs),
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// The ensemble file, or demo for the one that is part of this program
    #[arg(value_name = "FILE.toml")]
    file: String,
    /// Print one JSON object, with warnings and notes
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// All errors of the file; those of the simulation.
pub fn run(args: &EnsembleArgs, context: &Context) -> anyhow::Result<()> {
    match &args.command {
        Command::Check(args) => check(args, context),
        Command::Simulate(args) => simulate::run(args, context),
    }
}

fn check(args: &CheckArgs, context: &Context) -> anyhow::Result<()> {
    let config = ensemble::read(&args.file)?;
    let found = ensemble::verified(&args.file, &config, &context.hub())?;
    let mut value = ensemble_print::value(&config, ensemble_print::FlagDefaults::default());
    if args.json {
        value["warnings"] = json!(found.warnings);
        value["notes"] = json!(found.notes);
        return Ok(out::json_line(&value)?);
    }
    found.warnings.iter().for_each(|warning| warn(format_args!("warning: {warning}")));
    found.notes.iter().for_each(|note| context.say(note));
    Ok(out::text(&ensemble_print::text(&value))?)
}
