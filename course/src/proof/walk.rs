//! Simulates a learner who writes the reference's code, one exercise after the other.
//!
//! It uses a real workspace made by `cargo x start` and its own `cargo x check`; files change as text, and everything
//! is compiled again after each change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use course_marks::{Exercise, Language, edit, marks};

use super::{seconds, starter};
use crate::shell;
use crate::workspace::{Member, Workspace};

/// How many exercises of a layer are blanked once more, alone, when everything is written. Each is two checks of all
/// layers; that its gate fails without it is proven with the gates.
const BLANKED_ALONE: usize = 1;

/// Walk. Of a layer's exercises, every `stride`-th is checked before it is written; all of them are written.
pub fn prove(workspace: &Workspace, stride: usize) -> Result<()> {
    let learner = Learner { dir: starter::make(workspace, "walk")? };
    for member in &workspace.members {
        for (n, exercise) in member.layer.exercises.iter().enumerate() {
            let start = Instant::now();
            // Whether a check of everything comes from a finished layer to the next is seen at the
            // crossing. After that the layers below stay as they are, and their gates are left alone.
            let check: &[&str] = if n == 0 { &["check"] } else { &["check", &member.layer.id] };
            let checked = n % stride.max(1) == 0;
            if checked {
                learner.expect_first(check, Some(&exercise.id))?;
            }
            learner.write(member, exercise)?;
            if checked {
                println!("{:>7}  {}", seconds(start.elapsed()), exercise.id);
            }
        }
        // What the learner wrote is good enough for the layers above.
        learner.cargo_x(&["use", &member.layer.id, "mine"])?;
    }
    learner.expect_first(&["check"], None)?;
    println!("         check is green on everything");

    for member in &workspace.members {
        let exercises = &member.layer.exercises;
        let step = exercises.len().div_ceil(BLANKED_ALONE).max(1);
        for exercise in exercises.iter().skip(step / 2).step_by(step) {
            let start = Instant::now();
            learner.unwrite(member, exercise)?;
            learner.expect_first(&["check"], Some(&exercise.id))?;
            learner.write(member, exercise)?;
            learner.expect_first(&["check", &exercise.id], None)?;
            println!("{:>7}  {} alone, blank and back", seconds(start.elapsed()), exercise.id);
        }
    }
    Ok(())
}

/// Walk through one layer: check before its first and its last exercise, and when all are written. The layers below are
/// the reference's.
pub fn prove_layer(workspace: &Workspace, member: &Member) -> Result<()> {
    let learner = Learner { dir: starter::make_of(workspace, "walk", &[member])? };
    let (exercises, check) = (&member.layer.exercises, ["check", member.layer.id.as_str()]);
    for (n, exercise) in exercises.iter().enumerate() {
        if n == 0 || n + 1 == exercises.len() {
            let start = Instant::now();
            learner.expect_first(&check, Some(&exercise.id))?;
            println!("{:>7}  {}", seconds(start.elapsed()), exercise.id);
        }
        learner.write(member, exercise)?;
    }
    let start = Instant::now();
    learner.expect_first(&check, None)?;
    println!("{:>7}  check is green on {}", seconds(start.elapsed()), member.layer.id);
    Ok(())
}

/// Walk through the fast track. Its last check runs the engine on the default model, which must be in the cache. The bounds
/// are what the book promises.
pub fn prove_fast_track(workspace: &Workspace) -> Result<()> {
    let member = workspace.member(marks::FAST_TRACK)?;
    let minutes: u32 = member.layer.exercises.iter().map(|e| e.minutes).sum();
    let sources = member.sources()?;
    let lines: usize = sources
        .files
        .iter()
        .flat_map(|file| file.regions.iter().map(|region| region.code_lines(&file.text)))
        .sum();
    println!("         {minutes} minutes, {lines} lines to write");
    if minutes > MAX_FAST_MINUTES || lines > MAX_FAST_LINES {
        bail!("the fast track has at most {MAX_FAST_MINUTES} minutes and {MAX_FAST_LINES} lines");
    }
    let learner = Learner { dir: starter::make_of(workspace, "walk", &[member])? };
    for exercise in &member.layer.exercises {
        learner.write(member, exercise)?;
    }
    let out = learner.cargo_x(&["check"])?;
    let said = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() || !said.contains("The capital of France is Paris") {
        bail!("`cargo x check` should end with the engine's text, but says\n{said}");
    }
    println!("{said}");
    Ok(())
}

