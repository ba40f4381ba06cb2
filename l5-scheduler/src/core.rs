//! The loop: plan, execute, resolve, apply.

use std::time::{Duration, Instant};

use crate::{
    ExecuteError, Executor, FinishReason, Phases, Rejection, Request, RequestId, RequestView,
    Resolved, Scheduler, Step, StepOutput, StepView, Time,
};

/// A scheduler and what runs its steps.
pub struct EngineCore<E: Executor> {
    scheduler: Scheduler,
    executor: E,
    output: StepOutput,
    resolved: Resolved,
    result: StepResult,
    observer: Option<Box<dyn StepObserver>>,
    /// Who took part in the last step, if that could not be run.
    broken: Vec<(u32, RequestId)>,
    /// Ends that the executor knows of, and no result yet.
    untold: Vec<(RequestId, FinishReason)>,
    started: Instant,
}

/// Is told of every step: whoever draws timelines or counts.
pub trait StepObserver: Send {
    /// It is this scheduler's observer from now on.
    fn attached(&mut self, scheduler: &Scheduler) {
        let _ = scheduler;
    }

    /// A request was taken.
    fn arrived(&mut self, request: RequestView<'_>) {
        let _ = request;
    }

    /// A request was refused on arrival.
    fn rejected(&mut self, id: RequestId, arrival: Time, why: &Rejection) {
        let _ = (id, arrival, why);
    }

    /// A step is planned and about to run.
    fn planned(&mut self, step: &StepView<'_>, scheduler: &Scheduler);

    /// It is over, and this came of it.
    fn applied(&mut self, result: &StepResult, scheduler: &Scheduler);

    /// The planned step could not be run, or the engine has ended, and these requests ended with it: no result tells of
    /// them.
    fn lost(&mut self, ended: &[(RequestId, FinishReason)]) {
        let _ = ended;
    }
}

/// What came of a step. Memory is used again.
#[derive(Clone, Debug, Default)]
pub struct StepResult {
    /// The step's number.
    pub step: u64,
    /// Tokens that were computed.
    pub scheduled_tokens: usize,
    /// Requests that took part.
    pub scheduled: usize,
    tokens: Vec<u32>,
    /// Each request's tokens end here.
    new_tokens: Vec<(RequestId, usize)>,
    /// Who ended since the last step, and why.
    pub finished: Vec<(RequestId, FinishReason)>,
    /// Who was preempted.
    pub preempted: Vec<RequestId>,
    /// What its parts took.
    pub phases: Phases,
    /// The rows that a captured step was filled up to; `None` of one that was not replayed.
    pub replayed: Option<usize>,
}

impl StepResult {
    /// Who got new tokens, and which: usually one.
    pub fn new_tokens(&self) -> impl Iterator<Item = (RequestId, &[u32])> + '_ {
        self.new_tokens.iter().enumerate().map(|(i, (id, end))| {
            let start = i.checked_sub(1).map_or(0, |before| self.new_tokens[before].1);
            (*id, &self.tokens[start..*end])
        })
    }

    /// What a step is going to be.
    fn planned(&mut self, step: &Step) {
        (self.step, self.scheduled, self.scheduled_tokens) =
            (step.number, step.rows.len(), step.tokens);
        self.preempted.extend_from_slice(&step.preempted);
    }

    /// What came out of it.
    fn sampled(&mut self, resolved: &Resolved) {
        for (_, id, tokens, _) in resolved.rows().filter(|(_, _, tokens, _)| !tokens.is_empty()) {
            self.tokens.extend_from_slice(tokens);
            self.new_tokens.push((id, self.tokens.len()));
        }
    }

    fn clear(&mut self) {
        (self.scheduled, self.scheduled_tokens) = (0, 0);
        self.phases = Phases::default();
        self.replayed = None;
        self.tokens.clear();
        self.new_tokens.clear();
        self.finished.clear();
        self.preempted.clear();
    }
}

