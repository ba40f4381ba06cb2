//! Building test programs and running tests in them, one by one or a few at a time.
//!
//! `cargo test` prints many lines where a learner needs one, and a run of it costs half a second
//! even if nothing is to be built. So cargo only builds, with messages as JSON, and this module
//! runs the programs.

mod compile;
pub mod report;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use course_marks::Gate;
use serde_json::Value;

use super::patience::{self, Ended};
use crate::shell;

pub use compile::{Diagnostic, NotBuilt, check_everything};
pub use report::{Outcome, Verdict};

/// Test programs of a package, by target (`lib`, or the name of an integration test).
pub struct Programs {
    /// Directory of the package, in which its tests run, as with cargo.
    dir: PathBuf,
    by_target: BTreeMap<String, PathBuf>,
}

impl Programs {
    /// Builds test programs of a package of the workspace in `root`; `tell` gets the name of every crate that had to be
    /// compiled.
    pub fn build(
        root: &Path,
        package: &str,
        dir: &Path,
        targets: &[&str],
        tell: &mut dyn FnMut(&str),
    ) -> Result<Result<Self, NotBuilt>> {
        let mut command = shell::cargo("test");
        command.current_dir(root).args(["--no-run", "--message-format=json", "--package", package]);
        for target in targets {
            match *target {
                "lib" => command.arg("--lib"),
                name => command.args(["--test", name]),
            };
        }
        Ok(compile::compile(command, tell)?.map(|(messages, _)| Self {
            dir: dir.into(),
            by_target: messages.iter().filter_map(executable).collect(),
        }))
    }

    /// Test programs of several packages, built by this call of `cargo test`, by the name of the
    /// package's directory.
    pub fn of_packages(command: Command) -> Result<Result<BTreeMap<String, Self>, NotBuilt>> {
        Ok(compile::compile(command, &mut |_| {})?.map(|(messages, _)| {
            let mut packages: BTreeMap<String, Self> = BTreeMap::new();
            for message in &messages {
                let Some((target, program)) = executable(message) else { continue };
                let manifest = message["manifest_path"].as_str().map(Path::new);
                let Some(dir) = manifest.and_then(Path::parent) else { continue };
                let package = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let programs = packages.entry(package);
                let programs = programs
                    .or_insert_with(|| Self { dir: dir.into(), by_target: BTreeMap::new() });
                programs.by_target.insert(target, program);
            }
            packages
        }))
    }

    /// Adds another name for a program.
    pub fn rename(&mut self, target: &str, name: &str) {
        if let Some(program) = self.by_target.remove(target) {
            self.by_target.insert(name.into(), program);
        }
    }

    /// Runs every test of a program, with some environment variables set.
    pub fn run_all(
        &self,
        target: &str,
        environment: &[(&str, &str)],
        limit: Duration,
    ) -> Result<Outcome> {
        let program = self.by_target.get(target);
        let program = program.with_context(|| format!("there is no test program {target}"))?;
        let Ended { status, stdout, stderr } =
            patience::run(&mut self.command(program, environment), limit)?;
        match status {
            None => bail!("the tests do not end: an endless loop?"),
            Some(status) if !is_regular(status) => {
                bail!("the test program ended early ({status})\n{stderr}")
            }
            Some(_) => Ok(report::read(&stdout)),
        }
    }

    /// Runs these gates, one program after the other, with some environment variables set, and
    /// returns the result of each, in their order. No program runs longer than `limit`.
    pub fn judge(
        &self,
        gates: &[&Gate],
        environment: &[(&str, &str)],
        limit: Duration,
    ) -> Result<Vec<Verdict>> {
        let mut by_target: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for gate in gates {
            by_target.entry(&gate.target).or_default().push(&gate.test);
        }
        let mut verdicts: BTreeMap<&Gate, Verdict> = BTreeMap::new();
        for (target, tests) in by_target {
            let Some(program) = self.by_target.get(target) else { continue };
            // As many threads as tests, so that all tests begin: at the time limit, those without a
            // result are those that hang. With one thread, tests would run on the main one.
            let threads = tests.len().max(2).to_string();
            let mut command = self.command(program, environment);
            command.args(["--test-threads", &threads, "--exact"]).args(&tests);
            let ended = patience::run(&mut command, limit)?;
            for gate in gates.iter().filter(|g| g.target == target) {
                let is_named = report::names(&ended.stdout, &gate.test);
                let verdict = match (report::result_of(&ended.stdout, &gate.test), ended.status) {
                    (Some(known), _) => known,
                    (None, None) if !is_named => Verdict::Hung,
                    // All results were printed, and there is none for this test.
                    (None, Some(status)) if is_regular(status) => Verdict::Missing,
                    _ => {
                        let mut command = self.command(program, environment);
                        judge_alone(&mut command, &gate.test, limit)?
                    }
                };
                verdicts.insert(gate, verdict);
            }
        }
        let verdict = |g: &&Gate| verdicts.get(*g).cloned().unwrap_or(Verdict::Missing);
        Ok(gates.iter().map(verdict).collect())
    }

    /// Adds programs that were built later for the same package.
    pub fn absorb(&mut self, later: Self) {
        self.by_target.extend(later.by_target);
    }

    /// Whether there is a program for this target.
    pub fn has(&self, target: &str) -> bool {
        self.by_target.contains_key(target)
    }

    fn command(&self, program: &Path, environment: &[(&str, &str)]) -> Command {
        let mut command = shell::program(program);
        command.current_dir(&self.dir);
        // A backtrace for every panic would slow property tests down; a caller may ask for one.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1").env_remove("RUST_BACKTRACE");
        command.envs(environment.iter().copied());
        command
    }
}

/// Runs a test by itself, since the program with all of them ended before it had printed the result
/// of each.
fn judge_alone(command: &mut Command, test: &str, limit: Duration) -> Result<Verdict> {
    command.args(["--nocapture", "--test-threads", "2", "--exact", test]);
    let Ended { status, stdout, stderr } = patience::run(command, limit)?;
    let output = || format!("{stdout}\n{stderr}");
    Ok(match status {
        None => Verdict::Hung,
        Some(status) if status.success() => Verdict::Passed,
        Some(status) if is_regular(status) => Verdict::Failed(output()),
        Some(status) => Verdict::Died { how: status.to_string(), output: output() },
    })
}

/// Whether a test program ended normally: all tests passed, or some failed.
fn is_regular(status: ExitStatus) -> bool {
    matches!(status.code(), Some(0 | 101))
}

fn executable(message: &Value) -> Option<(String, PathBuf)> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let program = message["executable"].as_str()?;
    let target = &message["target"];
    let is_lib = target["kind"].as_array()?.iter().any(|k| k == "lib");
    let name = if is_lib { "lib" } else { target["name"].as_str()? };
    Some((name.into(), program.into()))
}
