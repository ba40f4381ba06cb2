//! Output of a test program: tests that passed, tests that failed, and the output of those.

/// Results of some tests.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Number of tests that passed.
    pub passed: usize,
    /// Failed tests, in the order of the program's report.
    pub failed: Vec<Failure>,
}

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Name of the test in the program.
    pub test: String,
    /// Output of the test, the panic's message included.
    pub output: String,
}

/// Result of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The test passed.
    Passed,
    /// The test failed with this output.
    Failed(String),
    /// The whole program ended in the middle of the test.
    Died {
        /// Signal or exit status, such as `signal: 11 (SIGSEGV)`.
        how: String,
        /// Output until then.
        output: String,
    },
    /// The test exceeded its time limit.
    Hung,
    /// There is no such test.
    Missing,
}

/// Parses the output of Rust's test runner.
pub fn read(text: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let mut failed = Vec::new();
    for line in text.lines() {
        let Some(line) = line.strip_prefix("test ") else { continue };
        if line.ends_with(" ... ok") {
            outcome.passed += 1;
        } else if let Some(name) = line.strip_suffix(" ... FAILED") {
            // `#[should_panic]` follows the name.
            failed.push(name.trim_end_matches(" - should panic").to_string());
        }
    }
    for test in failed {
        let output = output_of(text, &test).unwrap_or_default();
        outcome.failed.push(Failure { test, output });
    }
    outcome
}

/// Returns whether a report has a result for a test.
pub fn names(report: &str, test: &str) -> bool {
    // For a slow test the runner prints "test NAME has been running ..", which is not a result.
    let heads = [format!("test {test} ... "), format!("test {test} - should panic ... ")];
    report.lines().any(|line| heads.iter().any(|head| line.starts_with(head)))
}

/// Returns the result of a test in a report: of a failed one only if its output was printed.
pub fn result_of(report: &str, test: &str) -> Option<Verdict> {
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

/// Returns the output of a failed test, if the report contains it.
fn output_of(report: &str, test: &str) -> Option<String> {
    let (_, after) = report.split_once(&format!("---- {test} stdout ----\n"))?;
    let end = after.find("\n---- ").or_else(|| after.find("\n\nfailures:\n"));
    Some(after[..end.unwrap_or(after.len())].trim().to_string())
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
        let outcome = read(REPORT);
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
        // Stopped before the failures were listed: the report names the test, without its output.
        let (cut, _) = REPORT.split_once("failures:").unwrap();
        assert_eq!(result_of(cut, "m::b"), None);
        assert!(names(cut, "m::b") && names(cut, "c") && !names(cut, "d"));
        assert!(!names("test slow has been running for over 60 seconds\n", "slow"));
    }
}
