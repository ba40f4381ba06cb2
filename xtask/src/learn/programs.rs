//! Building test programs and running tests in them, one by one or a few at a time.
//!
//! `cargo test` would do, but it prints a wall where a learner needs a line, and a run of it costs
//! half a second even if nothing is to be built. So cargo only builds, in its own words for
//! machines, and the programs are run from here.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use course::Gate;
use serde_json::Value;

use super::patience::{self, Ended};
use crate::shell;

/// Test programs of a package, by target (`lib`, or the name of an integration test).
pub struct Programs {
    /// The directory of the package: tests run there, as cargo does it.
    dir: PathBuf,
    by_target: BTreeMap<String, PathBuf>,
}

/// Why there are no programs to run.
#[derive(Debug)]
pub enum NotBuilt {
    /// The compiler refused; its errors in order, at least one.
    Compile(Vec<Diagnostic>),
    /// Cargo did not get as far as that; the end of what it said.
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
    /// An error, for tests of what is shown of errors.
    pub fn error_at(file: &str, line: usize, message: &str, rendered: &str) -> Self {
        Self {
            message: message.into(),
            place: Some((file.into(), line, 5)),
            rendered: rendered.into(),
            is_error: true,
        }
    }
}

/// What happened to some tests.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How many passed.
    pub passed: usize,
    /// Those that failed, in the order of the program's report.
    pub failed: Vec<Failure>,
}

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name in the program.
    pub test: String,
    /// What it printed, the panic's message included.
    pub output: String,
}

/// How one test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should.
    Passed,
    /// It failed, having printed this.
    Failed(String),
    /// The whole program ended in the middle of it.
    Died {
        /// `signal: 11 (SIGSEGV)`, as the system has it.
        how: String,
        /// What was printed until then.
        output: String,
    },
    /// It did not end in the time it was given.
    Hung,
    /// There is no such test.
    Missing,
}

impl Programs {
    /// Build test programs of a package of the workspace in `root`.
    pub fn build(
        root: &Path,
        package: &str,
        dir: &Path,
        targets: &[&str],
    ) -> Result<Result<Self, NotBuilt>> {
        Self::build_telling(root, package, dir, targets, &mut |_| {})
    }

    /// As [`Programs::build`]; `tell` hears the name of every crate that had to be compiled.
    pub fn build_telling(
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
        Ok(compile(command, tell)?.map(|(messages, _)| Self {
            dir: dir.into(),
            by_target: messages.iter().filter_map(executable).collect(),
        }))
    }

    /// Run every test of a program.
    pub fn run_all(&self, target: &str, environment: &[(&str, &str)]) -> Result<Outcome> {
        let program = self.by_target.get(target);
        let program = program.with_context(|| format!("there is no test program {target}"))?;
        let mut command = self.command(program);
        command.envs(environment.iter().copied()).stdin(Stdio::null());
        let out = command.output().with_context(|| program.display().to_string())?;
        let said = String::from_utf8_lossy(&out.stdout);
        if !said.contains("\ntest result: ") {
            let last = String::from_utf8_lossy(&out.stderr);
            bail!("the test program ended early ({})\n{last}", out.status);
        }
        Ok(read_report(&said))
    }

    /// Run these gates, all of which must be in programs that were built. `environment` is added.
    pub fn run(&self, gates: &[&Gate], environment: &[(&str, &str)]) -> Result<Outcome> {
        let mut by_target: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for gate in gates {
            by_target.entry(&gate.target).or_default().push(&gate.test);
        }
        let mut all = Outcome::default();
        for (target, tests) in by_target {
            let program = self.by_target.get(target);
            let program = program.with_context(|| format!("there is no test program {target}"))?;
            let mut command = self.command(program);
            command.arg("--exact").args(&tests);
            command.envs(environment.iter().copied()).stdin(Stdio::null());
            let out = command.output().with_context(|| program.display().to_string())?;
            let said = String::from_utf8_lossy(&out.stdout);
            let one = read_report(&said);
            if one.passed + one.failed.len() == tests.len() {
                all.passed += one.passed;
                all.failed.extend(one.failed);
            } else if let Some(test) = tests.iter().find(|t| !said.contains(**t)) {
                bail!("{target} has no test called {test}");
            } else {
                // It died: an abort, a stack overflow, a signal.
                let last = String::from_utf8_lossy(&out.stderr);
                let output = format!("the test program ended early ({})\n{last}", out.status);
                all.failed.push(Failure { test: tests.join(", "), output });
            }
        }
        Ok(all)
    }

    /// Run these gates, one program after the other, and say how each ended, in their order. No
    /// program is waited for longer than `limit`.
    pub fn judge(&self, gates: &[&Gate], limit: Duration) -> Result<Vec<Verdict>> {
        let mut by_target: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for gate in gates {
            by_target.entry(&gate.target).or_default().push(&gate.test);
        }
        let mut verdicts: BTreeMap<&Gate, Verdict> = BTreeMap::new();
        for (target, tests) in by_target {
            let Some(program) = self.by_target.get(target) else { continue };
            // As many threads as tests, so that all are begun: when time is up, those without
            // a result are those that hang. With one thread, tests would run on the main one.
            let threads = tests.len().max(2).to_string();
            let mut command = self.command(program);
            command.args(["--test-threads", &threads, "--exact"]).args(&tests);
            let ended = patience::run(&mut command, limit)?;
            for gate in gates.iter().filter(|g| g.target == target) {
                let is_named = names(&ended.stdout, &gate.test);
                let verdict = match (result_of(&ended.stdout, &gate.test), ended.status) {
                    (Some(known), _) => known,
                    (None, None) if !is_named => Verdict::Hung,
                    // All results were printed, and there is none.
                    (None, Some(status)) if is_regular(status) => Verdict::Missing,
                    _ => self.judge_alone(program, &gate.test, limit)?,
                };
                verdicts.insert(gate, verdict);
            }
        }
        let verdict = |g: &&Gate| verdicts.get(*g).cloned().unwrap_or(Verdict::Missing);
        Ok(gates.iter().map(verdict).collect())
    }

