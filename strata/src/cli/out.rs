//! Writing to stdout, where every failure is an error value: `println!` would panic on a closed pipe.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write, stdout};
use std::path::Path;

use serde::Serialize;

use super::error::CliError;

/// A buffered stdout for output of many parts. Call [`Out::finish`]: text that is still buffered may be lost on drop.
pub struct Out(BufWriter<StdoutLock<'static>>);

impl Out {
    /// Locks stdout.
    pub fn new() -> Self {
        Self(BufWriter::new(stdout().lock()))
    }

    /// Writes text unchanged.
    ///
    /// # Errors
    /// [`CliError::Stdout`].
    pub fn text(&mut self, text: &str) -> Result<(), CliError> {
        self.0.write_all(text.as_bytes()).map_err(CliError::Stdout)
    }

    /// Writes a value as compact JSON, without a line end. Numbers are written with as many digits as it takes to read
    /// the same f32 or f64 back; NaN and infinities, which JSON does not have, become `null`.
    ///
    /// # Errors
    /// [`CliError::Stdout`].
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        serde_json::to_writer(&mut self.0, value).map_err(|e| CliError::Stdout(io::Error::from(e)))
    }

    /// Ends a text: on a terminal the line, so that the shell's prompt starts on its own; elsewhere nothing, since a
    /// file or a pipe gets the text and no byte more.
    ///
    /// # Errors
    /// [`CliError::Stdout`].
    pub fn end_of_text() -> Result<(), CliError> {
        if stdout().is_terminal() { text("\n") } else { Ok(()) }
    }

    /// Flushes the buffer.
    ///
    /// # Errors
    /// [`CliError::Stdout`].
    pub fn flush(&mut self) -> Result<(), CliError> {
        self.0.flush().map_err(CliError::Stdout)
    }

    /// Flushes the buffer, and ends the output.
    ///
    /// # Errors
    /// [`CliError::Stdout`].
    pub fn finish(mut self) -> Result<(), CliError> {
        self.flush()
    }
}

/// Writes one value as one line of JSON.
///
/// # Errors
/// [`CliError::Stdout`].
pub fn json_line(value: &impl Serialize) -> Result<(), CliError> {
    let mut out = Out::new();
    out.json(value)?;
    out.text("\n")?;
    out.finish()
}

/// Writes a report as text; with a path also as JSON, to that file, or to stdout in place of the text if it is `-`.
///
/// # Errors
/// [`CliError::Stdout`] or [`CliError::Output`]; a report that is no JSON.
pub fn report(report: &(impl Serialize + Display), json: Option<&Path>) -> anyhow::Result<()> {
    match json {
        Some(path) if path.as_os_str() == "-" => return Ok(json_line(report)?),
        Some(path) => {
            let text = format!("{}\n", serde_json::to_string(report)?);
            let written = std::fs::write(path, text);
            written.map_err(|reason| CliError::Output { path: path.into(), reason })?;
        }
        None => {}
    }
    Ok(text(&report.to_string())?)
}

/// Writes text unchanged, and flushes.
///
/// # Errors
/// [`CliError::Stdout`].
pub fn text(text: &str) -> Result<(), CliError> {
    let mut out = Out::new();
    out.text(text)?;
    out.finish()
}
