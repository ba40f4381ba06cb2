//! Building with cargo, and parsing its messages.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::patience;
use crate::shell;

/// Reason why there are no programs to run.
#[derive(Debug)]
pub enum NotBuilt {
    /// The compiler rejected the code; its errors in order, at least one.
    Compile(Vec<Diagnostic>),
    /// Cargo failed before that; the end of its output.
    Cargo(String),
}

/// A message of the compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// `E0308: mismatched types`.
    pub message: String,
    /// File (relative to the workspace), line and column, counted from 1.
    pub place: Option<(String, usize, usize)>,
    /// The compiler's own rendering, source lines included.
    pub rendered: String,
    is_error: bool,
}

#[cfg(test)]
impl Diagnostic {
    /// Makes an error, for tests of the output of errors.
    pub fn error_at(file: &str, line: usize, message: &str, rendered: &str) -> Self {
        Self {
            message: message.into(),
            place: Some((file.into(), line, 5)),
            rendered: rendered.into(),
            is_error: true,
        }
    }
}

/// Checks everything in the workspace in `root` with the compiler; returns its warnings. Dependencies are
/// those of this program's own workspace, and their artifacts are in its target directory.
pub fn check_everything(root: &Path) -> Result<Result<Vec<Diagnostic>, NotBuilt>> {
    let mut command = shell::cargo("check");
    command.current_dir(root).args(["--workspace", "--all-targets", "--message-format=json"]);
    command.env("CARGO_TARGET_DIR", shell::target_dir()?);
    Ok(compile(command, &mut |_| {})?.map(|(_, warnings)| warnings))
}

/// Output of a successful cargo: every message, and the warnings among them.
pub type Compiled = (Vec<Value>, Vec<Diagnostic>);

/// Runs a cargo with JSON messages. `tell` gets the name of every crate that had to be compiled.
pub fn compile(
    mut command: Command,
    tell: &mut dyn FnMut(&str),
) -> Result<Result<Compiled, NotBuilt>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut cargo = command.spawn().context("cannot start cargo")?;
    let complaints = cargo.stderr.take().map(patience::collect);
    let mut messages: Vec<Value> = Vec::new();
    if let Some(stdout) = cargo.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(message) = serde_json::from_slice::<Value>(&line?) else { continue };
            if message["reason"] == "compiler-artifact" && message["fresh"] == false {
                tell(message["target"]["name"].as_str().unwrap_or_default());
            }
            messages.push(message);
        }
    }
    let status = cargo.wait()?;
    let complaints = patience::text(complaints);
    let diagnostics: Vec<Diagnostic> = messages.iter().filter_map(diagnostic).collect();
    let (errors, warnings): (Vec<_>, Vec<_>) = diagnostics.into_iter().partition(|d| d.is_error);
    if status.success() {
        return Ok(Ok((messages, warnings)));
    }
    if errors.is_empty() {
        return Ok(Err(NotBuilt::Cargo(complaints.trim().to_string())));
    }
    Ok(Err(NotBuilt::Compile(errors)))
}

fn diagnostic(message: &Value) -> Option<Diagnostic> {
    if message["reason"] != "compiler-message" {
        return None;
    }
    let message = &message["message"];
    let is_error = match message["level"].as_str()? {
        "error" | "error: internal compiler error" => true,
        "warning" => false,
        _ => return None,
    };
    let text = message["message"].as_str()?;
    // "aborting due to 2 previous errors", "3 warnings emitted": sums, not messages.
    if text.starts_with("aborting due to") || text.ends_with("emitted") {
        return None;
    }
    let spans = message["spans"].as_array();
    let primary = spans.and_then(|all| all.iter().find(|s| s["is_primary"] == true));
    let place = primary.and_then(|s| {
        let number = |name: &str| s[name].as_u64().map(|n| n as usize);
        Some((s["file_name"].as_str()?.into(), number("line_start")?, number("column_start")?))
    });
    let code = message["code"]["code"].as_str().filter(|c| c.starts_with('E'));
    Some(Diagnostic {
        message: code.map(|c| format!("{c}: {text}")).unwrap_or_else(|| text.into()),
        place,
        rendered: message["rendered"].as_str().unwrap_or_default().trim_end().into(),
        is_error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_compiler_keeps_its_place() {
        let message = serde_json::json!({
            "reason": "compiler-message",
            "message": {
                "level": "error", "message": "mismatched types", "code": { "code": "E0308" },
                "spans": [{ "is_primary": true, "file_name": "l1-tensor/src/a.rs",
                            "line_start": 12, "column_start": 5 }],
                "rendered": "error[E0308]: mismatched types\n"
            }
        });
        let found = diagnostic(&message).unwrap();
        assert_eq!(found.message, "E0308: mismatched types");
        assert_eq!(found.place, Some(("l1-tensor/src/a.rs".into(), 12, 5)));
        let sum = serde_json::json!({ "reason": "compiler-message", "message": {
            "level": "error", "message": "aborting due to 1 previous error", "spans": [] } });
        assert_eq!(diagnostic(&sum), None);
    }
}
