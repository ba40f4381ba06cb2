//! `strata serve`: an OpenAI-compatible server.
//!
//! ```text
//! command line > STRATA_* > --config FILE.toml > defaults     layers: the value of each flag and its source
//!                        > --kv-transfer-config, LMCACHE_*    kv_transfer, lmcache: flags of tiers, from vLLM's settings
//!                     |
//!                   flags -> start -> server                  print: the configuration with its sources
//! ```

mod adapters;
mod beside_ensemble;
pub mod ensemble;
pub mod ensemble_print;
mod environment;
mod file;
mod fingerprint;
mod flags;
mod generation;
mod kv_transfer;
mod lanes;
mod layers;
mod lmcache;
mod print;
mod slo_files;
mod start;
mod startup_log;
mod values;
mod verify;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::context::{Context, warn};
use super::out;
use flags::Flags;
use layers::Layers;

const EXAMPLES: &str = "\
Examples:
  strata serve
  strata serve Qwen/Qwen3-0.6B --host 0.0.0.0 --port 8080 --api-key secret
  strata serve ./model --max-num-seqs 64 --max-model-len 8k --kv-memory 2GiB
  strata serve --ensemble demo --trace run.jsonl
  strata serve --config deploy/strata.toml --print-config
  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

Every flag can also be set by an environment variable, such as STRATA_PORT=8080 for --port, or in the file of --config,
as port = 8080. The command line overrides the environment, and the environment overrides the file. An environment
variable separates several values with commas.";

/// Flags of the command line. The environment and a file add theirs when the command runs.
#[derive(Debug)]
pub struct ServeArgs {
    given: layers::Given,
}

impl Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let about = "Serve a model with OpenAI's API over HTTP";
        Flags::augment_args(command).about(about).after_help(EXAMPLES)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { given: layers::given(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Run the subcommand.
///
/// # Errors
/// Invalid values in environment or file; errors of device, hub, checkpoint and socket.
pub fn run(args: &ServeArgs, context: &Context) -> anyhow::Result<()> {
    let mut layers = Layers::new(args.given.clone(), |name| std::env::var_os(name))?;
    beside_ensemble::check(&layers)?;
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let of_tiers = kv_transfer::add_layer(&mut layers, variables)?;
    adapters::turn_on(&mut layers);
    let flags = layers.flags()?;
    adapters::check(&layers, &flags.lora)?;
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut warnings = environment::unknown(names);
    warnings.extend(of_tiers);
    warnings.extend(adapters::without_effect(&layers, &flags.lora));
    warnings.extend(layers.empty_keys());
    if flags.print_config {
        warnings.iter().for_each(warn);
        let mut text = print::config(&layers);
        if let Some(ensemble) = flags.ensemble()? {
            text += &ensemble_print::comments(&ensemble, flags.specialist_defaults());
        }
        return Ok(out::text(&text)?);
    }
    start::serve(&flags, &warnings, context)
}