/// Listed time of the exercises of the fast track, at most: ten hours with the reading.
const MAX_FAST_MINUTES: u32 = 480;
/// Lines to write, at most.
const MAX_FAST_LINES: usize = 1000;

struct Learner {
    dir: PathBuf,
}

impl Learner {
    /// Put the reference's bodies of an exercise into the learner's files.
    fn write(&self, member: &Member, exercise: &Exercise) -> Result<()> {
        self.edit(member, exercise, |_, text, reference| {
            let bodies = edit::bodies(reference, &exercise.id).map_err(marks_of)?;
            edit::splice(text, &exercise.id, &bodies)
                .map_err(marks_of)?
                .context("the marks are not those of the reference")
        })
    }

    /// Make an exercise blank again.
    fn unwrite(&self, member: &Member, exercise: &Exercise) -> Result<()> {
        self.edit(member, exercise, |language, text, _| {
            edit::blank(text, language, &[exercise]).map_err(marks_of)
        })
    }

    fn edit(
        &self,
        member: &Member,
        exercise: &Exercise,
        change: impl Fn(Language, &str, &str) -> Result<String>,
    ) -> Result<()> {
        for file in member.sources()?.files {
            if file.regions.iter().any(|r| r.id == exercise.id) {
                let path = self.dir.join(&member.layer.package).join(&file.path);
                let text = fs::read_to_string(&path)?;
                let language = Language::of(&file.path);
                let text =
                    change(language, &text, &file.text).with_context(|| file.path.clone())?;
                fs::write(&path, text)?;
            }
        }
        Ok(())
    }

    /// Run `cargo x ..` in the learner's workspace.
    fn cargo_x(&self, args: &[&str]) -> Result<Output> {
        let mut command = shell::cargo("x");
        command.args(args).current_dir(&self.dir).stdin(Stdio::null());
        // The dependencies are those of the reference and need not be built again.
        command.env("CARGO_TARGET_DIR", shell::target_dir()?);
        // As on a learner's machine: small changes, many builds.
        command.env("CARGO_INCREMENTAL", "1");
        command.output().context("cannot start cargo")
    }

    /// Runs `cargo x ..`. The first exercise it names must be this one; with `None`, it must succeed.
    fn expect_first(&self, args: &[&str], id: Option<&str>) -> Result<()> {
        let out = self.cargo_x(args)?;
        let said = String::from_utf8_lossy(&out.stdout);
        let first = first_id(&said);
        let as_expected = match id {
            Some(id) => !out.status.success() && first.as_deref() == Some(id),
            None => out.status.success(),
        };
        if as_expected {
            return Ok(());
        }
        bail!(
            "`cargo x {}` in {} should {}, but ({}) says\n{said}{}",
            args.join(" "),
            Path::new(&self.dir).display(),
            id.map_or("succeed".into(), |id| format!("name {id}")),
            out.status,
            String::from_utf8_lossy(&out.stderr)
        )
    }
}

fn marks_of((line, problem): (usize, course_marks::MarkProblem)) -> anyhow::Error {
    anyhow::anyhow!("line {}: {problem}", line + 1)
}

/// The exercise that a screen of `check` is about: `l1.rms_norm, exercise 5 of 14: ..`.
fn first_id(text: &str) -> Option<String> {
    let heading = text.lines().find_map(|line| line.split_once(", exercise "));
    heading.map(|(id, _)| id.to_string()).filter(|id| marks::is_id(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exercise_that_is_named_first_is_found() {
        let text = "l1 ####.... 4 of 14\n\nl1.rms_norm, exercise 5 of 14; see l1.rope.\n";
        assert_eq!(first_id(text).as_deref(), Some("l1.rms_norm"));
        assert_eq!(first_id("all is green (see l1-tensor/src/lib.rs)"), None);
    }
}
