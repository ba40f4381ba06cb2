//! `strata ensemble`: the file of an ensemble of specialists.

use clap::{Args, Subcommand};

use super::out;
use super::serve::ensemble;

const EXAMPLES: &str = "\
Examples:
  strata ensemble check deploy/ensemble-demo.toml
  strata ensemble check demo
  strata serve --ensemble deploy/ensemble-demo.toml";

/// Check the file of an ensemble of specialists
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
/// All errors of the file.
pub fn run(args: &EnsembleArgs) -> anyhow::Result<()> {
    match &args.command {
        Command::Check(CheckArgs { file }) => {
            let config = ensemble::read(file)?;
            out::text(&ensemble::summary(&config))?;
            Ok(())
        }
    }
}
