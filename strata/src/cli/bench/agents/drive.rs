//! The run: jobs that arrive, their turns, and the pauses between them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::conversation::{Conversation, Counts, Form};
use super::jobs::{AgentJob, Turn};
use super::pins::{self, Gap, INTERVAL};
use crate::cli::bench::serve::client::Client;
use crate::cli::bench::serve::failure::Failure;
use crate::cli::interrupt::Interruptible;

/// Interval of the check for Ctrl-C.
const TICK: Duration = Duration::from_millis(200);

/// What all jobs share.
pub(super) struct Run {
    pub client: Client,
    pub form: Form,
    pub seed: u64,
    pub verify_pins: bool,
}

/// A turn that was answered. Times are seconds from the beginning of the run.
#[derive(Clone, Debug)]
pub(super) struct TurnRecord {
    pub tool: Option<String>,
    /// Tokens that the prompt was to have.
    pub planned_prompt_tokens: usize,
    pub sent: f64,
    pub end: f64,
    pub counts: Counts,
}

/// What became of a job.
#[derive(Clone, Debug)]
pub(super) struct JobRecord {
    pub job: String,
    pub arrival: f64,
    /// End of its last turn, or of its failure.
    pub end: f64,
    /// Turns that were answered.
    pub turns: Vec<TurnRecord>,
    /// Number of the turn that failed, and why.
    pub failure: Option<(usize, Failure)>,
    /// What was seen of leases behind each turn.
    pub gaps: Vec<Gap>,
}

/// Runs all jobs. Returns those that have ended, by their arrival.
///
/// # Errors
/// A task that panicked.
pub(super) async fn drive(run: Arc<Run>, jobs: Vec<AgentJob>) -> anyhow::Result<Vec<JobRecord>> {
    let mut running = JoinSet::new();
    for (number, job) in jobs.into_iter().enumerate() {
        let run = Arc::clone(&run);
        running.spawn(async move { run.job(number, &job).await });
    }
    let work = Interruptible::begin();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut records = Vec::new();
    while !work.stopped() {
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(ended) => records.push(ended.context("a job's task")?),
                None => break,
            },
            _ = tick.tick() => {}
        }
    }
    records.sort_by(|a: &JobRecord, b: &JobRecord| a.arrival.total_cmp(&b.arrival));
    Ok(records)
}

impl Run {
    async fn job(&self, number: usize, job: &AgentJob) -> JobRecord {
        let Self { client, form, .. } = self;
        sleep(Duration::from_secs_f64((job.arrival - client.now()).max(0.0))).await;
        let mut record = JobRecord {
            job: job.job.clone(),
            arrival: job.arrival,
            end: job.arrival,
            turns: Vec::new(),
            failure: None,
            gaps: Vec::new(),
        };
        let mut talk = Conversation::new(form, self.seed, number, job.prefix.as_ref());
        for (at, turn) in job.turns.iter().enumerate() {
            let last = at + 1 == job.turns.len();
            let body = talk.request(job, turn, last && !job.abandoned);
            let sent = client.now();
            let answered = client
                .post(body)
                .await
                .and_then(|response| talk.answered(turn, &response).map_err(Failure::NotJson));
            record.end = client.now();
            match answered {
                Ok(counts) => record.turns.push(TurnRecord {
                    tool: turn.tool.clone(),
                    planned_prompt_tokens: turn.prompt_tokens,
                    sent,
                    end: record.end,
                    counts,
                }),
                Err(failure) => {
                    record.failure = Some((at + 1, failure));
                    return record;
                }
            }
            let seconds = if last { 0.0 } else { turn.tool_seconds };
            if self.verify_pins {
                record.gaps.push(self.gap(at + 1, turn, seconds, record.end).await);
            }
            sleep(Duration::from_secs_f64((record.end + seconds - client.now()).max(0.0))).await;
        }
        record
    }

    /// Watches the leases while a tool runs. Behind the last turn there is one look, a little later: its end is counted
    /// after its response has been sent.
    async fn gap(&self, number: usize, turn: &Turn, seconds: f64, began: f64) -> Gap {
        let (tool, polls) = (turn.tool.clone(), Vec::new());
        let mut gap = Gap { turn: number, tool, seconds, polls, failed_polls: 0 };
        let after_last = (seconds == 0.0).then_some(INTERVAL);
        for at in pins::polls(seconds).chain(after_last) {
            sleep(Duration::from_secs_f64((began + at - self.client.now()).max(0.0))).await;
            match self.client.text("/metrics").await.ok().and_then(|text| pins::read(&text)) {
                Some(pins) => gap.polls.push(pins),
                None => gap.failed_polls += 1,
            }
        }
        gap
    }
}
