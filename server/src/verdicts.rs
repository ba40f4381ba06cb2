//! Verdicts about the code of responses, off the request path.

#[cfg(target_os = "linux")]
use super::compile_check::{CompileChecker, CompileJob, Verdict, sampled};

/// Checks the code of responses.
pub trait ResponseChecker: Send + Sync {
    /// Whether the response of this request is checked: a function of its id that no client can foresee.
    fn samples(&self, request: &str) -> bool;

    /// Checks a response, some time. `done` gets whether its code is right, unless nothing can be said.
    fn check(&self, response: String, done: Box<dyn FnOnce(bool) + Send>);

    /// Counts a response that cannot be checked, since it was cut off or is too long.
    fn inconclusive(&self);

    /// Numbers of checks since the start, by their outcome: `pass`, `fail`, `no_code`, `inconclusive`, `dropped`.
    fn counts(&self) -> Vec<(&'static str, u64)>;
}

/// Compile checks of a fraction of the responses.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub struct CompileChecks {
    /// The checker.
    pub checker: CompileChecker,
    /// Fraction of the responses that are checked, from 0 to 1.
    pub fraction: f64,
    /// Secret of the sample. A client chooses the ids of its requests, and must not choose which are checked.
    pub salt: String,
}

#[cfg(target_os = "linux")]
impl ResponseChecker for CompileChecks {
    fn samples(&self, request: &str) -> bool {
        sampled(&[self.salt.as_bytes(), request.as_bytes()].concat(), self.fraction)
    }

    fn check(&self, response: String, done: Box<dyn FnOnce(bool) + Send>) {
        let done = |verdict: Verdict| match verdict {
            Verdict::Pass => done(true),
            Verdict::Fail { .. } => done(false),
            Verdict::NoCode | Verdict::Inconclusive { .. } => {}
        };
        // A job that finds no room is dropped, and counted by the checker.
        self.checker.submit(CompileJob { response, done: Box::new(done) });
    }

    fn inconclusive(&self) {
        self.checker.count_inconclusive();
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.checker.counts();
        vec![
            ("pass", counts.passed),
            ("fail", counts.failed),
            ("no_code", counts.no_code),
            ("inconclusive", counts.inconclusive),
            ("dropped", counts.dropped),
        ]
    }
}
