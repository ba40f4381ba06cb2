//! Reads tables that serde knows, and finds every error in them.
//!
//! serde ends at the first error. So each field is read by itself, then each field of a table within, and each entry
//! of a list: the smallest parts that are wrong are the errors, and the rest is read.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::ConfigError;
use super::reader::shown;

/// The fields of a table that can be read as a `T`, and the errors of the others, whose paths begin with a field.
pub(super) fn good_fields<T: DeserializeOwned>(table: Table) -> (Table, Vec<ConfigError>) {
    let mut errors = Vec::new();
    let mut good = Table::new();
    for (field, value) in table {
        let read = |value: Value| read::<T>(&field, value);
        let found = errors_of(&field, &value, &read);
        if found.is_empty() {
            good.insert(field, value);
        }
        errors.extend(found);
    }
    (good, errors)
}

/// Errors of the fields of a table, read as a `T`. Fields that are missing are reported only if the table has no other
/// errors.
pub(crate) fn field_errors<T: DeserializeOwned>(table: &Table) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for (field, value) in table {
        let read = |value: Value| present(read::<T>(field, value));
        errors.extend(errors_of(field, value, &read));
    }
    if errors.is_empty()
        && let Err(why) = table.clone().try_into::<T>()
    {
        let what = match why.message().strip_prefix("missing field ") {
            Some(field) => format!("must have {field}"),
            None => why.message().trim().to_owned(),
        };
        errors.push(ConfigError::new("", what));
    }
    errors
}

/// An error about a field that is not there is none of those that are.
fn present(read: Result<(), String>) -> Result<(), String> {
    read.or_else(|why| if why.contains("missing field") { Ok(()) } else { Err(why) })
}

/// Reads one field of a `T`.
fn read<T: DeserializeOwned>(field: &str, value: Value) -> Result<(), String> {
    let table = Table::from_iter([(field.to_owned(), value)]);
    // The rest of toml's message says where, in words of its own.
    let message = |why: toml::de::Error| why.message().to_owned();
    table.try_into::<T>().map(drop).map_err(message)
}

/// Errors of the value at `path`. `read` reads the field of the section with such a value in its place.
fn errors_of(
    path: &str,
    value: &Value,
    read: &dyn Fn(Value) -> Result<(), String>,
) -> Vec<ConfigError> {
    let Err(why) = read(value.clone()) else { return Vec::new() };
    let mut errors = Vec::new();
    // The name of the field itself is unknown, whatever is in it.
    let unknown = |value: Value| read(value).is_err_and(|why| why.starts_with("unknown "));
    match value {
        Value::Table(_) if unknown(Table::new().into()) => {}
        Value::Table(table) => {
            for (key, inner) in table {
                // Fields that must be there are missed by the whole.
                let alone = |inner: Value| {
                    let one = Table::from_iter([(key.clone(), inner)]);
                    present(read(Value::Table(one)))
                };
                errors.extend(errors_of(&format!("{path}.{key}"), inner, &alone));
            }
        }
        Value::Array(entries) => {
            for (at, entry) in entries.iter().enumerate() {
                // A pair is not read as one value.
                let alone = |entry: Value| {
                    let read = read(Value::Array(vec![entry]));
                    read.or_else(
                        |why| if why.contains("invalid length") { Ok(()) } else { Err(why) },
                    )
                };
                errors.extend(errors_of(&format!("{path}[{at}]"), entry, &alone));
            }
        }
        _ => {}
    }
    if errors.is_empty() {
        errors.push(in_our_words(path, &why, value));
    }
    errors
}

/// serde's error of a value, as the other errors of the file are written.
fn in_our_words(path: &str, why: &str, value: &Value) -> ConfigError {
    if let Some(known) = expected_names(why, "unknown field ") {
        return ConfigError::new(path, format!("is unknown: the fields here are {known}"));
    }
    if let Some(known) = expected_names(why, "unknown variant ") {
        return ConfigError::new(path, format!("is unknown: the names here are {known}"));
    }
    if let Some(field) = why.strip_prefix("missing field ") {
        return ConfigError::new(path, format!("must have {field}"));
    }
    let invalid = ["invalid type: ", "invalid value: "].iter().any(|kind| why.starts_with(kind));
    if let Some((_, expected)) = why.split_once(", expected ").filter(|_| invalid) {
        let expected = match expected.trim() {
            "f64" | "f32" => "a number",
            "u64" | "usize" | "u32" => "a whole number that is not negative",
            "i64" => "a whole number",
            "a boolean" | "bool" => "true or false",
            "a sequence" => "a list",
            "a map" => "a table",
            structure if structure.starts_with("struct ") => "a table",
            other => other,
        };
        return ConfigError::new(path, format!("must be {expected}, got {}", shown(value)));
    }
    ConfigError::new(path, why.trim())
}

/// The names that were expected instead of an unknown one, without serde's quotes.
fn expected_names(why: &str, kind: &str) -> Option<String> {
    let (_, expected) = why.strip_prefix(kind)?.split_once(", ")?;
    let names: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
