//! Failover of the engine requests of one HTTP request to other replicas of their lane.

use std::time::Instant;

use l5_scheduler::{EngineRequest, OutputChunk, ResponseStream};
use l6_ensemble::ReplicaId;
use l6_ensemble::failover::Failover;

use super::backpressure::Admission;
use super::door::Pass;

/// The engine requests of one HTTP request as they were submitted to a replica that relays, until each has output.
pub struct FailoverPlan {
    admission: Admission,
    pass: Pass,
    submitted: Instant,
    failed: ReplicaId,
    /// One for each prompt.
    requests: Vec<EngineRequest>,
    samples: u32,
    /// One for each prompt and sample.
    states: Vec<Failover>,
}

impl FailoverPlan {
    /// Plan for `requests`, `samples` of each, which `replica` has accepted.
    pub fn new(
        admission: Admission,
        pass: &Pass,
        replica: ReplicaId,
        requests: Vec<EngineRequest>,
        samples: u32,
    ) -> Self {
        let states = vec![Failover::default(); requests.len() * samples as usize];
        let (pass, submitted) = (pass.unpromised(), Instant::now());
        Self { admission, pass, submitted, failed: replica, requests, samples, states }
    }

    /// Takes output of engine request `at` into account. If it is a failure after which the request may move, and a
    /// replica accepts it, returns that replica and the stream that takes the place of the first one.
    pub fn next(&mut self, at: usize, chunk: &OutputChunk) -> Option<(ReplicaId, ResponseStream)> {
        let state = self.states.get_mut(at)?;
        if !chunk.tokens.is_empty() || !chunk.text.is_empty() {
            state.output();
        }
        let may = state.may_move(chunk.end.as_ref()?.relay_failure?)?;
        let samples = self.samples.max(1) as usize;
        let request = self.requests.get(at / samples)?.clone();
        let request = EngineRequest {
            sample: request.sample + (at % samples) as u32,
            deadline: request.deadline.map(|left| left.saturating_sub(self.submitted.elapsed())),
            ..request
        };
        self.admission.fail_over(self.failed, may, &self.pass, request)
    }
}
