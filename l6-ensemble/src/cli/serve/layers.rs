//! Who says what: the command line, the environment, a file.
//!
//! A value wins as text. The winners are then parsed as if all of them had stood on the command line, so that a value is
//! read by the same rules, and refused with the same words, wherever it comes from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::file;
use super::flags::Flags;
use crate::cli::error::{CliError, sentence};

/// Where a value is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    CommandLine,
    /// A variable of the environment.
    Environment(String),
    /// The file of `--config`.
    File(PathBuf),
}

/// Values of flags, by the flags' ids.
pub type Given = BTreeMap<String, Vec<OsString>>;

/// The values of all sources together.
#[derive(Debug)]
pub struct Layers {
    given: BTreeMap<String, (Vec<OsString>, Source)>,
    /// Variables for keys of clients that are set and empty.
    empty_keys: Vec<Source>,
}

/// Flags of which only one can be meant: who gives the first, takes from those who have less to say the second.
const RIVALS: [(&str, &str); 6] = [
    ("no_disable_additional_properties", "disable_additional_properties"),
    ("kv_memory", "memory_utilization"),
    ("memory_utilization", "kv_memory"),
    ("no_enable_prefix_caching", "enable_prefix_caching"),
    ("no_enable_chunked_prefill", "enable_chunked_prefill"),
    ("which", "model"),
];

/// All flags.
pub fn command() -> Command {
    Flags::augment_args(Command::new("strata serve")).disable_help_flag(true).no_binary_name(true)
}

/// Whether environment and file may say it. What `--no-...` says, they say with `false`.
pub fn is_setting(arg: &Arg) -> bool {
    !arg.is_positional() && !matches!(arg.get_action(), ArgAction::SetTrue)
}

/// What the command line says.
pub fn given(matches: &ArgMatches) -> Given {
    let command = command();
    let ids = command.get_arguments().map(|arg| arg.get_id().as_str());
    let ids = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
    let values = |id: &str| matches.get_raw(id).map(|raw| raw.map(OsString::from).collect());
    ids.map(|id| (id.to_owned(), values(id).unwrap_or_default())).collect()
}

/// The variable that says what a flag says.
pub fn variable(arg: &Arg) -> String {
    let long = arg.get_long().unwrap_or_default();
    format!("STRATA_{}", long.to_uppercase().replace('-', "_"))
}

