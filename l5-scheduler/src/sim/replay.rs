//! Replay of a scenario through the real scheduler and the real block manager.

use std::collections::HashMap;

use super::fake::{FakeModel, Script};
use super::scenario::{Event, EventOp, Scenario, ScenarioRequest, Tables};
use super::trace::{Rejected, Summary, Trace, TraceEvent, TraceStep};
use crate::{
    Admitted, ConfigError, Executor, FinishReason, MalformedOutput, RequestId, RequestView,
    Resolved, Scheduler, StepOutput, Time,
};

/// Maximum number of steps of a scenario, since empty steps are recorded, too.
pub const MAX_STEPS: u64 = 200_000;

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The configuration is invalid.
    #[error("config: {0}")]
    Config(#[from] ConfigError),
    /// A request has used all of its output tokens and has not ended.
    #[error(
        "step {step}: request `{id}` has no output_token_ids left: give it as many as its max_tokens, or a stop token \
         among them"
    )]
    OutOfTokens {
        /// Number of the step.
        step: u64,
        /// Name of the request.
        id: String,
    },
    /// The scenario does not end.
    #[error(
        "the scenario has more than {0} steps: move its arrivals closer together, or set max_steps"
    )]
    TooLong(u64),
    /// The fake model or the scheduler broke its contract.
    #[error(transparent)]
    Execute(#[from] MalformedOutput),
}

/// Replays a scenario until all requests have arrived and ended.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(scenario: &Scenario) -> Result<Trace<'_>, ReplayError> {
    let mut replay = Replay::new(scenario)?;
    let mut steps = Vec::new();
    // A request that arrives after the last step would be waited for in vain: fail at once.
    let last = scenario.requests.iter().map(|request| request.arrival_step).max();
    if last.unwrap_or_default().min(scenario.max_steps.unwrap_or(u64::MAX)) >= MAX_STEPS {
        return Err(ReplayError::TooLong(MAX_STEPS));
    }
    while replay.goes_on(steps.len() as u64)? {
        steps.push(replay.step(steps.len() as u64)?);
    }
    let summary = Summary { steps: steps.len(), ..replay.summary };
    let (name, block_tables) = (scenario.name.as_str(), scenario.config.block_tables);
    Ok(Trace { name, block_tables, stalled: false, summary, steps })
}

/// Output and drafts of a request.
#[derive(Debug)]
struct Scripted<'a>(&'a ScenarioRequest);

impl Script for Scripted<'_> {
    fn token(&self, n: usize) -> Option<u32> {
        self.0.output_token_ids.get(n).copied()
    }

    fn drafts(&self, n: usize, out: &mut Vec<u32>) {
        let drafts = n.checked_sub(1).and_then(|n| self.0.draft_token_ids.get(n));
        out.extend(drafts.into_iter().flatten());
    }
}

struct Replay<'a> {
    scenario: &'a Scenario,
    scheduler: Scheduler,
    model: FakeModel<Scripted<'a>>,
    /// Request names, sorted: a request's id is its index here, so that ids compare as names do.
    names: Vec<&'a str>,
    /// Indices of events and of requests, by the step before which they happen.
    events: HashMap<u64, Vec<usize>>,
    arrivals: HashMap<u64, Vec<usize>>,
    output: StepOutput,
    resolved: Resolved,
    summary: Summary,
}

impl<'a> Replay<'a> {
    fn new(scenario: &'a Scenario) -> Result<Self, ReplayError> {
        let mut names: Vec<_> = scenario.requests.iter().map(|r| r.id.as_str()).collect();
        names.sort_unstable();
        Ok(Self {
            scenario,
            scheduler: Scheduler::new(scenario.config.scheduler())?,
            model: FakeModel::default(),
            names,
            events: by_step(scenario.events.iter().map(|event| event.step)),
            arrivals: by_step(scenario.requests.iter().map(|request| request.arrival_step)),
            output: StepOutput::default(),
            resolved: Resolved::default(),
            summary: Summary::default(),
        })
    }

    /// Whether there is another step.
    fn goes_on(&self, step: u64) -> Result<bool, ReplayError> {
        let idle = self.arrivals.is_empty() && !self.scheduler.has_unfinished();
        if idle || self.scenario.max_steps.is_some_and(|most| step >= most) {
            return Ok(false);
        }
        if step >= MAX_STEPS { Err(ReplayError::TooLong(MAX_STEPS)) } else { Ok(true) }
    }

