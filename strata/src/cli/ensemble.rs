//! `strata ensemble`: several specialists behind one router.

mod simulate;

use clap::{Args, Subcommand};

use super::context::Context;
use super::out;
use super::serve::ensemble;

const EXAMPLES: &str = "\
Examples:
  strata ensemble check deploy/ensemble-demo.toml
  strata ensemble check demo
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
    /// Validate an ensemble file, and print its specialists with the values that the file leaves out
    Check(CheckArgs),
    Simulate(simulate::SimulateArgs),
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// The ensemble file, or demo for the one that is part of this program
    #[arg(value_name = "FILE.toml")]
    file: String,
}

/// Runs the subcommand.
///
/// # Errors
/// All errors of the file; those of the simulation.
pub fn run(args: &EnsembleArgs, context: &Context) -> anyhow::Result<()> {
    match &args.command {
        Command::Check(CheckArgs { file }) => {
            let config = ensemble::read(file)?;
            out::text(&ensemble::summary(&config))?;
            Ok(())
        }
        Command::Simulate(args) => simulate::run(args, context),
    }
}
