//! `strata ensemble`: several models behind one router.

mod simulate;

use super::context::Context;

/// Work with ensembles: several models behind one router
#[derive(Debug, clap::Args)]
pub struct EnsembleArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Simulate(simulate::SimulateArgs),
}

/// Runs the command.
///
/// # Errors
/// Those of the subcommand.
pub fn run(args: &EnsembleArgs, context: &Context) -> anyhow::Result<()> {
    match &args.what {
        What::Simulate(args) => simulate::run(args, context),
    }
}