impl Layers {
    /// Put them over each other.
    ///
    /// # Errors
    /// [`CliError`]: a file that cannot be read, or says what is no flag.
    pub fn new(
        given: Given,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, CliError> {
        let line = given.into_iter().map(|(id, values)| (id, (values, Source::CommandLine)));
        let mut layers = Self { given: line.collect(), empty_keys: Vec::new() };
        let command = command();
        let mut said = Vec::new();
        for arg in command.get_arguments().filter(|arg| is_setting(arg)) {
            let name = variable(arg);
            let more = (arg.get_id() == "api_key").then_some("VLLM_API_KEY");
            let found = std::iter::once(name.as_str()).chain(more).find_map(|name| {
                let value = environment(name)?;
                if value.is_empty() && arg.get_id() == "api_key" {
                    layers.empty_keys.push(Source::Environment(name.to_owned()));
                }
                (!value.is_empty()).then(|| (name.to_owned(), value))
            });
            if let Some((name, value)) = found {
                let several = matches!(arg.get_action(), ArgAction::Append);
                let values = match value.to_str().filter(|_| several) {
                    Some(text) => text.split(',').map(|one| one.trim().into()).collect(),
                    None => vec![value],
                };
                said.push((arg.get_id().to_string(), values, Source::Environment(name)));
            }
        }
        layers.under(said);
        let config = layers.given.get("config").and_then(|(values, _)| values.first());
        if let Some(path) = config.map(PathBuf::from) {
            let read = file::read(&path, &command)?;
            let read =
                read.into_iter().map(|(id, values)| (id, values, Source::File(path.clone())));
            layers.under(read.collect());
        }
        Ok(layers)
    }

    /// Add what goes behind everything that is there.
    fn under(&mut self, layer: Vec<(String, Vec<OsString>, Source)>) {
        let held = RIVALS.iter().filter(|(mine, _)| self.given.contains_key(*mine));
        let taken: Vec<&str> = held.map(|(_, other)| *other).collect();
        let free = |id: &String| !taken.contains(&id.as_str());
        for (id, values, source) in layer.into_iter().filter(|(id, _, _)| free(id)) {
            self.given.entry(id).or_insert((values, source));
        }
    }

    /// What is said of a flag, and by whom.
    pub fn get(&self, id: &str) -> Option<(&[OsString], &Source)> {
        self.given.get(id).map(|(values, source)| (values.as_slice(), source))
    }

    /// Sources that were to give keys of clients and give none, if there is no key at all: the server is open then.
    pub fn empty_keys(&self) -> Vec<String> {
        let sources = match self.given.get("api_key") {
            None => self.empty_keys.iter().collect(),
            Some((values, source)) if values.is_empty() => vec![source],
            Some(_) => Vec::new(),
        };
        let told = |source: &Source| match source {
            Source::Environment(name) => format!("{name} is set and empty"),
            source => format!("{source}: the list api-key is empty"),
        };
        let told = sources.into_iter().map(told);
        told.map(|told| format!("{told}: no API key is required from clients")).collect()
    }

    /// What all of it comes to.
    ///
    /// # Errors
    /// [`CliError::Usage`], which names the variable or the file that says what cannot be meant.
    pub fn flags(&self) -> Result<Flags, CliError> {
        let command = command();
        let mut line = Vec::new();
        for arg in command.get_arguments() {
            let Some((values, _)) = self.given.get(arg.get_id().as_str()) else { continue };
            match (arg.get_long(), arg.get_action()) {
                (Some(long), ArgAction::SetTrue) => line.push(format!("--{long}").into()),
                (Some(long), _) => line.extend(values.iter().map(|value| {
                    let mut word = OsString::from(format!("--{long}="));
                    word.push(value);
                    word
                })),
                (None, _) => line.extend(values.iter().cloned()),
            }
        }
        let matches = command.clone().try_get_matches_from(line);
        let flags = matches.and_then(|matches| Flags::from_arg_matches(&matches));
        flags.map_err(|refusal| CliError::Usage(self.blame(&command, &refusal)))
    }

    /// What is wrong, after the name of who said it.
    fn blame(&self, command: &Command, refusal: &clap::Error) -> String {
        let what = sentence(refusal);
        // As `--port <PORT>`.
        let Some(ContextValue::String(named)) = refusal.get(ContextKind::InvalidArg) else {
            return what;
        };
        let long = named.split([' ', '=']).next().and_then(|word| word.strip_prefix("--"));
        let arg = command.get_arguments().find(|arg| arg.get_long() == long);
        match arg.and_then(|arg| self.given.get(arg.get_id().as_str())) {
            Some((_, source)) if *source != Source::CommandLine => format!("{source}: {what}"),
            _ => what,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("command line"),
            Self::Environment(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Given {
        given(&command().try_get_matches_from(words).unwrap())
    }

    fn with(words: &[&str], environment: &[(&str, &str)], toml: &str) -> Result<Flags, CliError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), toml).unwrap();
        let mut given = line(words);
        given.insert("config".into(), vec![file.path().into()]);
        let environment = |name: &str| {
            let found = environment.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Layers::new(given, environment)?.flags()
    }

    #[test]
    fn the_command_line_goes_before_the_environment_and_that_before_the_file() {
        let file = "port = 1\nmax-num-seqs = 2\nblock-size = 32\nmax-num-waiting = 4";
        let environment = [("STRATA_PORT", "5"), ("STRATA_MAX_NUM_SEQS", "6")];
        let flags = with(&["--port", "7"], &environment, file).unwrap();
        assert_eq!(flags.server.port, 7);
        assert_eq!(flags.scheduler.max_num_seqs, Some(6));
        assert_eq!(flags.kv.block_size, 32);
        assert_eq!(flags.limits.max_num_waiting, 4);
        assert_eq!(flags.scheduler.max_num_batched_tokens, None);
    }

    #[test]
    fn several_values_are_a_list_in_a_file_and_have_commas_in_the_environment() {
        let file = "api-key = [\"a\", \"b\"]\nserved_model_name = \"one\"";
        let flags = with(&[], &[], file).unwrap();
        assert_eq!(flags.server.api_key, ["a", "b"]);
        assert_eq!(flags.model.served_model_name, ["one"]);
        let flags = with(&[], &[("VLLM_API_KEY", "c,d")], file).unwrap();
        assert_eq!(flags.server.api_key, ["c", "d"]);
        // The values of two layers are not one list.
        let flags = with(&["--api-key", "e"], &[("STRATA_API_KEY", "c,d")], file).unwrap();
        assert_eq!(flags.server.api_key, ["e"]);
    }

    #[test]
    fn a_key_that_is_set_and_empty_is_reported_where_no_other_key_is_there() {
        let told = |environment: &[(&str, &str)], toml: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), toml).unwrap();
            let given = Given::from([("config".to_owned(), vec![file.path().into()])]);
            let environment = |name: &str| {
                let found = environment.iter().find(|(own, _)| *own == name);
                found.map(|(_, value)| OsString::from(value))
            };
            Layers::new(given, environment).unwrap().empty_keys()
        };
        let (ours, vllms) = (("STRATA_API_KEY", ""), ("VLLM_API_KEY", ""));
        let one = told(&[ours], "");
        assert!(one.len() == 1 && one[0].starts_with("STRATA_API_KEY is set and empty"), "{one:?}");
        assert_eq!(told(&[ours, vllms], "").len(), 2);
        let list = told(&[], "api-key = []");
        assert!(list.len() == 1 && list[0].contains("api-key is empty"), "{list:?}");
        // Another source has a key, and the server is not open.
        assert!(told(&[ours, ("VLLM_API_KEY", "k")], "").is_empty());
        assert!(told(&[ours], "api-key = [\"k\"]").is_empty());
        assert!(told(&[], "").is_empty());
    }

    #[test]
    fn a_list_of_keys_with_an_empty_one_is_refused_without_showing_a_key() {
        for list in ["a,,b", "a,", ",", " ", "sec ret,b"] {
            let message = with(&[], &[("STRATA_API_KEY", list)], "").unwrap_err().to_string();
            assert!(message.starts_with("STRATA_API_KEY: "), "{message}");
            assert!(message.contains("not empty") && !message.contains("sec"), "{message}");
        }
        assert!(with(&[], &[], "api-key = \"\"").is_err());
        assert!(with(&[], &[], "api-key = [\"a\", \"\"]").is_err());
    }

    #[test]
    fn what_is_on_in_one_layer_is_turned_off_in_another() {
        let on = |words: &[&str], file| with(words, &[], file).unwrap().prefix_caching();
        assert!(on(&[], ""));
        assert!(!on(&[], "enable-prefix-caching = false"));
        assert!(on(&["--enable-prefix-caching"], "enable-prefix-caching = false"));
        assert!(!on(&["--no-enable-prefix-caching"], "enable-prefix-caching = true"));
        assert!(!on(&["--no-prefix-caching"], ""));
        assert!(!on(&["--enable-prefix-caching=false"], ""));
        let closes = |words: &[&str]| with(words, &[], "").unwrap().disable_additional_properties();
        assert!(closes(&[]) && !closes(&["--no-disable-additional-properties"]));
        assert!(!closes(&["--structured-outputs-config.disable_additional_properties=false"]));
        assert!(closes(&["--structured-outputs-config.disable_additional_properties"]));
        assert!(with(&["--enforce-eager"], &[], "").unwrap().machine.eager);
    }

    #[test]
    fn of_two_ways_to_say_a_size_the_nearer_one_counts() {
        let flags =
            with(&["--gpu-memory-utilization", "0.5"], &[], "kv-memory = \"1GiB\"").unwrap();
        assert_eq!((flags.kv.kv_memory, flags.kv.memory_utilization), (None, Some(0.5)));
        let flags = with(&["m"], &[("STRATA_MODEL", "other")], "").unwrap();
        assert_eq!(flags.model_name(), "m");
    }

    #[test]
    fn a_value_that_cannot_be_meant_is_told_with_who_said_it() {
        let told = |environment: &[(&str, &str)], file: &str| {
            with(&[], environment, file).unwrap_err().to_string()
        };
        let message = told(&[("STRATA_PORT", "http")], "");
        assert!(message.starts_with("STRATA_PORT: ") && message.contains("'http'"), "{message}");
        let message = told(&[], "block-size = 12");
        assert!(message.contains("--block-size") && message.contains("power of two"), "{message}");
        let message = told(&[], "max-num-seq = 12");
        assert!(
            message.contains("`max-num-seq`") && message.contains("--max-num-seqs"),
            "{message}"
        );
        for file in ["[server]\nport = 1", "port = 1\nport = 2", "config = \"x\"", "port = [1, 2]"]
        {
            assert!(with(&[], &[], file).is_err(), "{file}");
        }
        let message = told(&[], "no-enable-prefix-caching = true");
        assert!(message.contains("enable-prefix-caching = false"), "{message}");
        assert!(told(&[], "kv-memory = 1\nkv-cache-memory-bytes = 1").contains("kv-memory"));
    }
}
