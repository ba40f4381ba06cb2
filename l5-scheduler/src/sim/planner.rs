//! A capacity planner: runs a workload through the real scheduler under a virtual clock.

use std::collections::BTreeMap;

use super::Durations;
use super::arrivals::{Arrivals, Measured, Output};
use super::clock::VirtualClock;
use super::drafting::{Drafting, SpeculationReport};
use super::fake::FakeModel;
use super::goodput::Goodput;
use super::job_log::JobLog;
use super::replayable::ReplayableSteps;
use super::report::{Counts, Report, Usage};
use super::transfers::Transfers;
use super::workload::WorkloadError;
use crate::composer::Composer;
use crate::core::KV_POLL_INTERVAL;
use crate::{
    Admitted, BySeat, Caps, ConfigError, CostModel, Executor, FinishReason, JobHistory,
    KvConnector, MalformedOutput, Note, Policy, PolicyKind, Request, Resolved, Retention,
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

/// State of a request while it is unfinished.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    arrival: Time,
    deadline: Option<Time>,
    prompt: usize,
    /// Begin of its first step, and tokens that were hit or had been loaded then.
    admitted: Option<Time>,
    cached: usize,
    loaded: usize,
    /// Tokens that steps have computed for it.
    computed: usize,
    first: Time,
    last: Time,
    tokens: usize,
    longest_gap: f64,
}