    /// Runs a step: events, arrivals, plan, snapshot, model, resolve and apply, snapshot.
    fn step(&mut self, number: u64) -> Result<TraceStep<'a>, ReplayError> {
        let mut step = TraceStep { step: number, ..TraceStep::default() };
        for event in self.events.remove(&number).unwrap_or_default() {
            self.happen(&self.scenario.events[event], &mut step);
        }
        for request in self.arrivals.remove(&number).unwrap_or_default() {
            self.arrive(request, &mut step);
        }
        let now = Time(number as f64);
        self.scheduler.plan(now);
        self.picture(&mut step);
        if let Some(id) = self.model.out_of_script(&self.scheduler.view()) {
            let id = self.name(id).to_owned();
            return Err(ReplayError::OutOfTokens { step: number, id });
        }
        self.output.clear();
        self.model.execute(&self.scheduler.view(), &mut self.output)?;
        self.scheduler.resolve(&self.output, &mut self.resolved)?;
        self.scheduler.apply(&self.resolved, now);
        self.picture_end(&mut step);
        Ok(step)
    }

    fn happen(&mut self, event: &'a Event, step: &mut TraceStep<'a>) {
        match &event.op {
            EventOp::Abort { ids } => {
                for id in ids {
                    let ok = self.id(id).is_some_and(|id| self.scheduler.abort(id));
                    step.events.push(TraceEvent::Abort { id, ok });
                }
            }
            EventOp::ResetPrefixCache { reset_running_requests } => {
                let reset = self.scheduler.reset_prefix_cache(*reset_running_requests);
                let ok = reset.is_some();
                let preempted = self.names(reset.unwrap_or_default());
                self.summary.preemptions += preempted.len();
                step.events.push(TraceEvent::ResetPrefixCache { ok, preempted });
            }
        }
    }

    fn arrive(&mut self, index: usize, step: &mut TraceStep<'a>) {
        let request = &self.scenario.requests[index];
        let Some(id) = self.id(&request.id) else { return };
        match self.scheduler.add_request(request.request(index, id)) {
            Ok(()) => self.model.begin(id, Scripted(request)),
            Err(why) => step.rejected.push(Rejected { id: &request.id, reason: why.code() }),
        }
    }

    /// Records what is visible after planning.
    fn picture(&mut self, step: &mut TraceStep<'a>) {
        let scheduler = &self.scheduler;
        let changed_only = self.scenario.config.block_tables == Tables::Changed;
        for row in scheduler.view().rows() {
            let (plan, id) = (row.row, self.name(row.row.id));
            step.scheduled.push((id, plan.len));
            if plan.drafts > 0 {
                step.scheduled_drafts.push(id, plan.drafts);
            }
            step.num_computed_tokens.push(id, plan.computed);
            self.summary.scheduled_tokens += plan.len;
            if plan.admitted != Admitted::Before {
                step.cached_tokens.push(id, plan.cached);
                self.summary.cached_tokens += plan.cached;
            }
            if plan.admitted == Admitted::Resumed {
                step.resumed.push(id);
            }
            let blocks = row.table.blocks();
            if blocks.len() > plan.blocks_before {
                step.new_block_ids.push(id, blocks[plan.blocks_before..].to_vec());
                if changed_only {
                    step.block_table.push(id, blocks.to_vec());
                }
            }
        }
        let name = |request: RequestView<'_>| self.name(request.id());
        step.running = scheduler.running().map(name).collect();
        step.waiting = scheduler.waiting().map(name).collect();
        if !changed_only {
            for request in scheduler.running() {
                let table = scheduler.view().table_of(request.id());
                let blocks = table.map_or(&[][..], |table| table.blocks());
                step.block_table.push(self.name(request.id()), blocks.to_vec());
            }
        }
        step.preempted = self.names(scheduler.view().step().preempted.iter().copied());
        step.num_free_blocks = scheduler.blocks().num_free();
        self.summary.preemptions += step.preempted.len();
        self.summary.resumes += step.resumed.len();
    }

    /// Records what is visible at the end of the step.
    fn picture_end(&mut self, step: &mut TraceStep<'a>) {
        let sampled = self.resolved.rows().filter(|row| !row.tokens.is_empty());
        step.sampled = self.names(sampled.map(|row| row.id));
        for (id, reason) in self.scheduler.take_ended() {
            self.model.end(id, reason);
            if reason != FinishReason::Aborted {
                let name = self.names[id.0 as usize];
                step.finished.push(name);
                step.finish_reason.push(name, reason.as_str());
            }
        }
        self.summary.sampled += self.resolved.rows().map(|row| row.tokens.len()).sum::<usize>();
        self.summary.finished += step.finished.len();
        let blocks = self.scheduler.blocks();
        step.num_free_blocks_end = blocks.num_free();
        if self.scenario.config.record_free_queue {
            step.free_queue_end = Some(blocks.pool().free_list().iter().collect());
            let all = 1..blocks.config().num_blocks as u32;
            step.hashed_blocks_end =
                Some(all.filter(|block| blocks.cache().is_cached(*block)).collect());
        }
    }

    fn id(&self, name: &str) -> Option<RequestId> {
        self.names.binary_search(&name).ok().map(|rank| RequestId(rank as u64))
    }

    fn name(&self, id: RequestId) -> &'a str {
        self.names[id.0 as usize]
    }

    fn names(&self, ids: impl IntoIterator<Item = RequestId>) -> Vec<&'a str> {
        ids.into_iter().map(|id| self.name(id)).collect()
    }
}

/// Indices of objects by their step, in their order.
fn by_step(steps: impl Iterator<Item = u64>) -> HashMap<u64, Vec<usize>> {
    let mut by_step: HashMap<u64, Vec<usize>> = HashMap::new();
    for (i, step) in steps.enumerate() {
        by_step.entry(step).or_default().push(i);
    }
    by_step
}
