//! A capacity planner: runs a workload through the real scheduler under a virtual clock.

use std::iter::Peekable;

use super::Durations;
use super::clock::VirtualClock;
use super::fake::{FakeModel, Script};
use super::goodput::Goodput;
use super::replayable::ReplayableSteps;
use super::report::{Counts, Report, Usage};
use super::workload::{Workload, WorkloadError};
use crate::{
    BySeat, ConfigError, CostModel, Executor, FinishReason, MalformedOutput, PolicyKind, Resolved,
    Scheduler, SchedulerConfig, StepOutput, Time,
};

/// Why a plan failed.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The workload is invalid.
    #[error("invalid workload: {0}")]
    Workload(#[from] WorkloadError),
    /// The fake model or the scheduler broke its contract.
    #[error(transparent)]
    Execute(#[from] MalformedOutput),
    /// Requests wait, none runs and none will arrive.
    #[error("at {0:.3} s requests wait and none can run: this is a defect of the scheduler")]
    Stalled(f64),
}

/// Output that no other request has: it counts up from a number of its own.
#[derive(Clone, Copy, Debug)]
struct Counting(u32);

impl Script for Counting {
    fn token(&self, n: usize) -> Option<u32> {
        Some(self.0.wrapping_add(n as u32))
    }
}

/// State of a request while it is unfinished.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    arrival: Time,
    deadline: Option<Time>,
    first: Time,
    last: Time,
    tokens: usize,
    longest_gap: f64,
}

/// Runs a workload to its end.
///
/// # Example
///
/// ```
/// use l5_scheduler::sim::{Arrivals, Planner, Workload};
/// use l5_scheduler::{CostModel, SchedulerConfig};
///
/// let config = SchedulerConfig { max_num_seqs: 8, ..SchedulerConfig::new(1024, 16) };
/// let spec = r#"{"requests": 100, "input": {"uniform": [20, 60]}, "output": {"constant": 16}}"#;
/// let arrivals = Arrivals { rate: Some(10.0), ..Arrivals::default() }; // requests a second
/// let workload = Workload::read(Box::new(spec.as_bytes()), arrivals)?;
///
/// let planner = Planner::new(config, CostModel::SMOLLM2_TWO_CORES, "ttft:1s".parse()?)?;
/// let report = planner.run(workload)?;
/// assert_eq!(report.counts.finished, 100);
/// assert_eq!(report.counts.output_tokens, 1600);
/// assert!(report.ttft.is_some_and(|ttft| ttft.p50 < 1.0), "median time to first token, in seconds");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Planner {
    scheduler: Scheduler,
    model: FakeModel<Counting>,
    clock: VirtualClock,
    goodput: Goodput,
    /// Progress of unfinished requests.
    progress: BySeat<Progress>,
    ttft: Durations,
    itl: Durations,
    e2e: Durations,
    counts: Counts,
    usage: Usage,
    replayable: Option<ReplayableSteps>,
    /// Time of the first arrival and of the last end.
    began: Option<Time>,
    ended: Time,
}

