//! Which options are on the command line, and not defaults.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// Ids of the options that are on the command line. Flattened as the first field of the arguments of a command, since
/// clap takes the fields behind it out of the matches.
#[derive(Debug, Clone, Default)]
pub struct GivenOptions(Vec<String>);

impl GivenOptions {
    /// Whether this option is on the command line, by its id.
    pub fn has(&self, id: &str) -> bool {
        self.0.iter().any(|given| given == id)
    }
}

impl Args for GivenOptions {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for GivenOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let ids = matches.ids().map(clap::Id::as_str);
        let given = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
        Ok(Self(given.map(str::to_owned).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
