//! Counting tests by reading what Rust's test runner prints.

use std::fmt;

/// Counts over all test programs of one `cargo test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
    programs: usize,
    /// The tests that failed, by name.
    pub failed_tests: Vec<String>,
}

impl Tally {
    /// Whether there was a test that passed.
    pub fn any_passed(&self) -> bool {
        self.passed > 0
    }

    /// Take one line of output into account.
    pub fn read(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.programs += 1;
            // "ok. 3 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.02s"
            for part in result.split(['.', ';']) {
                let mut words = part.split_whitespace();
                let (Some(Ok(n)), Some(what)) =
                    (words.next().map(str::parse::<usize>), words.next())
                else {
                    continue;
                };
                match what {
                    "passed" => self.passed += n,
                    "failed" => self.failed += n,
                    "ignored" => self.ignored += n,
                    _ => {}
                }
            }
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED"))
        {
            self.failed_tests.push(name.into());
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.ignored > 0 {
            write!(f, ", {} ignored", self.ignored)?;
        }
        write!(f, " in {} programs", self.programs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_programs_add_up_and_failures_keep_their_names() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test one ... ok",
            "test a::two ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.12s",
            "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 3.00s",
        ] {
            tally.read(line);
        }
        let failed_tests = vec!["a::two".to_string()];
        assert_eq!(tally, Tally { passed: 41, failed: 1, ignored: 1, programs: 2, failed_tests });
    }
}
