//! Interface between the planner and what makes requests.

use super::agent_report::AgentReport;
use super::fake::Script;
use super::job_log::JobRecord;
use super::workload::WorkloadError;
use crate::{Request, RequestId, Time};

/// Makes the requests of a simulation, one at a time.
///
/// In an **open loop** requests arrive whether or not earlier ones are served: a [`Workload`](super::Workload). In a
/// **closed loop** they follow from the ends of earlier ones, as the turns of an agent do:
/// [`AgentJobs`](super::AgentJobs). A slow machine then gets fewer requests a second, and not a longer queue.
pub trait Arrivals {
    /// Returns a request that has arrived by `now`: each once, in the order of arrival. Among those that arrive at the
    /// same time the order is defined, and does not depend on how often this is called.
    ///
    /// # Errors
    /// [`WorkloadError`].
    fn next(&mut self, now: Time) -> Result<Option<Request>, WorkloadError>;

    /// Time of the next arrival, if it is known. An unfinished request may bring about an earlier one.
    ///
    /// # Errors
    /// [`WorkloadError`].
    fn next_arrival(&mut self) -> Result<Option<Time>, WorkloadError>;

    /// Output that the model will sample for a request.
    fn output(&self, request: &Request) -> Output {
        Output::of(request.id)
    }

    /// Reports that a request has got its whole output at `now`.
    fn finished(&mut self, id: RequestId, now: Time);

    /// Reports that a request has ended at `now` without its whole output: it was rejected, or it outgrew the pool.
    fn ended_early(&mut self, id: RequestId, now: Time) {
        let _ = (id, now);
    }

    /// Reports how a finished request was served, before [`Arrivals::finished`].
    fn measured(&mut self, request: &Measured) {
        let _ = request;
    }

    /// Name of the tool that the output of an unfinished request calls, for a policy that keeps its blocks.
    fn tool(&self, id: RequestId) -> Option<&str> {
        let _ = id;
        None
    }

    /// Command that this tool runs, if it is known.
    fn command(&self, id: RequestId) -> Option<&str> {
        let _ = id;
        None
    }

    /// Report on the jobs of agents, when all requests have ended. `None` if these are none.
    fn report(&mut self) -> Option<AgentReport> {
        None
    }

    /// Records of all jobs and turns, when all requests have ended, if they were recorded.
    fn job_records(&mut self) -> Option<Vec<JobRecord>> {
        None
    }
}

/// How a finished request was served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Request id.
    pub id: RequestId,
    /// Time of arrival.
    pub arrival: Time,
    /// Time at which its first step began.
    pub admitted: Time,
    /// Time of the first output token.
    pub first_token: Time,
    /// Time of the last output token.
    pub finish: Time,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens that were in the prefix cache at its first step.
    pub cached_tokens: usize,
    /// Prompt tokens that had been loaded from elsewhere.
    pub loaded_tokens: usize,
    /// Tokens that steps computed for it, without the output tokens that were computed for the first time: those of the
    /// prompt, and all that were computed again after a preemption.
    pub computed_tokens: usize,
    /// Output tokens.
    pub output_tokens: usize,
}

/// Output of a simulated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Tokens that count up from this one.
    Counting(u32),
    /// These tokens.
    Tokens(Vec<u32>),
}

impl Output {
    /// Output that no other request has: it counts up from a number far from those of other ids, so that no output is
    /// hit in the cache by chance.
    pub fn of(id: RequestId) -> Self {
        Self::Counting((id.0 as u32).wrapping_mul(0x9e37_79b1))
    }
}

impl Script for Output {
    fn token(&self, n: usize) -> Option<u32> {
        match self {
            Self::Counting(first) => Some(first.wrapping_add(n as u32)),
            Self::Tokens(tokens) => tokens.get(n).copied(),
        }
    }
}
