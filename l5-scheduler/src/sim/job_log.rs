//! Record of each job and turn of a simulation.

use serde::Serialize;

use super::{Durations, Measured};
use crate::{LeaseStats, Time};

/// What happened to each job, and to the blocks between its turns. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobLog {
    /// Jobs, in the order of arrival.
    pub jobs: Vec<JobRecord>,
    /// Mean seconds from the arrival of a finished job to its end; `None` without a finished job.
    pub mean: Option<f64>,
    /// 90th percentile of them.
    pub p90: Option<f64>,
    /// 99th percentile of them.
    pub p99: Option<f64>,
    /// Leases that were made, that ended, and that ended because their blocks were needed.
    pub leases: LeaseStats,
    /// Number of requests whose blocks were loaded from another memory.
    pub loads: u64,
    /// Number of requests whose blocks were stored there.
    pub stores: u64,
}

impl JobLog {
    pub(super) fn new(
        jobs: Vec<JobRecord>,
        leases: LeaseStats,
        (loads, stores): (u64, u64),
    ) -> Self {
        let mut seconds = Durations::default();
        for job in &jobs {
            if let Some(finish) = job.finish {
                seconds.add(finish - job.arrival);
            }
        }
        let (p90, p99) = (seconds.percentile(90.0), seconds.percentile(99.0));
        Self { jobs, mean: seconds.mean(), p90, p99, leases, loads, stores }
    }
}

/// Record of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobRecord {
    /// Name of the job.
    pub job: String,
    /// Arrival of its first turn.
    pub arrival: f64,
    /// End of its last turn; `None` if it ended early.
    pub finish: Option<f64>,
    /// Turns that got their whole output.
    pub turns: Vec<TurnRecord>,
}

/// Record of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TurnRecord {
    /// Time of arrival.
    pub arrival: f64,
    /// Time of the first output token.
    pub first_token: f64,
    /// Time of the last output token.
    pub finish: f64,
    /// Prompt tokens that were in the prefix cache when the turn was admitted.
    pub hit_tokens: usize,
    /// Prompt tokens that had been loaded from another memory.
    pub loaded_tokens: usize,
    /// Tokens of the prompt that were computed, and all that were computed again after a preemption.
    pub computed_tokens: usize,
}

impl JobRecord {
    pub(super) fn new(job: &str, arrival: Time) -> Self {
        Self { job: job.to_owned(), arrival: arrival.seconds(), ..Self::default() }
    }
}

impl From<&Measured> for TurnRecord {
    fn from(turn: &Measured) -> Self {
        Self {
            arrival: turn.arrival.seconds(),
            first_token: turn.first_token.seconds(),
            finish: turn.finish.seconds(),
            hit_tokens: turn.cached_tokens,
            loaded_tokens: turn.loaded_tokens,
            computed_tokens: turn.computed_tokens,
        }
    }
}
