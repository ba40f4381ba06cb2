//! Layers of configuration: the command line, the environment, a file.
//!
//! Layers are merged as text. The result is then parsed as one command line, so that a value is parsed by the same
//! rules and rejected with the same message whatever its source.

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

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    CommandLine,
    /// A variable of the environment.
    Environment(String),
    /// A file: that of `--config`, or LMCache's.
    File(PathBuf),
    /// What `--kv-transfer-config` asks for.
    KvTransferConfig,
}

/// Values of flags, by the flags' ids.
pub type Given = BTreeMap<String, Vec<OsString>>;

/// The values of all sources together.
#[derive(Debug)]
pub struct Layers {
    given: BTreeMap<String, (Vec<OsString>, Source)>,
    /// Variables for API keys that are set and empty.
    empty_keys: Vec<Source>,
}

/// Whether only one of two flags can be given: a layer that gives the first hides the second of the layers below. These
/// are flags that conflict, and `--no-...` with the flag that it turns off.
fn excludes(command: &Command, one: &str, other: &str) -> bool {
    let conflicts = |one: &str, other: &str| {
        let arg = command.get_arguments().find(|arg| arg.get_id() == one);
        let others = arg.map(|arg| command.get_arg_conflicts_with(arg)).unwrap_or_default();
        others.iter().any(|arg| arg.get_id() == other)
    };
    one.strip_prefix("no_") == Some(other) || conflicts(one, other) || conflicts(other, one)
}

/// All flags.
pub fn command() -> Command {
    Flags::augment_args(Command::new("strata serve")).disable_help_flag(true).no_binary_name(true)
}

/// Whether environment and file may set it. In place of `--no-...` they set `false`.
pub fn is_setting(arg: &Arg) -> bool {
    !arg.is_positional() && !matches!(arg.get_action(), ArgAction::SetTrue)
}

/// The flags that the command line gives.
pub fn given(matches: &ArgMatches) -> Given {
    let command = command();
    let ids = command.get_arguments().map(|arg| arg.get_id().as_str());
    let ids = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
    let values = |id: &str| matches.get_raw(id).map(|raw| raw.map(OsString::from).collect());
    ids.map(|id| (id.to_owned(), values(id).unwrap_or_default())).collect()
}

/// The environment variable of a flag.
pub fn variable(arg: &Arg) -> String {
    let long = arg.get_long().unwrap_or_default();
    format!("STRATA_{}", long.to_uppercase().replace('-', "_"))
}

