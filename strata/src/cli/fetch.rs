//! `strata fetch`: downloads a model before it is needed.

use super::context::Context;
use super::out;
use crate::hub;

/// Download a model, or its newest version, and print its path
///
/// An interrupted download leaves no partial file, and unchanged files are not downloaded again.
#[derive(Debug, clap::Args)]
pub struct FetchArgs {
    /// The model: smollm2, or a hub id (org/name, org/name@revision, org/name:Q4_1, org/name/file.gguf)
    #[arg(value_name = "MODEL")]
    model: String,
}

/// Runs the command.
///
/// # Errors
/// What the hub reports.
pub fn run(args: &FetchArgs, context: &Context) -> anyhow::Result<()> {
    let source = hub::fetch(&args.model, &context.hub())?;
    Ok(out::text(&format!("{}\n", source.path().display()))?)
}
