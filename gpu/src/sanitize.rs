//! Runs the checks under NVIDIA's compute-sanitizer, which checks every memory access of a kernel.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::Serialize;

/// Tools of compute-sanitizer. They find accesses outside of an allocation, barriers that not all threads reach, and
/// races on shared memory.
const TOOLS: [&str; 3] = ["memcheck", "synccheck", "racecheck"];

/// Exit status of compute-sanitizer if it has found an error.
const FOUND: i32 = 86;

/// Result of compute-sanitizer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum Sanitized {
    /// It was not run.
    Skipped {
        /// Reason.
        why: String,
    },
    /// It was run.
    Ran {
        /// Result of each tool.
        tools: Vec<Tool>,
    },
}

/// Result of one tool.
#[derive(Clone, Debug, Serialize)]
pub struct Tool {
    /// Name of the tool.
    pub name: &'static str,
    /// Whether it found no error.
    pub clean: bool,
    /// End of its output, if it found an error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub said: String,
    /// Duration of the run.
    pub seconds: f64,
}

impl Sanitized {
    /// Whether an error was found.
    pub fn found_something(&self) -> bool {
        matches!(self, Self::Ran { tools } if tools.iter().any(|tool| !tool.clean))
    }
}

/// Runs the quick checks under each tool, if compute-sanitizer is installed.
///
/// # Errors
/// It cannot be started.
pub fn run(mut said: impl FnMut(&Tool)) -> Result<Sanitized> {
    let Some(sanitizer) = find() else {
        let why = "compute-sanitizer is neither in PATH nor in a CUDA toolkit below /usr/local";
        return Ok(Sanitized::Skipped { why: why.into() });
    };
    let program = std::env::current_exe().context("where is this program?")?;
    let mut tools = Vec::new();
    for name in TOOLS {
        let started = Instant::now();
        let mut command = Command::new(&sanitizer);
        command.args(["--tool", name, "--error-exitcode", &FOUND.to_string()]);
        command.arg(&program).args(["parity", "--quick"]);
        // The captured steps of an engine take minutes under a tool, and run no other kernels.
        command.args(["--without", "an engine"]);
        let output = command.output().with_context(|| sanitizer.display().to_string())?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        let clean = output.status.success();
        // On some virtual machines tools cannot attach to the device: this is not an error of a kernel.
        let refusal = text.lines().find(|line| line.to_lowercase().contains("not supported"));
        if let Some(why) = refusal.filter(|_| !clean && output.status.code() != Some(FOUND)) {
            return Ok(Sanitized::Skipped {
                why: format!("compute-sanitizer says: {}", why.trim()),
            });
        }
        let last: Vec<&str> = text.lines().rev().take(40).collect();
        let text = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        let tool = Tool {
            name,
            clean,
            said: if clean { String::new() } else { text },
            seconds: started.elapsed().as_secs_f64(),
        };
        said(&tool);
        tools.push(tool);
    }
    Ok(Sanitized::Ran { tools })
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let toolkits = std::fs::read_dir("/usr/local").into_iter().flatten().flatten();
    let toolkits = toolkits.filter(|entry| entry.file_name().to_string_lossy().starts_with("cuda"));
    let folders =
        std::env::split_paths(&path).chain(toolkits.map(|entry| entry.path().join("bin")));
    folders.map(|folder| folder.join("compute-sanitizer")).find(|path| path.is_file())
}
