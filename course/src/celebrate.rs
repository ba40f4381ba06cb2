//! The end of the fast track: the learner's engine completes a prompt.

use std::io::{Write, stderr, stdout};
use std::process::Stdio;

use anyhow::{Context, Result};
use course_marks::marks::FAST_TRACK;

use crate::screen::{Screen, Tone};
use crate::shell;
use crate::workspace::Workspace;

const PROMPT: &str = "The capital of France is";

/// Runs the learner's engine on the default model, and shows what it writes. Without the model it says how to get it.
///
/// # Errors
/// Cargo cannot be started.
pub fn run(workspace: &Workspace) -> Result<()> {
    let mut command = shell::cargo("run");
    command.args(["--quiet", "--package", FAST_TRACK, "--", PROMPT, "--max-tokens", "8"]);
    command.current_dir(&workspace.root).stdin(Stdio::null());
    // An error of writing this line does not matter.
    let _ = writeln!(stderr(), "running your engine on a real model ..");
    let out = command.output().context("cannot start cargo")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let mut screen = Screen::default();
    screen.blank();
    if out.status.success() {
        screen.line(Tone::Good, "Your engine, on SmolLM2-135M:");
        screen.blank();
        text.lines().for_each(|line| _ = screen.line(Tone::Strong, format!("  {line}")));
        screen.blank();
        screen.wrapped(
            Tone::Plain,
            "",
            "Norms, attention, KV cache, blocks and scheduler are yours: every number of this text went through your \
             code. Congratulations.",
        );
        screen.line(Tone::Plain, "  book/src/fast-track/where-next.md   where to go from here");
    } else {
        let error = String::from_utf8_lossy(&out.stderr);
        let why = error.lines().find(|line| line.contains("is not in the cache"));
        screen.wrapped(Tone::Plain, "", why.unwrap_or("Your engine could not run:"));
        if why.is_none() {
            error.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev().for_each(|line| {
                screen.line(Tone::Bad, format!("  {line}"));
            });
        }
        screen
            .line(Tone::Plain, "Then `cargo x check nano` again: your engine completes a prompt.");
    }
    screen.print();
    stdout().flush()?;
    Ok(())
}
