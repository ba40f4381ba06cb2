//! `strata serve`: an OpenAI-compatible server.

mod flags;
mod start;
mod values;

use super::context::Context;
use flags::Flags;

/// Answer OpenAI's API over HTTP
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    flags: Flags,
}

/// Run the subcommand.
///
/// # Errors
/// What device, hub, checkpoint and socket report.
pub fn run(args: &ServeArgs, context: &Context) -> anyhow::Result<()> {
    start::serve(&args.flags, context)
}
