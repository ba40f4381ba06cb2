//! Verdicts about responses: code of sampled responses is checked off the request path, and what is found counts for
//! the lane's service levels and its breaker.

use std::sync::Arc;

#[cfg(target_os = "linux")]
use super::compile_check::{CompileChecker, CompileJob, Verdict, sampled};
use super::lanes::Lanes;

/// Maximum size of a response that is kept for a check, in bytes. A larger one is not checked.
const MAX_BYTES: usize = 1 << 20;

/// Checks the code of responses.
pub trait ResponseChecker: Send + Sync {
    /// Whether the response of this request is checked: a function of its id.
    fn samples(&self, request: &str) -> bool;

    /// Checks a response, some time. `done` gets whether its code is right, unless nothing can be said.
    fn check(&self, response: String, done: Box<dyn FnOnce(bool) + Send>);
}

/// A response that will be checked when it is complete.
pub struct CheckedResponse {
    checker: Arc<dyn ResponseChecker>,
    lanes: Lanes,
    lane: usize,
    text: Option<String>,
}

impl CheckedResponse {
    /// The response of a request to a lane, if it is sampled.
    pub fn begin(lanes: &Lanes, lane: usize, request: &str) -> Option<Self> {
        let checker = lanes.checker()?.clone();
        checker.samples(request).then(|| Self {
            checker,
            lanes: lanes.clone(),
            lane,
            text: Some(String::new()),
        })
    }

    /// Adds text of the response.
    pub fn push(&mut self, text: &str) {
        self.text.take_if(|own| own.len() + text.len() > MAX_BYTES);
        if let Some(own) = &mut self.text {
            own.push_str(text);
        }
    }

    /// The response is complete.
    pub fn complete(self) {
        let Self { checker, lanes, lane, text } = self;
        let Some(text) = text else { return };
        let done = move |pass| {
            let metrics = lanes[lane].metrics();
            metrics.slo().compile_checked(pass);
            if let Some(ensemble) = lanes.router() {
                ensemble.observe(lane, pass);
            }
        };
        checker.check(text, Box::new(done));
    }
}

/// Compile checks of a fraction of the responses.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub struct CompileChecks {
    /// The checker.
    pub checker: CompileChecker,
    /// Fraction of the responses that are checked, from 0 to 1.
    pub fraction: f64,
}

#[cfg(target_os = "linux")]
impl ResponseChecker for CompileChecks {
    fn samples(&self, request: &str) -> bool {
        sampled(request.as_bytes(), self.fraction)
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
}