impl Planner {
    /// Creates a planner for a scheduler configuration and a machine. `goodput` says what a request must meet to count
    /// as good.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(
        config: SchedulerConfig,
        cost: CostModel,
        goodput: Goodput,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            scheduler: Scheduler::new(config)?,
            model: FakeModel::default(),
            clock: VirtualClock::new(cost),
            goodput,
            progress: BySeat::default(),
            ttft: Durations::default(),
            itl: Durations::default(),
            e2e: Durations::default(),
            counts: Counts::default(),
            usage: Usage::default(),
            replayable: None,
            began: None,
            ended: Time::ZERO,
        })
    }

    /// Also counts the steps that a device would replay which has captured decode steps of these widths.
    #[must_use]
    pub fn with_decode_widths(mut self, widths: &[usize]) -> Self {
        self.replayable = Some(ReplayableSteps::new(widths));
        self
    }

    /// Runs a workload until all requests have ended.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn run(mut self, workload: Workload<'_>) -> Result<Report, PlanError> {
        let mut coming = workload.peekable();
        let (mut output, mut resolved) = (StepOutput::default(), Resolved::default());
        loop {
            self.take_arrivals(&mut coming)?;
            if !self.scheduler.has_unfinished() {
                match next_arrival(&mut coming)? {
                    Some(moment) => self.clock.wait_until(moment),
                    None => break,
                }
                continue;
            }
            let before = self.clock.now();
            let step = self.scheduler.plan(before);
            // A policy may preempt requests without planning others, as `priority` does: such a step is empty, and the
            // next one is not.
            let idle = step.is_empty() && step.ended.is_empty() && step.preempted.is_empty();
            if let Some(replayable) = &mut self.replayable {
                replayable.note(step);
            }
            let now = self.clock.run(step);
            self.usage.add(self.scheduler.blocks().usage(), now - before);
            output.clear();
            self.model.execute(&self.scheduler.view(), &mut output)?;
            self.scheduler.resolve(&output, &mut resolved)?;
            self.scheduler.apply(&resolved, now);
            self.note_tokens(&resolved, now);
            self.note_ends(now);
            if idle {
                match next_arrival(&mut coming)? {
                    Some(moment) if moment > now => self.clock.wait_until(moment),
                    _ => return Err(PlanError::Stalled(now.seconds())),
                }
            }
        }
        Ok(self.report())
    }

    /// Adds the requests that have arrived. While no request can overtake another, those far back in the queue are not
    /// created yet: this changes no decision, and a million waiting requests take no memory.
    fn take_arrivals(&mut self, coming: &mut Peekable<Workload<'_>>) -> Result<(), WorkloadError> {
        let config = self.scheduler.config();
        let in_order =
            config.policy == PolicyKind::Fcfs && !config.long_prefill_token_threshold_adaptive;
        let enough = if in_order { 2 * config.max_num_seqs + 2 } else { usize::MAX };
        let now = self.clock.now();
        while self.scheduler.num_waiting() < enough {
            if !matches!(coming.peek(), Some(Ok(request)) if request.arrival > now) {
                let Some(request) = coming.next().transpose()? else { break };
                self.take(request);
            } else {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, request: crate::Request) {
        let (id, arrival, deadline) = (request.id, request.arrival, request.deadline);
        let prompt = request.prompt.len();
        self.began.get_or_insert(arrival);
        self.counts.requests += 1;
        if self.scheduler.add_request(request).is_err() {
            self.counts.rejected += 1;
            return;
        }
        // Output tokens far from those of other requests, so that no output is hit in the cache.
        self.model.begin(id, Counting((id.0 as u32).wrapping_mul(0x9e37_79b1)));
        self.progress.insert(id, Progress { arrival, deadline, ..Progress::default() });
        self.counts.prompt_tokens += prompt as u64;
    }

    /// Records output tokens, which are available at the end of their step.
    fn note_tokens(&mut self, resolved: &Resolved, now: Time) {
        for row in resolved.rows() {
            let Some(request) = self.progress.seated(row.seat, row.id) else { continue };
            match request.tokens {
                0 => {
                    request.first = now;
                    self.ttft.add(now - request.arrival);
                }
                _ => {
                    let gap = now - request.last;
                    request.longest_gap = request.longest_gap.max(gap);
                    self.itl.add(gap);
                }
            }
            request.last = now;
            request.tokens += row.tokens.len();
            self.counts.output_tokens += row.tokens.len() as u64;
        }
    }

    fn note_ends(&mut self, now: Time) {
        for (id, reason) in self.scheduler.take_ended() {
            self.model.end(id, reason);
            self.ended = now;
            let Some(request) = self.progress.remove(id) else { continue };
            if !matches!(reason, FinishReason::Stop | FinishReason::Length) {
                self.counts.cut_short += 1;
                continue;
            }
            self.counts.finished += 1;
            self.e2e.add(now - request.arrival);
            if let Some(deadline) = request.deadline {
                self.counts.deadlines += 1;
                self.counts.deadlines_met += u64::from(now <= deadline);
            }
            let others = request.tokens.saturating_sub(1).max(1) as f64;
            let kept = self.goodput.keeps(
                request.first - request.arrival,
                request.longest_gap,
                (request.last - request.first) / others,
                now - request.arrival,
            );
            self.counts.good += u64::from(kept);
        }
    }

    fn report(mut self) -> Report {
        let stats = self.scheduler.stats();
        self.counts.steps = stats.steps;
        self.counts.preemptions = stats.preemptions;
        self.counts.scheduled_tokens = stats.scheduled_tokens;
        let cache = self.scheduler.blocks().stats();
        let report = Report::new(
            self.scheduler.config(),
            self.counts,
            self.usage,
            (cache.queries, cache.hits),
            self.ended - self.began.unwrap_or_default(),
            self.goodput,
            [&mut self.ttft, &mut self.itl, &mut self.e2e],
        );
        Report { replay: self.replayable.map(Into::into), ..report }
    }
}

/// Time of the next arrival.
fn next_arrival(coming: &mut Peekable<Workload<'_>>) -> Result<Option<Time>, WorkloadError> {
    match coming.peek() {
        Some(Ok(request)) => Ok(Some(request.arrival)),
        Some(Err(_)) => coming.next().transpose().map(|_| None),
        None => Ok(None),
    }
}
