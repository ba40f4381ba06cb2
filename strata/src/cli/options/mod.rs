//! The engine's options, each defined once: flag, aliases, range, default and help text.
//!
//! Every subcommand flattens the groups that it takes. In `strata serve` the environment variable and the key of the
//! configuration file follow from the same definition (`serve/layers.rs`). A default that differs between commands is
//! stated by the command, with [`defaults_to`].

mod engine;
mod given;
pub mod values;

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction};

pub use engine::{
    BlockOptions, CaptureOptions, KvMemoryOptions, PrefixCachingOptions, SchedulerOptions,
    SpeculationOptions, TraceOptions,
};
pub use given::GivenOptions;

/// A flag that is on or off and takes `--flag`, `--flag=false` and, in a layer, a value.
pub trait Switch {
    /// Makes it one, with this default.
    fn switch(self, default: &'static str) -> Self;
}

impl Switch for Arg {
    fn switch(self, default: &'static str) -> Self {
        self.num_args(0..=1)
            .require_equals(true)
            .default_value(default)
            .default_missing_value("true")
            .action(ArgAction::Set)
            .value_name("ON")
            .hide_possible_values(true)
            .value_parser(BoolishValueParser::new())
    }
}

/// Adds to an option's help the default that a command computes.
pub fn defaults_to(arg: Arg, default: &str) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    arg.help(format!("{help} [default: {default}]"))
}

#[cfg(test)]
mod tests;
