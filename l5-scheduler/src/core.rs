//! The loop: plan, launch, collect, resolve, apply.

mod result;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::{
    Executor, FinishReason, KvCompletion, Phases, Rejection, Request, RequestId, RequestView,
    Resolved, Scheduler, StepHandle, StepOutput, StepView, Time,
};
pub use result::StepResult;

/// Interval at which the executor is asked for loads and stores that have ended, while no request can run.
pub(crate) const KV_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Runs a scheduler's steps on an executor, on the caller's thread.
///
/// ```
/// use l5_scheduler::engine::{EngineModel, EngineOptions};
/// use l5_scheduler::{ChoiceJob, OutputEnd, OutputSink, RequestId, TokenDelta};
///
/// /// Prints tokens as they come.
/// struct Print;
///
/// impl OutputSink for Print {
///     fn push(&mut self, delta: &TokenDelta<'_>) {
///         println!("{:?}", delta.tokens);
///     }
///
///     fn end(&mut self, end: &OutputEnd) {
///         println!("{}", end.finish);
///     }
/// }
///
/// let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-llama");
/// let model = EngineModel::open(tiny.as_ref(), Default::default())?;
/// let options = EngineOptions { max_model_len: Some(64), ..Default::default() };
/// let (mut core, _) = model.core(&options)?;
///
/// let stop = l5_scheduler::llm::StopRules { max_tokens: 4, ..Default::default() };
/// let params = l5_scheduler::llm::SamplingParams::greedy();
/// let job = ChoiceJob::new(vec![5, 17, 100], params, stop, Box::new(Print));
/// core.add_request(job.request(RequestId(1), core.now()), job)?;
/// let mut steps = 0;
/// while core.has_unfinished() {
///     core.step()?;
///     steps += 1;
/// }
/// assert!(steps <= 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EngineCore<E: Executor> {
    scheduler: Scheduler,
    executor: E,
    output: StepOutput,
    resolved: Resolved,
    result: StepResult,
    observer: Option<Box<dyn StepObserver>>,
    completed: Vec<KvCompletion>,
    /// Whether a step is launched before the step before it is collected.
    async_scheduling: bool,
    /// Launched steps, at most two: they are collected in their order.
    launched: VecDeque<Launched>,
    /// Requests of the last step, if that could not be run.
    broken: Vec<RequestId>,
    /// Ends that were reported to the executor, and in no result yet.
    untold: Vec<(RequestId, FinishReason)>,
    started: Instant,
}

/// A launched step, and how long its planning took.
struct Launched {
    handle: StepHandle,
    plan: Duration,
}

/// Receives every step, to count or to draw timelines.
pub trait StepObserver: Send {
    /// Called once, when the observer is set.
    fn attached(&mut self, scheduler: &Scheduler) {
        let _ = scheduler;
    }

    /// A request was added.
    fn arrived(&mut self, request: RequestView<'_>) {
        let _ = request;
    }

    /// A request was rejected on arrival.
    fn rejected(&mut self, id: RequestId, arrival: Time, why: &Rejection) {
        let _ = (id, arrival, why);
    }

    /// These requests have ended since the last step, and another request can have one of their ids now. The next
    /// result has them, too.
    fn ended(&mut self, ended: &[(RequestId, FinishReason)]) {
        let _ = ended;
    }

    /// A step is planned and about to run, or runs: one that was launched ahead is reported when the step before it has
    /// been applied, so that steps are reported one after the other.
    fn planned(&mut self, step: &StepView<'_>, scheduler: &Scheduler);

    /// The step has run, with this result.
    fn applied(&mut self, result: &StepResult, scheduler: &Scheduler);

    /// The planned step could not be run, or the engine has ended, and these requests ended with it. They are in no result.
    fn lost(&mut self, ended: &[(RequestId, FinishReason)]) {
        let _ = ended;
    }
}

impl<E: Executor> EngineCore<E> {
    /// Joins a scheduler and its executor. The clock starts now.
    pub fn new(mut scheduler: Scheduler, executor: E) -> Self {
        scheduler.set_caps(&executor.caps());
        Self {
            scheduler,
            executor,
            output: StepOutput::default(),
            resolved: Resolved::default(),
            result: StepResult::default(),
            observer: None,
            completed: Vec::new(),
            async_scheduling: false,
            launched: VecDeque::with_capacity(2),
            broken: Vec::new(),
            untold: Vec::new(),
            started: Instant::now(),
        }
    }

