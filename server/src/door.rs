//! The door of a lane: whether a request is accepted, by what it can expect and by what others were promised.
//!
//! `l6-ensemble` decides ([`l6_ensemble::admission`]). Here are the clock, and the requests in flight of each replica, as
//! observers of the engines report them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use l5_scheduler::{
    EngineHandle, FinishReason, Load, PolicyKind, Rejection, RequestId, ResponseStream, Scheduler,
    SchedulerConfig, StepObserver, StepResult, StepView, Time,
};
use l6_ensemble::admission::{
    AdmissionRequest, ContextError, Decision, LaneView, Margins, Refusal, RefusalCode, decide,
};
use l6_ensemble::quote::{
    CalibrationReport, InFlight, LaneWork, Quote, QuoteCalibration, RequestSize, Served,
};
use l6_ensemble::shadow::SHADOW_PRIORITY;
use l6_ensemble::{Lane, ReplicaId};

use super::refusals::{self, RefusalFacts};

/// Window over which quotes are compared with what happened, in seconds.
const CALIBRATION_WINDOW: f64 = 15.0 * 60.0;

/// Time of a moment on the clock of all doors: they exchange times.
fn time(at: Instant) -> Time {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    Time(at.saturating_duration_since(*BEGAN.get_or_init(Instant::now)).as_secs_f64())
}

/// Present time on that clock.
fn now() -> Time {
    time(Instant::now())
}

/// The door of a lane. Clones share it.
#[derive(Clone, Debug)]
pub struct Door {
    replicas: Arc<[Replica]>,
    /// Maximum number of requests that wait.
    max_num_waiting: usize,
    /// What the ensemble says about the lane.
    rules: Arc<OnceLock<Box<dyn LaneRules>>>,
}

/// What an ensemble says about one of its lanes.
pub trait LaneRules: Send + Sync + std::fmt::Debug {
    /// Priority number above which requests are refused.
    fn priority_floor(&self) -> Option<i64>;

    /// What the other replicas on the machine of this one have to do: their steps take turns with its own.
    fn neighbours(&self, replica: ReplicaId) -> Vec<LaneWork>;
}

/// Requests in flight of one replica. Clones share them.
#[derive(Clone, Debug)]
struct Replica(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    in_flight: InFlight,
    promised: HashMap<RequestId, Promised>,
    calibration: QuoteCalibration,
}

/// What a request was promised, and what it has got so far.
#[derive(Clone, Copy, Debug)]
struct Promised {
    /// `None`: nothing was promised, as to a shadow.
    quote: Option<Quote>,
    at: Time,
    first: Option<Time>,
    output: usize,
}

/// A request that passed the door, for [`Door::submit`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Pass {
    request: AdmissionRequest,
    /// What is promised; `None`: nothing.
    quote: Option<Quote>,
}

impl Pass {
    /// The same request without a promise: another replica than the one that was asked serves it.
    pub fn unpromised(&self) -> Self {
        Self { quote: None, ..*self }
    }
}

/// A request that did not pass the door.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Why, and when to retry.
    pub refusal: Refusal,
    /// The same for the client.
    pub message: String,
    /// Limit of the queue that was reached, if it was one.
    pub limit: Option<&'static str>,
}

