//! Progress messages on stderr.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};

use crate::hub::Options;

/// Verbosity of stderr. Part of every subcommand's options.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Context {
    /// Print progress to stderr even if it is not a terminal
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Print only errors and warnings to stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

impl Context {
    /// Prints progress that only a person at a terminal needs.
    pub fn say(&self, line: impl Display) {
        if self.verbose || (!self.quiet && stderr().is_terminal()) {
            warn(line);
        }
    }

    /// Options of the hub, from the environment and the verbosity.
    pub fn hub(&self) -> Options {
        Options { quiet: self.quiet, ..Options::from_env() }
    }
}

/// Prints one line to stderr. A stderr that cannot be written to is ignored.
pub fn warn(line: impl Display) {
    let _ = writeln!(stderr(), "strata: {line}");
}