    /// Sets whether the next step is planned and launched while a step runs
    /// ([`Scheduler::plan_ahead`]), which vLLM calls async scheduling. Off by default. Returns whether it is on, which
    /// needs an executor with [`Caps::async_scheduling`](crate::Caps), a device that does not wait for its host, and a
    /// scheduler without drafts. Tokens are the same on and off.
    ///
    /// While requests are unfinished, a step then runs between two calls of [`EngineCore::step`].
    pub fn set_async_scheduling(&mut self, on: bool) -> bool {
        let drafts = self.scheduler.config().num_speculative_tokens > 0;
        self.async_scheduling = on && !drafts && self.executor.caps().async_scheduling;
        self.async_scheduling
    }

    /// Whether a step runs that has not been collected.
    pub fn is_running(&self) -> bool {
        !self.launched.is_empty()
    }

    /// Sets the observer of all steps from now on.
    pub fn set_observer(&mut self, observer: Option<Box<dyn StepObserver>>) {
        self.observer = observer;
        if let Some(observer) = &mut self.observer {
            observer.attached(&self.scheduler);
            if !self.launched.is_empty() {
                observer.planned(&self.scheduler.due(), &self.scheduler);
            }
        }
    }

    /// Adds a request to the scheduler, and its `job` to the executor.
    ///
    /// # Errors
    /// [`Rejection`], for one that could never be completed.
    pub fn add_request(&mut self, request: Request, job: E::Job) -> Result<(), Rejection> {
        // Its id may be that of a request that has just been aborted: report that end first.
        let before = self.untold.len();
        self.tell_executor();
        if let (Some(observer), [_, ..]) = (&mut self.observer, &self.untold[before..]) {
            observer.ended(&self.untold[before..]);
        }
        let (id, arrival) = (request.id, request.arrival);
        if let Err(why) = self.scheduler.add_request(request) {
            if let Some(observer) = &mut self.observer {
                observer.rejected(id, arrival, &why);
            }
            return Err(why);
        }
        if let (Some(observer), Some(request)) = (&mut self.observer, self.scheduler.request(id)) {
            observer.arrived(request);
        }
        self.executor.begin(id, job);
        Ok(())
    }

    /// Aborts a request. Returns whether it was unfinished; its end is in the next step's result.
    pub fn abort(&mut self, id: RequestId) -> bool {
        self.scheduler.abort(id)
    }

    /// Whether a request is unfinished, or an end is to be reported. It is false while the blocks of finished requests
    /// are being stored, and while there are leases: see [`EngineCore::time_to_deadline`].
    pub fn has_unfinished(&self) -> bool {
        self.scheduler.has_unfinished() || !self.untold.is_empty() || self.is_running()
    }

    /// Time for which a loop may wait when its step had nothing to do, on the clock of [`EngineCore::now`]: a
    /// millisecond while keys and values are being loaded, looked up or stored, since the executor and the connector
    /// have to be asked; else the time until the next lease expires. `None`: nothing changes until a request is added
    /// or aborted.
    ///
    /// A loop that does not wait turns without end while requests [wait for their keys and
    /// values](crate::Status::WaitingForKv), in steps without rows. And an engine without requests must run a step at
    /// that time, because only a step frees the blocks of leases that have expired or been stored
    /// ([`EngineCore::has_unfinished`] is false then).
    ///
    /// ```
    /// # fn run<E: l5_scheduler::Executor>(core: &mut l5_scheduler::EngineCore<E>) -> Result<(), E::Error> {
    /// while core.has_unfinished() {
    ///     let result = core.step()?;
    ///     let idle = result.scheduled == 0 && result.finished.is_empty();
    ///     if let Some(wait) = core.time_to_deadline().filter(|_| idle) {
    ///         std::thread::sleep(wait);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn time_to_deadline(&self) -> Option<Duration> {
        if self.scheduler.is_moving_blocks() {
            return Some(KV_POLL_INTERVAL);
        }
        let left = self.scheduler.leases().next_deadline()? - self.now();
        Some(Duration::try_from_secs_f64(left.max(0.0)).unwrap_or(Duration::MAX))
    }

