//! Files in one of two forms: a specification, which is one JSON object, or a list with a line of JSON for each entry.

use std::io::{self, BufRead};

use serde::de::DeserializeOwned;

use super::workload::WorkloadError;
use crate::Time;

/// A file in either form.
pub(super) enum Form<'a, S> {
    Spec(S),
    List(Lines<'a>),
}

/// A list, read line by line.
pub(super) struct Lines<'a> {
    lines: io::Lines<Box<dyn BufRead + 'a>>,
    number: usize,
}

/// Reads a specification, or the beginning of a list: `is_list` tells them apart by the first line that is not blank.
/// `empty` is the error for a file without such a line.
pub(super) fn read_form<'a, S: DeserializeOwned>(
    mut input: Box<dyn BufRead + 'a>,
    is_list: fn(&str) -> bool,
    empty: WorkloadError,
) -> Result<Form<'a, S>, WorkloadError> {
    let mut first = String::new();
    let mut number = 0;
    while first.trim().is_empty() {
        first.clear();
        number += 1;
        if input.read_line(&mut first)? == 0 {
            return Err(empty);
        }
    }
    if is_list(&first) {
        let again: Box<dyn BufRead + 'a> =
            Box::new(io::Read::chain(io::Cursor::new(first.into_bytes()), input));
        return Ok(Form::List(Lines { lines: again.lines(), number: number - 1 }));
    }
    io::Read::read_to_string(&mut input, &mut first)?;
    let mut json = serde_json::Deserializer::from_str(&first);
    let spec = serde_path_to_error::deserialize::<_, S>(&mut json).map_err(|e| {
        let path = e.path().to_string();
        WorkloadError::Spec(e.into_inner(), path)
    })?;
    json.end().map_err(|e| WorkloadError::Spec(e, ".".to_owned()))?;
    Ok(Form::Spec(spec))
}

impl Lines<'_> {
    /// Reads the next entry; blank lines are skipped.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WorkloadError> {
        for line in &mut self.lines {
            let line = line?;
            self.number += 1;
            if line.trim().is_empty() {
                continue;
            }
            let number = self.number;
            let mut json = serde_json::Deserializer::from_str(&line);
            let read = serde_path_to_error::deserialize::<_, T>(&mut json).map_err(|e| {
                let path = e.path().to_string();
                WorkloadError::Line { number, path, what: e.into_inner() }
            })?;
            json.end().map_err(|what| WorkloadError::Line {
                number,
                path: ".".to_owned(),
                what,
            })?;
            return Ok(Some(read));
        }
        Ok(None)
    }

    /// Number of the line that was read last, from 1.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Checks that the entry read last does not arrive before the one before it, which arrived at `last`.
    pub(super) fn in_order(&self, arrival: Time, last: Time) -> Result<Time, WorkloadError> {
        if arrival >= last {
            return Ok(arrival);
        }
        let why = format!(
            "arrival {} is before the previous one, {}: the lines must be in the order of arrival",
            arrival.seconds(),
            last.seconds()
        );
        Err(WorkloadError::Value { number: self.number, why })
    }
}