impl Layers {
    /// Merges all layers.
    ///
    /// # Errors
    /// [`CliError`]: a file that cannot be read, or has a key that is not a flag.
    pub fn new(
        given: Given,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, CliError> {
        let line = given.into_iter().map(|(id, values)| (id, (values, Source::CommandLine)));
        let mut layers = Self { given: line.collect(), empty_keys: Vec::new() };
        let command = command();
        let mut given = Vec::new();
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
                given.push((arg.get_id().to_string(), values, Source::Environment(name)));
            }
        }
        layers.under(&command, given);
        let config = layers.given.get("config").and_then(|(values, _)| values.first());
        if let Some(path) = config.map(PathBuf::from) {
            let read = file::read(&path, &command)?;
            let read =
                read.into_iter().map(|(id, values)| (id, values, Source::File(path.clone())));
            layers.under(&command, read.collect());
        }
        Ok(layers)
    }

    /// Adds a layer below all others.
    fn under(&mut self, command: &Command, mut layer: Vec<(String, Vec<OsString>, Source)>) {
        layer.retain(|(id, _, _)| !self.given.keys().any(|own| excludes(command, own, id)));
        for (id, values, source) in layer {
            self.given.entry(id).or_insert((values, source));
        }
    }

    /// Adds a value below those of all layers, if the flag has none.
    pub fn add_below(&mut self, id: &str, value: String, source: Source) {
        self.under(&command(), vec![(id.to_owned(), vec![value.into()], source)]);
    }

    /// Values of a flag and their source.
    pub fn get(&self, id: &str) -> Option<(&[OsString], &Source)> {
        self.given.get(id).map(|(values, source)| (values.as_slice(), source))
    }

    /// Warnings about sources whose API keys are empty, if there is no key at all: the server is open then.
    pub fn empty_keys(&self) -> Vec<String> {
        let sources = match self.given.get("api_key") {
            None => self.empty_keys.iter().collect(),
            Some((values, source)) if values.is_empty() => vec![source],
            Some(_) => Vec::new(),
        };
        let name = |source: &Source| match source {
            Source::Environment(name) => format!("{name} is set and empty"),
            source => format!("{source}: the list api-key is empty"),
        };
        let names = sources.into_iter().map(name);
        names.map(|name| format!("{name}: no API key is required from clients")).collect()
    }

    /// Parses the merged flags.
    ///
    /// # Errors
    /// [`CliError::Usage`], which names the variable or the file with the invalid value.
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

    /// The error message, after the source of the invalid value.
    fn blame(&self, command: &Command, refusal: &clap::Error) -> String {
        let what = sentence(refusal);
        // As `--port <PORT>` or `--eager[=<ON>]`.
        let Some(ContextValue::String(named)) = refusal.get(ContextKind::InvalidArg) else {
            return what;
        };
        let long = named.split(['[', ' ', '=']).next().and_then(|word| word.strip_prefix("--"));
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
            Self::KvTransferConfig => f.write_str("--kv-transfer-config"),
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
        assert_eq!(flags.scheduler.limits.max_num_seqs, Some(6));
        assert_eq!(flags.kv.blocks.block_size, 32);
        assert_eq!(flags.limits.max_num_waiting, 4);
        assert_eq!(flags.scheduler.limits.max_num_batched_tokens, None);
    }

    /// All flags but the file, whose name is temporary.
    fn shown(flags: Flags) -> String {
        format!("{:?}", Flags { config: None, ..flags })
    }

    #[test]
    fn the_engines_options_have_a_variable_and_a_key() {
        for (key, value) in [
            ("device", "cpu"),
            ("precision", "f32"),
            ("threads", "2"),
            ("batch-invariant", "true"),
            ("eager", "true"),
            ("kv-memory", "1GiB"),
            ("memory-utilization", "0.5"),
            ("block-size", "32"),
            ("kv-dtype", "fp8"),
            ("kv-tier-dram", "1GiB"),
            ("kv-tier-disk", "chunks"),
            ("kv-tier-disk-size", "2GiB"),
            ("kv-tier-redis", "127.0.0.1:6379"),
            ("kv-tier-chunk", "64"),
            ("kv-transfer-config", "{}"),
            ("enable-prefix-caching", "false"),
            ("max-num-seqs", "3"),
            ("max-num-batched-tokens", "64"),
            ("max-model-len", "4k"),
            ("long-prefill-token-threshold", "8"),
            ("policy", "priority"),
            ("infer-jobs", "true"),
            ("compose", "stable"),
            ("max-decode-steps", "8"),
            ("prefill-chunk", "256"),
            ("enable-chunked-prefill", "false"),
            ("trace", "run.jsonl"),
            ("job-history", "jobs.json"),
            ("max-num-waiting", "9"),
        ] {
            let default = shown(with(&[], &[], "").unwrap());
            let variable = format!("STRATA_{}", key.to_uppercase().replace('-', "_"));
            let from_environment = with(&[], &[(&variable, value)], "").unwrap();
            let from_file = with(&[], &[], &format!("{key} = \"{value}\"")).unwrap();
            let from_line = with(&[&format!("--{key}={value}")], &[], "").unwrap();
            let from_line = shown(from_line);
            assert_ne!(from_line, default, "{key}");
            assert_eq!(shown(from_environment), from_line, "{key}");
            assert_eq!(shown(from_file), from_line, "{key}");
        }
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
        let report = |environment: &[(&str, &str)], toml: &str| {
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
        let one = report(&[ours], "");
        assert!(one.len() == 1 && one[0].starts_with("STRATA_API_KEY is set and empty"), "{one:?}");
        assert_eq!(report(&[ours, vllms], "").len(), 2);
        let list = report(&[], "api-key = []");
        assert!(list.len() == 1 && list[0].contains("api-key is empty"), "{list:?}");
        // Another source has a key, and the server is not open.
        assert!(report(&[ours, ("VLLM_API_KEY", "k")], "").is_empty());
        assert!(report(&[ours], "api-key = [\"k\"]").is_empty());
        assert!(report(&[], "").is_empty());
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
        let on = |words: &[&str], file| with(words, &[], file).unwrap().kv.prefix_caching.on();
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
        assert!(with(&["--enforce-eager"], &[], "").unwrap().machine.capture.eager);
    }

    #[test]
    fn of_two_ways_to_say_a_size_the_nearer_one_counts() {
        let flags =
            with(&["--gpu-memory-utilization", "0.5"], &[], "kv-memory = \"1GiB\"").unwrap();
        assert_eq!((flags.kv.memory.kv_memory, flags.kv.memory_utilization), (None, Some(0.5)));
        let flags = with(&["m"], &[("STRATA_MODEL", "other")], "").unwrap();
        assert_eq!(flags.model_name(), "m");
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_source() {
        let report = |environment: &[(&str, &str)], file: &str| {
            with(&[], environment, file).unwrap_err().to_string()
        };
        let message = report(&[("STRATA_PORT", "http")], "");
        assert!(message.starts_with("STRATA_PORT: ") && message.contains("'http'"), "{message}");
        let message = report(&[("STRATA_EAGER", "maybe")], "");
        assert!(message.starts_with("STRATA_EAGER: ") && message.contains("'maybe'"), "{message}");
        let message = report(&[], "block-size = 12");
        assert!(message.contains("--block-size") && message.contains("power of two"), "{message}");
        let message = report(&[], "max-num-seq = 12");
        assert!(
            message.contains("`max-num-seq`") && message.contains("--max-num-seqs"),
            "{message}"
        );
        for file in ["[server]\nport = 1", "port = 1\nport = 2", "config = \"x\"", "port = [1, 2]"]
        {
            assert!(with(&[], &[], file).is_err(), "{file}");
        }
        let message = report(&[], "no-enable-prefix-caching = true");
        assert!(message.contains("enable-prefix-caching = false"), "{message}");
        assert!(report(&[], "kv-memory = 1\nkv-cache-memory-bytes = 1").contains("kv-memory"));
    }
}