    /// Run a test by itself, since the program with all of them ended before it had said what
    /// happened to each.
    fn judge_alone(&self, program: &Path, test: &str, limit: Duration) -> Result<Verdict> {
        let mut command = self.command(program);
        command.args(["--nocapture", "--test-threads", "2", "--exact", test]);
        let Ended { status, stdout, stderr } = patience::run(&mut command, limit)?;
        let output = || format!("{stdout}\n{stderr}");
        Ok(match status {
            None => Verdict::Hung,
            Some(status) if status.success() => Verdict::Passed,
            Some(status) if is_regular(status) => Verdict::Failed(output()),
            Some(status) => Verdict::Died { how: status.to_string(), output: output() },
        })
    }

    /// Also hold what was built later for the same package.
    pub fn absorb(&mut self, later: Self) {
        self.by_target.extend(later.by_target);
    }

    /// Whether there is a program for this target.
    pub fn has(&self, target: &str) -> bool {
        self.by_target.contains_key(target)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = shell::program(program);
        command.current_dir(&self.dir);
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1").env_remove("RUST_BACKTRACE");
        command
    }
}

/// Whether a test program ended in one of the two ways it does when nothing unusual happened: all
/// passed, or some failed.
fn is_regular(status: ExitStatus) -> bool {
    matches!(status.code(), Some(0 | 101))
}

/// Whether a report has a line for a test, whatever the result.
fn names(report: &str, test: &str) -> bool {
    let head = format!("test {test} ");
    report.lines().any(|line| line.starts_with(&head))
}

/// What a report says of a test: of a failed one only if its output was printed.
fn result_of(report: &str, test: &str) -> Option<Verdict> {
    let head = format!("test {test}");
    let mut results = report.lines().filter_map(|l| l.strip_prefix(&head));
    let passed = results.find_map(|rest| match rest.trim_start_matches(" - should panic") {
        " ... ok" => Some(true),
        " ... FAILED" => Some(false),
        _ => None,
    })?;
    match passed {
        true => Some(Verdict::Passed),
        false => output_of(report, test).map(Verdict::Failed),
    }
}

/// What a failed test printed, if the report has come as far as that.
fn output_of(report: &str, test: &str) -> Option<String> {
    let (_, after) = report.split_once(&format!("---- {test} stdout ----\n"))?;
    let end = after.find("\n---- ").or_else(|| after.find("\n\nfailures:\n"));
    Some(after[..end.unwrap_or(after.len())].trim().to_string())
}

/// Let the compiler look at everything in the workspace in `root`; what it warns about.
pub fn check_everything(root: &Path) -> Result<Result<Vec<Diagnostic>, NotBuilt>> {
    let mut command = shell::cargo("check");
    command.current_dir(root).args(["--workspace", "--all-targets", "--message-format=json"]);
    Ok(compile(command, &mut |_| {})?.map(|(_, warnings)| warnings))
}

/// What cargo says when all goes well: every message, and the warnings among them.
type Compiled = (Vec<Value>, Vec<Diagnostic>);

/// Run a cargo that speaks JSON. `tell` hears the name of every crate that had to be compiled.
fn compile(mut command: Command, tell: &mut dyn FnMut(&str)) -> Result<Result<Compiled, NotBuilt>> {
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

/// Read what Rust's test runner prints.
fn read_report(text: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let mut failed = Vec::new();
    for line in text.lines() {
        let Some(line) = line.strip_prefix("test ") else { continue };
        if line.ends_with(" ... ok") {
            outcome.passed += 1;
        } else if let Some(name) = line.strip_suffix(" ... FAILED") {
            // `#[should_panic]` is mentioned behind the name.
            failed.push(name.trim_end_matches(" - should panic").to_string());
        }
    }
    for test in failed {
        let output = output_of(text, &test).unwrap_or_default();
        outcome.failed.push(Failure { test, output });
    }
    outcome
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

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "
running 3 tests
test a ... ok
test m::b ... FAILED
test c - should panic ... FAILED

failures:

---- m::b stdout ----

thread 'm::b' (7) panicked at l1-tensor/tests/x.rs:1:1:
rms_norm on avx2, x [3, 64]
  expected  1
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- c stdout ----
note: test did not panic as expected at tests/x.rs:9:4

failures:
    c
    m::b

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn a_report_is_taken_apart_test_by_test() {
        let outcome = read_report(REPORT);
        assert_eq!(outcome.passed, 1);
        let names: Vec<&str> = outcome.failed.iter().map(|f| f.test.as_str()).collect();
        assert_eq!(names, ["m::b", "c"]);
        assert!(outcome.failed[0].output.contains("expected  1"));
        assert!(!outcome.failed[0].output.contains("as expected at"));
        assert!(outcome.failed[1].output.contains("did not panic as expected"));
    }

    #[test]
    fn each_test_is_told_apart_from_the_others() {
        assert_eq!(result_of(REPORT, "a"), Some(Verdict::Passed));
        let Some(Verdict::Failed(output)) = result_of(REPORT, "c") else { panic!() };
        assert!(output.starts_with("note: test did not panic"), "{output}");
        assert_eq!(result_of(REPORT, "m"), None, "the beginning of a name is no name");
        // Stopped before the failures were listed: the test is named, its output is not there.
        let (cut, _) = REPORT.split_once("failures:").unwrap();
        assert_eq!(result_of(cut, "m::b"), None);
        assert!(names(cut, "m::b") && !names(cut, "d"));
    }

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