    /// Reports to the executor which requests have ended. The next result has them too.
    fn tell_executor(&mut self) {
        let Self { scheduler, executor, untold, broken, .. } = self;
        for (id, end) in scheduler.take_ended() {
            executor.end(id, end);
            // Another request can have this id from now on, and it was in no failed step.
            broken.retain(|other| *other != id);
            untold.push((id, end));
        }
    }

    /// Sets the moment at which the clock begins. Before the first request: times that were given before are of the
    /// clock before.
    pub fn set_clock(&mut self, began: Instant) {
        self.started = began;
    }

    /// The clock that [`EngineCore::step`] goes by.
    pub fn now(&self) -> Time {
        Time(self.started.elapsed().as_secs_f64())
    }

    /// Runs a step. Without requests that can run the step is empty, and its result has the requests that were aborted.
    /// Such a step counts in [`SchedulerStats::steps`](crate::SchedulerStats), and returns at once: see
    /// [`EngineCore::time_to_deadline`].
    ///
    /// # Errors
    /// [`Executor::Error`]: the step was abandoned, as if it had not been planned, and its requests are still
    /// unfinished. The next step tries again. If the error would come again, end these requests with
    /// [`EngineCore::fail_step`].
    pub fn step(&mut self) -> Result<&StepResult, E::Error> {
        let started = self.started;
        let now = move || Time(started.elapsed().as_secs_f64());
        self.advance(now(), now)
    }

    /// Runs a step that is planned at a given time and has run at the same, for another clock.
    ///
    /// # Errors
    /// As [`EngineCore::step`].
    pub fn step_at(&mut self, now: Time) -> Result<&StepResult, E::Error> {
        self.advance(now, || now)
    }

    fn advance(
        &mut self,
        now: Time,
        ended: impl FnOnce() -> Time,
    ) -> Result<&StepResult, E::Error> {
        self.result.clear();
        self.output.clear();
        self.broken.clear();
        self.poll();
        let accepted = self.scheduler.stats().accepted_tokens;
        if let Err(e) = self.run(now, ended) {
            self.abandon();
            return Err(e);
        }
        let Self { scheduler, output, result, observer, untold, launched, .. } = self;
        result.replayed = output.replayed;
        result.accepted_tokens = (scheduler.stats().accepted_tokens - accepted) as usize;
        result.finished.splice(0..0, untold.drain(..));
        if let Some(observer) = observer {
            observer.applied(result, scheduler);
            if !launched.is_empty() {
                observer.planned(&scheduler.due(), scheduler);
            }
        }
        Ok(result)
    }

    /// Runs steps until leases are written back and the stores that are under way have ended, and waits until what they
    /// have stored is written, all for at most `timeout`. For an engine without requests that is about to end. Returns
    /// the number of chunks that are not written, and are lost when the executor is dropped; leases whose store has not
    /// ended are not among them.
    ///
    /// # Errors
    /// As [`EngineCore::step`].
    pub fn flush(&mut self, timeout: Duration) -> Result<usize, E::Error> {
        let began = Instant::now();
        while began.elapsed() < timeout {
            if self.scheduler.end_lease_for_shutdown() {
                // One by one, since a step copies a bounded number of bytes.
                self.step()?;
                continue;
            }
            match self.scheduler.is_moving_blocks() {
                true => _ = self.step()?,
                false if self.executor.num_unwritten() > 0 => self.poll(),
                false => return Ok(0),
            }
            std::thread::sleep(KV_POLL_INTERVAL);
        }
        Ok(self.executor.num_unwritten())
    }

    /// Takes back all open steps, the first of which has failed.
    fn abandon(&mut self) {
        let rows = self.scheduler.due().rows().filter(|row| !row.request.has_ended());
        self.broken.extend(rows.map(|row| row.row.id));
        for Launched { handle, .. } in self.launched.drain(..) {
            self.executor.discard(handle);
        }
        self.scheduler.abandon();
    }

