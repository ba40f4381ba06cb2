//! `strata router`: the router's thresholds.

use super::router_tune;

/// Work on the router: which specialist serves a request
#[derive(Debug, clap::Args)]
pub struct RouterArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Tune(router_tune::TuneArgs),
}

/// Runs the command.
///
/// # Errors
/// Those of the subcommand.
pub fn run(args: &RouterArgs) -> anyhow::Result<()> {
    match &args.what {
        What::Tune(args) => router_tune::run(args),
    }
}
