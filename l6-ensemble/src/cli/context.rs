//! Who is watching, and what to tell them.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};

use crate::hub::Options;

/// How much to say on stderr. Part of every subcommand's options.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Context {
    /// Say on stderr what is going on, even when it is not a terminal
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

impl Context {
    /// Says something that is of use to a person who watches, and to nobody else.
    pub fn say(&self, line: impl Display) {
        if self.verbose || (!self.quiet && stderr().is_terminal()) {
            warn(line);
        }
    }

    /// Where to look for models: what the environment says, as loud as the user wants it.
    pub fn hub(&self) -> Options {
        Options { quiet: self.quiet, ..Options::from_env() }
    }
}

/// One line on stderr. A stderr that nobody can write to is no reason to fail.
pub fn warn(line: impl Display) {
    let _ = writeln!(stderr(), "strata: {line}");
}