impl<E: Executor> EngineCore<E> {
    /// A scheduler and its executor. The clock begins now.
    pub fn new(scheduler: Scheduler, executor: E) -> Self {
        Self {
            scheduler,
            executor,
            output: StepOutput::default(),
            resolved: Resolved::default(),
            result: StepResult::default(),
            observer: None,
            broken: Vec::new(),
            untold: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Tell somebody of every step from now on.
    pub fn set_observer(&mut self, observer: Option<Box<dyn StepObserver>>) {
        self.observer = observer;
        if let Some(observer) = &mut self.observer {
            observer.attached(&self.scheduler);
        }
    }

    /// Take a request, and what the executor must know of it.
    ///
    /// # Errors
    /// [`Rejection`], for one that could never be completed.
    pub fn add_request(&mut self, request: Request, job: E::Job) -> Result<(), Rejection> {
        // Its place may be that of somebody who has just been aborted.
        self.tell_executor();
        let (id, arrival) = (request.id, request.arrival);
        let place = match self.scheduler.add_request(request) {
            Ok(place) => place,
            Err(why) => {
                if let Some(observer) = &mut self.observer {
                    observer.rejected(id, arrival, &why);
                }
                return Err(why);
            }
        };
        if let (Some(observer), Some(request)) = (&mut self.observer, self.scheduler.request(id)) {
            observer.arrived(request);
        }
        self.executor.begin(place, id, job);
        Ok(())
    }

    /// End a request that is not wanted any more. Returns whether there was one; the next step's result tells of its end.
    pub fn abort(&mut self, id: RequestId) -> bool {
        self.scheduler.abort(id)
    }

    /// Whether there is anything to do, or to tell.
    pub fn has_unfinished(&self) -> bool {
        self.scheduler.has_unfinished() || !self.untold.is_empty()
    }

    /// Tell the executor who has ended. The next result tells the others.
    fn tell_executor(&mut self) {
        let Self { scheduler, executor, untold, .. } = self;
        for (place, id, end) in scheduler.take_ended() {
            executor.end(place, id, end);
            untold.push((id, end));
        }
    }

    /// The clock that [`EngineCore::step`] goes by.
    pub fn now(&self) -> Time {
        Time(self.started.elapsed().as_secs_f64())
    }

    /// Run a step. With nothing to run it is an empty one, which tells of who was aborted.
    ///
    /// # Errors
    /// [`ExecuteError`]: the step was taken back, as if it had not been planned, and who took part still wants to. The next
    /// step tries again. What will go wrong again goes wrong for ever, so whoever does not know better ends them:
    /// [`EngineCore::fail_step`].
    pub fn step(&mut self) -> Result<&StepResult, ExecuteError> {
        self.step_at(self.now())
    }

    /// Run a step under another clock.
    ///
    /// # Errors
    /// As [`EngineCore::step`].
    pub fn step_at(&mut self, now: Time) -> Result<&StepResult, ExecuteError> {
        self.result.clear();
        self.output.clear();
        self.broken.clear();
        if let Err(e) = self.run(now) {
            let rows = &self.scheduler.view().step().rows;
            self.broken.extend(rows.iter().map(|row| (row.place, row.id)));
            self.scheduler.abandon();
            return Err(e);
        }
        let Self { scheduler, output, result, observer, untold, .. } = self;
        result.replayed = output.replayed;
        result.finished.splice(0..0, untold.drain(..));
        if let Some(observer) = observer {
            observer.applied(result, scheduler);
        }
        Ok(result)
    }

    /// Plan, execute, resolve, apply; then tell who has ended. A step without rows is not executed. What goes wrong leaves
    /// the step open.
    fn run(&mut self, now: Time) -> Result<(), ExecuteError> {
        let mut watch = Watch::start();
        let Self { scheduler, executor, output, resolved, result, observer, .. } = self;
        // exercise l5.step
        result.planned(scheduler.plan(now));
        result.phases.plan = watch.lap();
        if let Some(observer) = observer {
            observer.planned(&scheduler.view(), scheduler);
        }
        resolved.clear();
        if !scheduler.view().step().is_empty() {
            executor.execute(&scheduler.view(), output)?;
            scheduler.resolve(output, resolved)?;
        }
        watch.lap();
        scheduler.apply(resolved);
        result.sampled(resolved);
        for (place, id, reason) in scheduler.take_ended() {
            executor.end(place, id, reason);
            result.finished.push((id, reason));
        }
        result.phases = Phases { plan: result.phases.plan, apply: watch.lap(), ..output.phases };
        Ok(())
        // end of exercise
    }

    /// The last step went wrong, and would again: end everybody who took part in it with [`FinishReason::Failed`]. Who waits
    /// goes on waiting, and the next step is without them. Without such a step, nobody ends. The result tells of the ends.
    pub fn fail_step(&mut self, error: &ExecuteError) -> &StepResult {
        self.result.clear();
        let Self { scheduler, executor, broken, .. } = self;
        for (place, id) in broken.drain(..) {
            executor.fail(place, id, error);
            scheduler.end(id, FinishReason::Failed);
        }
        self.tell_executor();
        self.result.finished.append(&mut self.untold);
        if let Some(observer) = &mut self.observer {
            observer.lost(&self.result.finished);
        }
        &self.result
    }

    /// Who decides.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Who decides, to reset its cache or tell it of keys and values.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Who runs the steps.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// Who runs the steps, between two of them.
    pub fn executor_mut(&mut self) -> &mut E {
        &mut self.executor
    }
}

/// Measures one thing after the other.
struct Watch(Instant);

impl Watch {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// Since it was asked last.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}