    /// Takes what the executor has finished outside of steps.
    fn poll(&mut self) {
        let Self { scheduler, executor, completed, .. } = self;
        executor.poll(completed);
        for completion in completed.drain(..) {
            let known = scheduler.kv_completed(completion);
            debug_assert!(known, "{completion:?} of a load or store that is not under way");
        }
    }

    /// Runs a step: the one that was launched ahead, or else one that is planned now. Before its result is awaited, the
    /// next one is launched, if the executor takes steps ahead. `ended` is the time when the step has run. An error
    /// leaves the step open.
    fn run(&mut self, now: Time, ended: impl FnOnce() -> Time) -> Result<(), E::Error> {
        if self.launched.is_empty() {
            self.launch(now)?;
        }
        self.launch_ahead(now);
        self.collect(ended)
    }

    /// Plans a step and launches it. A step without rows is not launched.
    fn launch(&mut self, now: Time) -> Result<(), E::Error> {
        let mut watch = Watch::start();
        let Self { scheduler, executor, observer, launched, result, .. } = self;
        // exercise l5.step
        scheduler.plan(now);
        result.phases.plan = watch.lap();
        if let Some(observer) = observer {
            observer.planned(&scheduler.view(), scheduler);
        }
        if !scheduler.view().step().is_empty() {
            let handle = executor.launch(&scheduler.view())?;
            launched.push_back(Launched { handle, plan: result.phases.plan });
        }
        Ok(())
        // end of exercise
    }

    /// Plans the step behind the launched one, and launches it. An error is not reported: the step is planned again when
    /// the launched one is over, and if the error comes again, it counts.
    fn launch_ahead(&mut self, now: Time) {
        if !self.async_scheduling || self.launched.len() != 1 {
            return;
        }
        let mut watch = Watch::start();
        if self.scheduler.plan_ahead(now).is_none() {
            return;
        }
        let plan = watch.lap();
        match self.executor.launch(&self.scheduler.view()) {
            Ok(handle) => self.launched.push_back(Launched { handle, plan }),
            Err(why) => {
                tracing::warn!("a step was not launched ahead of the running one: {why}");
                self.scheduler.abandon_ahead();
            }
        }
    }

    /// Waits for the step that is due, resolves and applies it; then reports which requests have ended.
    fn collect(&mut self, ended: impl FnOnce() -> Time) -> Result<(), E::Error> {
        let Self { scheduler, executor, output, resolved, result, launched, .. } = self;
        result.planned(scheduler.due().step());
        // exercise l5.step
        resolved.clear();
        if let Some(Launched { handle, plan }) = launched.pop_front() {
            result.phases.plan = plan;
            executor.collect(handle, &scheduler.due(), output)?;
            scheduler.resolve(output, resolved)?;
        }
        let mut watch = Watch::start();
        let at = ended();
        scheduler.apply(resolved, at);
        result.sampled(resolved);
        for (id, reason) in scheduler.take_ended() {
            executor.end(id, reason);
            result.finished.push((id, reason));
        }
        result.at = at;
        result.phases = Phases { plan: result.phases.plan, apply: watch.lap(), ..output.phases };
        Ok(())
        // end of exercise
    }

    /// Ends the requests of the last step with [`FinishReason::Failed`], if that step failed. Waiting requests go on waiting.
    /// The result has the requests that ended.
    pub fn fail_step(&mut self, error: &E::Error) -> &StepResult {
        self.result.clear();
        let Self { scheduler, executor, broken, .. } = self;
        for id in broken.drain(..) {
            // Some have been aborted while the step ran.
            if scheduler.request(id).is_some() {
                executor.fail(id, error);
                scheduler.end(id, FinishReason::Failed);
            }
        }
        self.tell_executor();
        self.result.finished.append(&mut self.untold);
        if let Some(observer) = &mut self.observer {
            observer.lost(&self.result.finished);
        }
        &self.result
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The scheduler, to reset its cache or report keys and values that have arrived. No step may
    /// [run](EngineCore::is_running) when the cache is reset.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// The executor.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The executor, between two steps.
    pub fn executor_mut(&mut self) -> &mut E {
        &mut self.executor
    }
}

/// Measures phases, one after the other.
struct Watch(Instant);

impl Watch {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the last call.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}