impl Door {
    /// The door of a lane whose replicas are these engines, and observes them.
    pub fn new<'a>(
        engines: impl IntoIterator<Item = &'a EngineHandle>,
        policy: PolicyKind,
        max_num_waiting: usize,
    ) -> Self {
        let replica = |engine: &EngineHandle| {
            let replica = Replica(Arc::new(Mutex::new(State {
                in_flight: InFlight::new(policy),
                promised: HashMap::new(),
                calibration: QuoteCalibration::new(CALIBRATION_WINDOW),
            })));
            // An engine that has ended has no requests.
            let _ = engine.observe(Box::new(DoorObserver(replica.clone())));
            replica
        };
        let replicas = engines.into_iter().map(replica).collect();
        Self { replicas, max_num_waiting, rules: Arc::default() }
    }

    /// Sets what the ensemble says about the lane: once, when all lanes are known.
    pub fn set_rules(&self, rules: Box<dyn LaneRules>) {
        let _ = self.rules.set(rules);
    }

    /// Decides about a request for a replica.
    ///
    /// # Errors
    /// [`ContextError`] if the replica can never complete it.
    pub fn decide(
        &self,
        replica: ReplicaId,
        (load, config): (Load, &SchedulerConfig),
        request: DoorRequest,
    ) -> Result<Result<Pass, Refused>, ContextError> {
        let rules = self.rules.get();
        // Before the lock of this replica: no door holds a lock while it waits for another one's.
        let neighbours = rules.map(|rules| rules.neighbours(replica)).unwrap_or_default();
        let Some(state) = self.replicas.get(replica.0 as usize).map(Replica::lock) else {
            // A replica without an observer, whose requests are not known: nothing is promised.
            return Ok(Ok(Pass::default()));
        };
        let admission = AdmissionRequest {
            size: request.size,
            priority: request.priority,
            deadline: request.deadline.map(time),
            now: now(),
            jitter: request.jitter,
        };
        let view = LaneView {
            load,
            config,
            in_flight: &state.in_flight,
            max_num_waiting: self.max_num_waiting,
            priority_floor: rules.and_then(|rules| rules.priority_floor()),
            neighbours: &neighbours,
            margins: Margins::default(),
        };
        let refusal = match decide(&admission, &view)? {
            Decision::Admit { quote } => {
                return Ok(Ok(Pass { request: admission, quote: Some(quote) }));
            }
            Decision::Refuse(refusal) => refusal,
        };
        let facts = RefusalFacts {
            left: admission
                .deadline
                .map(|at| Duration::try_from_secs_f64(at - admission.now).unwrap_or_default()),
            priority: request.priority,
            priority_floor: view.priority_floor,
            margins: view.margins,
            max_num_waiting: view.max_num_waiting,
            is_full: view.is_full(),
        };
        let full = refusal.code == RefusalCode::QueueFull && facts.is_full;
        Ok(Err(Refused {
            message: refusals::message(&refusal, &facts),
            limit: full.then_some("max_num_queued_reqs"),
            refusal,
        }))
    }

    /// The pass of a shadow, to which nothing is promised.
    pub fn pass_shadow(&self, size: RequestSize) -> Pass {
        let (priority, now) = (SHADOW_PRIORITY, now());
        let request = AdmissionRequest { size, priority, now, ..AdmissionRequest::default() };
        Pass { request, quote: None }
    }

    /// Submits the requests of a pass. The engines' observers wait meanwhile, so that no output and no end of a request
    /// is reported before the door knows of it.
    ///
    /// # Errors
    /// Those of `submit`.
    pub fn submit<E>(
        &self,
        pass: &Pass,
        submit: impl FnOnce() -> Result<(ReplicaId, Vec<ResponseStream>), E>,
    ) -> Result<(ReplicaId, Vec<ResponseStream>), E> {
        let mut states: Vec<_> = self.replicas.iter().map(Replica::lock).collect();
        let (replica, streams) = submit()?;
        // A choice of no tokens is complete, and no engine knows of it.
        if let Some(state) =
            states.get_mut(replica.0 as usize).filter(|_| pass.request.size.max_tokens > 0)
        {
            let at = now();
            for id in streams.iter().map(ResponseStream::id) {
                let quote = pass.quote.unwrap_or_default();
                state.in_flight.admit(id, pass.request.admitted(&quote), at);
                let promised = Promised { quote: pass.quote, at, first: None, output: 0 };
                state.promised.insert(id, promised);
            }
        }
        drop(states);
        Ok((replica, streams))
    }

    /// What the replicas of the lane, which are `replicas`, have to do on this machine: for the doors of the others.
    pub fn work<M>(&self, replicas: &Lane<M>) -> impl Iterator<Item = (ReplicaId, LaneWork)> {
        let states = self.replicas.iter().zip(replicas.replicas());
        let here = states.filter(|(_, (_, replica))| replica.shares_machine());
        here.map(|(state, (id, replica))| {
            let load = replica.load();
            (id, state.lock().in_flight.work(replica.config(), &load, now()))
        })
    }

    /// Number of requests in flight, as the door knows them.
    pub fn in_flight(&self) -> usize {
        self.replicas.iter().map(|replica| replica.lock().in_flight.len()).sum()
    }

    /// How good the quotes of the last minutes were, of each replica.
    pub fn calibration(&self) -> Vec<CalibrationReport> {
        let now = now();
        self.replicas.iter().map(|replica| replica.lock().calibration.report(now)).collect()
    }
}

/// A request at the door.
#[derive(Clone, Copy, Debug)]
pub struct DoorRequest {
    /// Its tokens.
    pub size: RequestSize,
    /// Priority: a lower number is more urgent.
    pub priority: i64,
    /// Moment by which it should be finished.
    pub deadline: Option<Instant>,
    /// Random number from 0 to 1.
    pub jitter: f64,
}

