//! The file of `--config`: TOML whose keys are the names of flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};
use toml::Value;

use super::layers::{Given, is_setting};
use crate::cli::error::CliError;

/// Reads a file into values by the flags' ids. Values are text, as on a command line.
///
/// # Errors
/// [`CliError`]: a file that cannot be read, or has a key that is not a flag.
pub fn read(path: &Path, command: &Command) -> Result<Given, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|reason| CliError::Input { what: shown.to_string(), reason })?;
    let bad = |what: String| CliError::Usage(format!("{shown}: {what}"));
    let table: toml::Table =
        text.parse().map_err(|e: toml::de::Error| bad(e.to_string().trim().to_owned()))?;
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut given = Given::new();
    for (key, value) in table {
        let arg = flag(command, &key).map_err(bad)?;
        let values = texts(arg, &value).map_err(|what| bad(format!("{key}: {what}")))?;
        let id = arg.get_id().to_string();
        if let Some(other) = names.insert(id.clone(), key.clone()) {
            return Err(bad(format!("{other} and {key} set the same flag: keep one")));
        }
        // An empty list is kept, so that an empty list of keys differs from none.
        given.insert(id, values);
    }
    Ok(given)
}

/// The flag of a key, which may have `_` for `-`.
fn flag<'a>(command: &'a Command, key: &str) -> Result<&'a Arg, String> {
    let long = key.replace('_', "-");
    let is = |arg: &&Arg| {
        arg.get_long() == Some(&long)
            || arg.get_all_aliases().is_some_and(|all| all.contains(&long.as_str()))
    };
    match command.get_arguments().find(is) {
        Some(arg) if arg.get_id() == "config" => {
            Err("a configuration file cannot name another one".into())
        }
        Some(arg) if is_setting(arg) => Ok(arg),
        Some(_) => Err(match long.strip_prefix("no-") {
            Some(on) if on.starts_with("enable-") => format!("instead of {key} write {on} = false"),
            Some(on) => format!("instead of {key} write enable-{on} = false"),
            None => format!("`{key}` can only be given on the command line"),
        }),
        None => {
            let hint = match similar(command, &long) {
                Some(similar) => format!("did you mean {similar}?"),
                None => "see strata serve --help".to_owned(),
            };
            Err(format!("unknown flag `{key}`: {hint}"))
        }
    }
}

/// The flag most similar to `--long`, by clap's measure.
pub fn similar(command: &Command, long: &str) -> Option<String> {
    let refusal = command.clone().try_get_matches_from([format!("--{long}")]).err()?;
    match refusal.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(similar)) => Some(similar.clone()),
        _ => None,
    }
}

fn texts(arg: &Arg, value: &Value) -> Result<Vec<OsString>, String> {
    match value {
        Value::Array(values) if matches!(arg.get_action(), ArgAction::Append) => {
            values.iter().map(text).collect()
        }
        Value::Array(_) => Err("must be one value, not a list".into()),
        // The flags whose value is an object.
        Value::Table(table)
            if arg.get_id() == "override_generation_config"
                || arg.get_id() == "speculative_config" =>
        {
            let json = serde_json::to_string(table).map_err(|e| e.to_string())?;
            Ok(vec![json.into()])
        }
        value => Ok(vec![text(value)?]),
    }
}

fn text(value: &Value) -> Result<OsString, String> {
    match value {
        Value::String(text) => Ok(text.into()),
        Value::Integer(n) => Ok(n.to_string().into()),
        Value::Float(x) => Ok(x.to_string().into()),
        Value::Boolean(on) => Ok(on.to_string().into()),
        Value::Table(_) => Err("must be a value: keys cannot be in a section".into()),
        Value::Array(_) | Value::Datetime(_) => {
            Err("must be a string, a number, true or false".into())
        }
    }
}