/// Runs a workload or the jobs of agents to their end.
///
/// # Example
///
/// ```
/// use l5_scheduler::sim::{ArrivalProcess, Planner, Workload};
/// use l5_scheduler::{CostModel, SchedulerConfig};
///
/// let config = SchedulerConfig { max_num_seqs: 8, ..SchedulerConfig::new(1024, 16) };
/// let spec = r#"{"requests": 100, "input": {"uniform": [20, 60]}, "output": {"constant": 16}}"#;
/// let arrivals = ArrivalProcess { rate: Some(10.0), ..ArrivalProcess::default() }; // requests a second
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
    model: FakeModel<Drafting<Output>>,
    /// Capabilities of the model, and the cost model of its steps.
    caps: Caps,
    acceptance_rate: f64,
    clock: VirtualClock,
    goodput: Goodput,
    /// Loads and stores of keys and values.
    transfers: Transfers,
    /// Whether no request can overtake another one in the waiting queue.
    in_order: bool,
    /// Progress of unfinished requests.
    progress: BySeat<Progress>,
    ttft: Durations,
    itl: Durations,
    e2e: Durations,
    counts: Counts,
    /// Rejected requests, by the code of the reason.
    rejections: BTreeMap<&'static str, u64>,
    /// Rows that have sampled.
    sampled_rows: u64,
    usage: Usage,
    replayable: Option<ReplayableSteps>,
    /// History of leases.
    history: Option<JobHistory>,
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
        let in_order =
            config.policy == PolicyKind::Fcfs && !config.long_prefill_token_threshold_adaptive;
        let (mut scheduler, model) = (Scheduler::new(config)?, FakeModel::default());
        let block_size = scheduler.config().block_size;
        let caps = Caps { cost: Some(cost), ..model.caps() };
        scheduler.set_caps(&caps);
        Ok(Self {
            scheduler,
            model,
            caps,
            acceptance_rate: 0.0,
            clock: VirtualClock::new(cost),
            goodput,
            transfers: Transfers::new(&cost, block_size),
            in_order,
            progress: BySeat::default(),
            ttft: Durations::default(),
            itl: Durations::default(),
            e2e: Durations::default(),
            counts: Counts::default(),
            rejections: BTreeMap::new(),
            sampled_rows: 0,
            usage: Usage::default(),
            replayable: None,
            history: None,
            began: None,
            ended: Time::ZERO,
        })
    }

    /// Lets each draft be right with this probability. A row has
    /// [`num_speculative_tokens`](SchedulerConfig::num_speculative_tokens) drafts at most.
    #[must_use]
    pub fn with_acceptance_rate(mut self, rate: f64) -> Self {
        self.acceptance_rate = rate;
        self
    }

    /// Also counts the steps that a device would replay which has captured decode steps of these widths.
    #[must_use]
    pub fn with_decode_widths(mut self, widths: &[usize]) -> Self {
        self.replayable = Some(ReplayableSteps::new(widths));
        self
    }

    /// Records the leases in this history.
    #[must_use]
    pub fn with_job_history(mut self, history: JobHistory) -> Self {
        self.history = Some(history);
        self
    }

    /// Replaces the policy by one that is not built in.
    #[must_use]
    pub fn with_policy(mut self, policy: Box<dyn Policy>) -> Self {
        self.scheduler = self.scheduler.with_policy(policy);
        self.in_order = false;
        self
    }

    /// Replaces the composer by one that is not built in.
    #[must_use]
    pub fn with_composer(mut self, composer: Box<dyn Composer>) -> Self {
        self.scheduler = self.scheduler.with_composer(composer);
        self.in_order = false;
        self
    }

    /// Replaces the retention, by one that keeps blocks between the turns of a job.
    #[must_use]
    pub fn with_retention(mut self, retention: Box<dyn Retention>) -> Self {
        self.scheduler = self.scheduler.with_retention(retention);
        self.in_order = false;
        self
    }

    /// Loads keys and values from a memory that is not the pool. A load takes the time that the cost model's bandwidth
    /// says; the request waits for it, and others run.
    ///
    /// A load brings all tokens that the connector has promised: a memory that loses some cannot be simulated. Nothing
    /// is stored either: without [`Planner::with_host_memory`], which has a connector of its own,
    /// [`Retain::Offload`](crate::Retain) is as [`Retain::Free`](crate::Retain), and the connector decides by itself
    /// what it has.
    #[must_use]
    pub fn with_kv_connector(mut self, connector: Box<dyn KvConnector>) -> Self {
        self.scheduler = self.scheduler.with_kv_connector(connector);
        // Requests overtake one that loads.
        self.in_order = false;
        self
    }

    /// Stores the blocks of finished requests in a host memory of so many bytes, and loads them from there when they
    /// have been evicted from the pool. Blocks for which the configured policy makes a lease are stored when the lease
    /// ends early. (A retention that is given by [`Planner::with_retention`] afterwards decides itself which blocks are
    /// stored.)
    #[must_use]
    pub fn with_host_memory(mut self, bytes: u64) -> Self {
        let memory = self.transfers.store_in_memory(bytes);
        self.caps.can_store = true;
        let SchedulerConfig { policy, continuum_ttl, .. } = self.scheduler.config();
        let retention = policy.retention_with_memory(*continuum_ttl);
        self.scheduler = self.scheduler.with_retention(retention);
        self.scheduler.set_caps(&self.caps);
        self.with_kv_connector(Box::new(memory))
    }

    /// Runs until all requests have ended and no further one arrives.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn run(mut self, mut arrivals: impl Arrivals) -> Result<Report, PlanError> {
        let (mut output, mut resolved) = (StepOutput::default(), Resolved::default());
        loop {
            self.transfers.deliver(&mut self.scheduler, self.clock.now());
            self.take_arrivals(&mut arrivals)?;
            if !self.scheduler.has_unfinished() {
                let Some(arrival) = arrivals.next_arrival()? else { break };
                // As an engine does, an idle planner wakes when a lease expires: only a plan ends leases.
                let expiry = self.scheduler.leases().next_deadline();
                let wake = expiry.map_or(arrival, |expiry| expiry.min(arrival));
                if wake > self.clock.now() {
                    self.clock.wait_until(wake);
                    continue;
                }
            }
            let before = self.clock.now();
            let step = self.scheduler.plan(before);
            // A policy may preempt requests without planning others, as `priority` does: such a step is empty, and the
            // next one is not.
            let idle = step.is_empty() && step.ended.is_empty() && step.preempted.is_empty();
            if let Some(replayable) = &mut self.replayable {
                replayable.note(step);
            }
            for row in &step.rows {
                let Some(request) = self.progress.seated(row.seat, row.id) else { continue };
                request.computed += row.fed();
                // Its first row may be that of a resumed request, if it was preempted in the plan that admitted it.
                if row.admitted != Admitted::Before && request.admitted.is_none() {
                    (request.admitted, request.cached) = (Some(before), row.cached);
                    request.loaded = row.computed - row.cached;
                }
            }
            if let Some(history) = &self.history {
                history.planned(&self.scheduler.view(), &self.scheduler);
            }
            let step = self.scheduler.view().step();
            // Copies go on beside the steps: one that has nothing else to do takes no time.
            let now = if step.rows.is_empty() { before } else { self.clock.run(step) };
            self.transfers.begin(self.scheduler.view().step());
            self.usage.add(self.scheduler.blocks().usage(), now - before);
            output.clear();
            self.model.execute(&self.scheduler.view(), &mut output)?;
            self.note_tools(&arrivals, &mut output);
            self.scheduler.resolve(&output, &mut resolved)?;
            self.scheduler.apply(&resolved, now);
            if let Some(history) = &self.history {
                history.applied(&self.scheduler);
            }
            self.note_tokens(&resolved, now);
            self.note_ends(now, &mut arrivals);
            if idle {
                let lookup =
                    self.scheduler.is_looking_up().then(|| now + KV_POLL_INTERVAL.as_secs_f64());
                let expiry = self.scheduler.leases().next_deadline();
                let next = [arrivals.next_arrival()?, self.transfers.next_done(), lookup, expiry];
                match next.into_iter().flatten().filter(|moment| *moment > now).min() {
                    Some(moment) => self.clock.wait_until(moment),
                    None => return Err(PlanError::Stalled(now.seconds())),
                }
            }
        }
        self.transfers.deliver(&mut self.scheduler, Time(f64::INFINITY));
        if let Some(history) = &self.history {
            history.applied(&self.scheduler);
        }
        let (agents, host_memory) = (arrivals.report(), self.transfers.report());
        let log = |jobs| JobLog::new(jobs, self.scheduler.lease_stats(), self.transfers.begun);
        let job_log = arrivals.job_records().map(log);
        Ok(Report { agents, host_memory, job_log, ..self.report() })
    }

    /// Adds the requests that have arrived. While no request can overtake another, those far back in the queue are not
    /// created yet: this changes no decision, and a million waiting requests take no memory.
    fn take_arrivals(&mut self, arrivals: &mut impl Arrivals) -> Result<(), WorkloadError> {
        let seats = self.scheduler.config().max_num_seqs;
        let enough = if self.in_order { 2 * seats + 2 } else { usize::MAX };
        while self.scheduler.num_waiting() < enough {
            let Some(request) = arrivals.next(self.clock.now())? else { break };
            self.take(request, arrivals);
        }
        Ok(())
    }

    fn take(&mut self, request: Request, arrivals: &mut impl Arrivals) {
        let (id, arrival, deadline) = (request.id, request.arrival, request.deadline);
        let (prompt, output) = (request.prompt.len(), arrivals.output(&request));
        self.began.get_or_insert(arrival);
        self.counts.requests += 1;
        if let Err(why) = self.scheduler.add_request(request) {
            self.counts.rejected += 1;
            *self.rejections.entry(why.code()).or_default() += 1;
            arrivals.ended_early(id, self.clock.now());
            return;
        }
        let drafts = self.scheduler.config().num_speculative_tokens;
        let acceptance_rate = self.acceptance_rate;
        self.model.begin(id, Drafting { output, drafts, acceptance_rate, id: id.0 });
        self.progress.insert(id, Progress { arrival, deadline, prompt, ..Progress::default() });
        self.counts.prompt_tokens += prompt as u64;
    }

    /// Passes on which tools the outputs call. A note is kept until its request ends, so it is given with the first
    /// output token.
    fn note_tools(&self, arrivals: &impl Arrivals, output: &mut StepOutput) {
        for (row, view) in self.scheduler.view().rows().enumerate() {
            let first = view.request.num_tokens() == view.request.prompt_len();
            if let Some(tool) = arrivals.tool(view.row.id).filter(|_| view.row.samples && first) {
                let command = arrivals.command(view.row.id).map(str::to_owned);
                output.note(row, Note { tool: Some(tool.to_owned()), command });
            }
        }
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
            // Tokens of one step arrive together.
            (1..row.tokens.len()).for_each(|_| self.itl.add(0.0));
            request.last = now;
            self.sampled_rows += 1;
            request.tokens += row.tokens.len();
            self.counts.output_tokens += row.tokens.len() as u64;
        }
    }

    fn note_ends(&mut self, now: Time, arrivals: &mut impl Arrivals) {
        for (id, reason) in self.scheduler.take_ended() {
            self.model.end(id, reason);
            self.ended = now;
            let Some(request) = self.progress.remove(id) else { continue };
            if !matches!(reason, FinishReason::Stop | FinishReason::Length) {
                self.counts.cut_short += 1;
                arrivals.ended_early(id, now);
                continue;
            }
            arrivals.measured(&Measured {
                id,
                arrival: request.arrival,
                admitted: request.admitted.unwrap_or(request.first),
                first_token: request.first,
                finish: now,
                prompt_tokens: request.prompt,
                cached_tokens: request.cached,
                loaded_tokens: request.loaded,
                computed_tokens: (request.computed + 1).saturating_sub(request.tokens),
                output_tokens: request.tokens,
            });
            arrivals.finished(id, now);
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
            (self.scheduler.policy_name(), self.scheduler.composer_name()),
            self.counts,
            self.usage,
            (cache.queries, cache.hits),
            self.ended - self.began.unwrap_or_default(),
            self.goodput,
            [&mut self.ttft, &mut self.itl, &mut self.e2e],
        );
        let speculates = self.scheduler.config().num_speculative_tokens > 0;
        let speculation = SpeculationReport {
            draft_tokens: stats.draft_tokens,
            accepted_tokens: stats.accepted_tokens,
            tokens_per_row: report.counts.output_tokens as f64 / self.sampled_rows.max(1) as f64,
        };
        let speculation = speculates.then_some(speculation);
        let (replay, rejections) = (self.replayable.map(Into::into), self.rejections);
        Report { replay, rejections, speculation, ..report }
    }
}