impl Replica {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn output(&mut self, id: RequestId, tokens: usize, now: Time) {
        let Some(promised) = self.promised.get_mut(&id) else { return };
        promised.first.get_or_insert(now);
        promised.output += tokens;
        self.in_flight.output(id, promised.output, now);
    }

    fn end(&mut self, id: RequestId, completed: bool, now: Time) {
        let promised = self.promised.remove(&id);
        // What is learned from ends is about clients' requests.
        let promise = promised.is_some_and(|promised| promised.quote.is_some());
        self.in_flight.end(id, completed && promise);
        let Some(Promised { quote: Some(quote), at, first: Some(first), output }) = promised else {
            return;
        };
        if completed {
            let after = |time: Time| Duration::try_from_secs_f64(time - at).unwrap_or_default();
            let served =
                Served { first_token: after(first), done: after(now), output_tokens: output };
            self.calibration.record(&quote, &served, now);
        }
    }
}

/// Reports what an engine does to the door.
struct DoorObserver(Replica);

impl DoorObserver {
    fn end(&self, ended: &[(RequestId, FinishReason)]) {
        let now = now();
        let mut state = self.0.lock();
        for (id, reason) in ended {
            let completed = matches!(reason, FinishReason::Stop | FinishReason::Length);
            state.end(*id, completed, now);
        }
    }
}

impl StepObserver for DoorObserver {
    fn rejected(&mut self, id: RequestId, _: Time, _: &Rejection) {
        self.0.lock().end(id, false, now());
    }

    fn planned(&mut self, _: &StepView<'_>, _: &Scheduler) {}

    fn applied(&mut self, result: &StepResult, scheduler: &Scheduler) {
        let now = now();
        let mut state = self.0.lock();
        for (id, tokens) in result.new_tokens() {
            state.output(id, tokens.len(), now);
        }
        state.in_flight.prefilled(scheduler);
        drop(state);
        self.end(&result.finished);
    }

    fn lost(&mut self, ended: &[(RequestId, FinishReason)]) {
        self.end(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            in_flight: InFlight::new(PolicyKind::StrictPriority),
            promised: HashMap::new(),
            calibration: QuoteCalibration::new(CALIBRATION_WINDOW),
        }
    }

    fn promised(quote: Quote) -> Promised {
        Promised { quote: Some(quote), at: Time(1.0), first: None, output: 0 }
    }

    #[test]
    fn a_promise_is_compared_when_its_request_completes_and_not_when_it_is_aborted() {
        let seconds = Duration::from_secs;
        let quote = Quote {
            first_token: seconds(1),
            done: seconds(3),
            per_token: seconds(1),
            measured: true,
            ..Quote::default()
        };
        let mut state = state();
        for (id, completed) in [(1, true), (2, false)] {
            let id = RequestId(id);
            state.in_flight.admit(id, Default::default(), Time(1.0));
            state.promised.insert(id, promised(quote));
            state.output(id, 1, Time(2.0));
            state.output(id, 2, Time(4.0));
            state.end(id, completed, Time(4.0));
        }
        let report = state.calibration.report(Time(5.0));
        assert_eq!((report.total, report.total_wrong), (1, [0, 0]), "3 tokens in 3 s, as promised");
        assert_eq!((state.in_flight.len(), state.promised.len()), (0, 0));
    }

    #[test]
    fn nothing_is_learned_from_a_shadow() {
        let mut state = state();
        let shadow = promised(Quote::default());
        state.in_flight.admit(RequestId(1), Default::default(), Time(1.0));
        state.promised.insert(RequestId(1), Promised { quote: None, ..shadow });
        state.output(RequestId(1), 3, Time(2.0));
        assert_eq!(state.in_flight.len(), 1, "it is known while it runs");
        let lengths = format!("{:?}", state.in_flight.lengths());
        state.end(RequestId(1), true, Time(3.0));
        assert_eq!(state.calibration.report(Time(4.0)).total, 0);
        assert_eq!(format!("{:?}", state.in_flight.lengths()), lengths);
        assert_eq!((state.in_flight.len(), state.promised.len()), (0, 0));
    }

    #[test]
    fn output_of_a_request_that_did_not_pass_the_door_is_ignored() {
        let mut state = state();
        state.output(RequestId(1), 3, Time(1.0));
        state.end(RequestId(1), true, Time(2.0));
        assert_eq!(state.calibration.report(Time(3.0)).total, 0);
    }
}
