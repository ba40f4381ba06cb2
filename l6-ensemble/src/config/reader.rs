//! Reads the fields of a TOML table, and collects every error instead of the first one.

use std::fmt;

use toml::{Table, Value};

use super::{ConfigError, section};

/// Reader of one table of the ensemble file.
pub(super) struct Reader<'a> {
    /// Path of the table, as in `specialist.template`.
    path: String,
    table: Table,
    errors: &'a mut Vec<ConfigError>,
}

impl<'a> Reader<'a> {
    /// Reader of a table at `path`; the path of the file itself is empty.
    pub fn new(path: impl Into<String>, table: Table, errors: &'a mut Vec<ConfigError>) -> Self {
        Self { path: path.into(), table, errors }
    }

    /// Path of a field.
    pub fn path(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// Adds an error of a field.
    pub fn error(&mut self, field: &str, what: impl fmt::Display) {
        let path = self.path(field);
        self.errors.push(ConfigError { path, what: what.to_string() });
    }

    /// Takes a field and converts it. `what` says what is expected.
    fn take<T>(
        &mut self,
        field: &str,
        what: &str,
        convert: impl FnOnce(Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.table.remove(field)?;
        let got = value.type_str();
        let converted = convert(value);
        if converted.is_none() {
            self.error(field, format_args!("must be {what}, got {got}"));
        }
        converted
    }

    /// A string.
    pub fn string(&mut self, field: &str) -> Option<String> {
        self.take(field, "a string", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// A string that must be there.
    pub fn required_string(&mut self, field: &str) -> String {
        if !self.table.contains_key(field) {
            self.error(field, "is missing");
        }
        let text = self.string(field);
        if text.as_ref().is_some_and(String::is_empty) {
            self.error(field, "must not be empty");
        }
        text.unwrap_or_default()
    }

    /// A string that a type parses; the error is that of the type.
    pub fn parsed<T: std::str::FromStr>(&mut self, field: &str) -> Option<T>
    where
        T::Err: fmt::Display,
    {
        match self.string(field)?.parse() {
            Ok(value) => Some(value),
            Err(why) => {
                self.error(field, why);
                None
            }
        }
    }

    /// A list of strings.
    pub fn strings(&mut self, field: &str) -> Option<Vec<String>> {
        self.take(field, "a list of strings", |value| {
            let Value::Array(values) = value else { return None };
            let text = |value| match value {
                Value::String(text) => Some(text),
                _ => None,
            };
            values.into_iter().map(text).collect()
        })
    }

    /// A whole number within a range.
    pub fn count(&mut self, field: &str, least: usize, most: usize) -> Option<usize> {
        let what = format!("a whole number from {least} to {most}");
        let value = self.table.remove(field)?;
        let number = value.as_integer().and_then(|n| usize::try_from(n).ok());
        let number = number.filter(|n| (least..=most).contains(n));
        if number.is_none() {
            self.error(field, format_args!("must be {what}, got {}", shown(&value)));
        }
        number
    }

    /// A number within a range.
    pub fn number(&mut self, field: &str, least: f64, most: f64) -> Option<f64> {
        let value = self.table.remove(field)?;
        let number = match value {
            Value::Float(x) => Some(x),
            Value::Integer(n) => Some(n as f64),
            _ => None,
        };
        let number = number.filter(|x| (least..=most).contains(x));
        if number.is_none() {
            let what = format!("must be a number from {least} to {most}, got {}", shown(&value));
            self.error(field, what);
        }
        number
    }

    /// A table, as its fields. The reader of it gets `errors` from [`Reader::errors`].
    pub fn table(&mut self, field: &str) -> Option<Table> {
        self.take(field, "a table", |value| match value {
            Value::Table(table) => Some(table),
            _ => None,
        })
    }

    /// A list of tables.
    pub fn tables(&mut self, field: &str) -> Option<Vec<Table>> {
        self.take(field, "a list of tables", |value| {
            let Value::Array(values) = value else { return None };
            let table = |value| match value {
                Value::Table(table) => Some(table),
                _ => None,
            };
            values.into_iter().map(table).collect()
        })
    }

    /// A table that serde reads; the default without it. Fields with errors have their defaults, so that the others are
    /// still read and checked.
    pub fn section<T: serde::de::DeserializeOwned + Default>(&mut self, field: &str) -> T {
        let Some(table) = self.table(field) else { return T::default() };
        let (good, errors) = section::good_fields::<T>(table);
        for ConfigError { path, what } in errors {
            self.error(&format!("{field}.{path}"), what);
        }
        // Each field was read by itself.
        good.try_into().unwrap_or_default()
    }

    /// Whether the table has this field, and it was not read yet.
    pub fn has(&self, field: &str) -> bool {
        self.table.contains_key(field)
    }

    /// Where the errors are collected.
    pub fn errors(&mut self) -> &mut Vec<ConfigError> {
        self.errors
    }

    /// Ends the table: what is left of it is unknown. `known` are the names of all fields.
    pub fn end(mut self, known: &[&str]) {
        let unknown: Vec<String> = self.table.keys().cloned().collect();
        for field in unknown {
            let known = known.join(", ");
            self.error(&field, format_args!("is unknown: the fields here are {known}"));
        }
    }
}

/// A value as it may be shown in an error: short.
pub(super) fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => format!("\"{text}\""),
        Value::Integer(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Boolean(on) => on.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    };
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}..", &text[..at]),
        None => text,
    }
}
