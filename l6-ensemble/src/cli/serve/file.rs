//! The file of `--config`: TOML, with the names of flags as keys.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};
use toml::Value;

use super::layers::{Given, is_setting};
use crate::cli::error::CliError;

/// What a file says, by the flags' ids. Values are text, as on a command line.
///
/// # Errors
/// [`CliError`]: what cannot be read, or is no flag.
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
            return Err(bad(format!("{other} and {key} are the same flag: keep one")));
        }
        // An empty list is kept, so that an empty list of keys can be told from none.
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
        Some(arg) if arg.get_id() == "config" => Err("a file cannot name another".into()),
        Some(arg) if is_setting(arg) => Ok(arg),
        Some(_) => Err(match long.strip_prefix("no-") {
            Some(on) if on.starts_with("enable-") => format!("for {key} write {on} = false"),
            Some(on) => format!("for {key} write enable-{on} = false"),
            None => format!("`{key}` is for the command line only"),
        }),
        None => {
            let hint = match similar(command, &long) {
                Some(similar) => format!("is {similar} meant?"),
                None => "see strata serve --help".to_owned(),
            };
            Err(format!("there is no flag `{key}`: {hint}"))
        }
    }
}

/// The flag that looks most like `--long`, as clap has it.
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
        Value::Array(_) => Err("this has one value, not a list".into()),
        // The one flag whose value is an object.
        Value::Table(table) if arg.get_id() == "override_generation_config" => {
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
        Value::Table(_) => Err("keys stand on their own here, in no section".into()),
        Value::Array(_) | Value::Datetime(_) => Err("use a text, a number, true or false".into()),
    }
}
