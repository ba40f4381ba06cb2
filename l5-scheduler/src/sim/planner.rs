//! A capacity planner: a workload through the real scheduler, under a clock that goes by a cost model.

use std::iter::Peekable;

use super::Durations;
use super::clock::VirtualClock;
use super::fake::{FakeModel, Script};
use super::goodput::Goodput;
use super::report::{Counts, Report, Usage};
use super::workload::{Workload, WorkloadError};
use crate::{
    ConfigError, CostModel, ExecuteError, Executor, FinishReason, PolicyKind, Resolved, Scheduler,
    SchedulerConfig, StepOutput, Time,
};

/// Why a plan could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The workload.
    #[error("the workload: {0}")]
    Workload(#[from] WorkloadError),
    /// The fake model or the scheduler has broken its word.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// Requests wait, nothing runs and nobody comes.
    #[error("at {0:.3} s requests wait and nothing can run: this is a defect of the scheduler")]
    Stalled(f64),
}

/// An answer that nobody else gives: it counts up from a number of its own.
#[derive(Clone, Copy, Debug)]
struct Counting(u32);

impl Script for Counting {
    fn token(&self, n: usize) -> Option<u32> {
        Some(self.0.wrapping_add(n as u32))
    }
}

/// What is remembered of a request while it is there.
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
pub struct Planner {
    scheduler: Scheduler,
    model: FakeModel<Counting>,
    clock: VirtualClock,
    goodput: Goodput,
    /// By place.
    progress: Vec<Progress>,
    ttft: Durations,
    itl: Durations,
    e2e: Durations,
    counts: Counts,
    usage: Usage,
    /// The first arrival and the last end.
    began: Option<Time>,
    ended: Time,
}

impl Planner {
    /// A planner for a scheduler of this kind and a machine that takes so long. `goodput` says what a request must keep to
    /// count as good.
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
            progress: Vec::new(),
            ttft: Durations::default(),
            itl: Durations::default(),
            e2e: Durations::default(),
            counts: Counts::default(),
            usage: Usage::default(),
            began: None,
            ended: Time::ZERO,
        })
    }

    /// Run a workload until everybody has ended.
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
            // Whoever gives way to nobody, as under `priority`, may leave a step empty: the next one is not.
            let idle = step.is_empty() && step.ended.is_empty() && step.preempted.is_empty();
            let now = self.clock.run(step);
            self.usage.add(self.scheduler.blocks().usage(), now - before);
            output.clear();
            self.model.execute(&self.scheduler.view(), &mut output)?;
            self.scheduler.resolve(&output, &mut resolved)?;
            self.scheduler.apply(&resolved);
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

    /// Whoever has come is added. While nobody can overtake, those far back in the queue are not made yet: that changes
    /// nothing, and a million who wait take no memory.
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
        let Ok(place) = self.scheduler.add_request(request) else {
            self.counts.rejected += 1;
            return;
        };
        // Far from what others say: an answer should be found in the cache by nobody.
        self.model.begin(place, id, Counting((id.0 as u32).wrapping_mul(0x9e37_79b1)));
        let at = place as usize;
        if self.progress.len() <= at {
            self.progress.resize(at + 1, Progress::default());
        }
        self.progress[at] = Progress { arrival, deadline, ..Progress::default() };
        self.counts.prompt_tokens += prompt as u64;
    }

    /// Tokens are there when their step is over.
    fn note_tokens(&mut self, resolved: &Resolved, now: Time) {
        for (place, _, tokens, _) in resolved.rows() {
            let request = &mut self.progress[place as usize];
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
            request.tokens += tokens.len();
            self.counts.output_tokens += tokens.len() as u64;
        }
    }

    fn note_ends(&mut self, now: Time) {
        for (place, id, reason) in self.scheduler.take_ended() {
            self.model.end(place, id, reason);
            self.ended = now;
            let request = &self.progress[place as usize];
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
        Report::new(
            self.scheduler.config(),
            self.counts,
            self.usage,
            (cache.queries, cache.hits),
            self.ended - self.began.unwrap_or_default(),
            self.goodput,
            [&mut self.ttft, &mut self.itl, &mut self.e2e],
        )
    }
}

/// When the next one comes.
fn next_arrival(coming: &mut Peekable<Workload<'_>>) -> Result<Option<Time>, WorkloadError> {
    match coming.peek() {
        Some(Ok(request)) => Ok(Some(request.arrival)),
        Some(Err(_)) => coming.next().transpose().map(|_| None),
        None => Ok(None),
    }
}
