//! A lane of the simulation: its scheduler, its fake model, and its door.

use std::collections::HashMap;
use std::time::Duration;

use l5_scheduler::engine::LoadMeter;
use l5_scheduler::sim::{FakeModel, Output};
use l5_scheduler::{
    ConfigError, Executor, FinishReason, Load, MalformedOutput, Request, RequestId, Resolved,
    Scheduler, StepLoad, StepOutput, Time,
};

use super::report::LaneReport;
use super::workload::SimLane;
use crate::admission::{LaneView, Margins};
use crate::escalation::{LaneSignal, Thresholds, refused_fraction};
use crate::quote::{Admitted, InFlight, LaneWork, Quote, Served, compare};
use crate::slo::{SloOptions, SloWindow};

/// State of an unfinished request.
#[derive(Clone, Copy, Debug)]
struct Progress {
    arrival: Time,
    deadline: Option<Time>,
    quote: Quote,
    first: Time,
    last: Time,
    tokens: usize,
}

pub(super) struct LaneState {
    pub(super) config: SimLane,
    pub(super) device: usize,
    scheduler: Scheduler,
    model: FakeModel<Output>,
    meter: LoadMeter,
    in_flight: InFlight,
    /// Requests that were admitted since the last step began.
    inbox: Vec<Request>,
    progress: HashMap<RequestId, Progress>,
    /// Time at which the lane asked for the device, while it waits for it or its step runs.
    asked: Option<Time>,
    /// Work of the running step, and its begin.
    work: StepLoad,
    began: Time,
    output: StepOutput,
    resolved: Resolved,
    pub(super) report: LaneReport,
    /// What escalation looks at; nothing is counted without it.
    slo: Option<SloWindow>,
    /// Requests since escalation last looked, and how many of them were refused.
    recent: [u64; 2],
}

/// A request that has ended with its whole output.
pub(super) struct Finished {
    pub(super) id: RequestId,
    pub(super) served: Served,
}

impl LaneState {
    pub(super) fn new(config: &SimLane, device: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            scheduler: Scheduler::new(config.scheduler())?,
            device,
            model: FakeModel::default(),
            meter: LoadMeter::default(),
            in_flight: InFlight::new(config.policy),
            inbox: Vec::new(),
            progress: HashMap::new(),
            asked: None,
            work: StepLoad::default(),
            began: Time::ZERO,
            output: StepOutput::default(),
            resolved: Resolved::default(),
            report: LaneReport::new(&config.name),
            slo: None,
            recent: [0; 2],
            config: config.clone(),
        })
    }

    fn load(&self) -> Load {
        Load {
            running: self.scheduler.num_running(),
            waiting: self.scheduler.num_waiting() + self.inbox.len(),
            preemptions: self.scheduler.stats().preemptions,
            ..self.meter.load()
        }
    }

    /// What the lane has to do, as the doors of its neighbours see it.
    pub(super) fn work(&self, now: Time) -> LaneWork {
        self.in_flight.work(self.scheduler.config(), &self.meter.load(), now)
    }

    /// The lane as its door sees it.
    pub(super) fn view<'a>(
        &'a self,
        neighbours: &'a [LaneWork],
        thresholds: &Thresholds,
    ) -> LaneView<'a> {
        LaneView {
            load: self.load(),
            config: self.scheduler.config(),
            in_flight: &self.in_flight,
            max_num_waiting: self.config.max_num_waiting,
            priority_floor: thresholds.floor_with(self.config.priority_floor),
            neighbours,
            margins: Margins::default(),
        }
    }

    /// Begins to count what escalation looks at.
    pub(super) fn watch(&mut self) {
        self.slo = Some(SloWindow::new(SloOptions::default()));
    }

    /// Counts a request at the door, which may have been refused for load.
    pub(super) fn count(&mut self, refused: bool) {
        self.recent[0] += 1;
        self.recent[1] += u64::from(refused);
    }

    /// Load of the lane, as escalation sees it. The requests are those since the last call.
    pub(super) fn signal(&mut self, now: Time) -> LaneSignal {
        let [asked, refused] = std::mem::take(&mut self.recent);
        let fraction = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        let report = self.slo.as_ref().map(|slo| slo.report(now, &self.config.slo));
        let (missed, verdicts) = report.map_or((0, 0), |report| report.missed());
        LaneSignal {
            queue_seconds: self.work(now).queue_seconds(),
            refused: refused_fraction(asked, refused),
            slo_missed: fraction(missed as f64, verdicts as f64),
        }
    }

    /// Number of requests in flight, for the choice between replicas.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes a request that was admitted. Returns whether the lane must ask for the device.
    pub(super) fn admit(&mut self, request: Request, admitted: Admitted, quote: Quote) -> bool {
        let Request { id, arrival, deadline, .. } = request;
        self.in_flight.admit(id, admitted, arrival);
        let progress =
            Progress { arrival, deadline, quote, first: arrival, last: arrival, tokens: 0 };
        self.progress.insert(id, progress);
        self.report.admitted += 1;
        self.report.deadlines += u64::from(deadline.is_some());
        self.inbox.push(request);
        self.asks(arrival)
    }

    /// Notes that the lane wants the device from `now` on. Returns whether it did not before.
    fn asks(&mut self, now: Time) -> bool {
        let new = self.asked.is_none();
        self.asked.get_or_insert(now);
        new
    }

    /// Plans a step, as an engine does before it waits for its turn: requests that arrive afterwards are not in it.
    /// Returns whether it has rows; `None` if there is nothing to do.
    pub(super) fn plan(&mut self, now: Time) -> Option<bool> {
        for request in self.inbox.drain(..) {
            let id = request.id;
            match self.scheduler.add_request(request) {
                Ok(()) => self.model.begin(id, Output::of(id)),
                // The door has checked that it can be completed.
                Err(_) => {
                    self.progress.remove(&id);
                    self.in_flight.end(id, false);
                    self.report.cut_short += 1;
                }
            }
        }
        if !self.scheduler.has_unfinished() {
            self.asked = None;
            return None;
        }
        let step = self.scheduler.plan(now);
        self.work = StepLoad::of(step);
        Some(!step.rows.is_empty())
    }

    /// Begins the planned step. Returns its duration.
    pub(super) fn begin(&mut self, now: Time) -> f64 {
        self.began = now;
        self.config.cost.seconds(&self.work)
    }

    /// Ends the step that runs. Returns whether the lane must ask for the device again. `finished` gets the requests
    /// that have ended.
    pub(super) fn end(
        &mut self,
        now: Time,
        finished: &mut Vec<Finished>,
    ) -> Result<bool, MalformedOutput> {
        self.output.clear();
        self.model.execute(&self.scheduler.view(), &mut self.output)?;
        self.scheduler.resolve(&self.output, &mut self.resolved)?;
        self.scheduler.apply(&self.resolved, now);
        self.asked = None;
        if self.work != StepLoad::default() {
            let took = now - self.began;
            self.meter.step(&self.work, Duration::from_secs_f64(took.max(0.0)));
        }
        for row in self.resolved.rows().filter(|row| !row.tokens.is_empty()) {
            let Some(request) = self.progress.get_mut(&row.id) else { continue };
            match request.tokens {
                0 => {
                    request.first = now;
                    let seconds = now - request.arrival;
                    self.report.ttft.add(seconds);
                    self.slo.iter_mut().for_each(|slo| slo.first_token(now, seconds, seconds));
                }
                _ => {
                    let seconds = now - request.last;
                    self.report.itl.add(seconds);
                    self.slo.iter_mut().for_each(|slo| slo.inter_token(now, seconds));
                }
            }
            request.last = now;
            request.tokens += row.tokens.len();
            self.in_flight.output(row.id, request.tokens, now);
        }
        self.in_flight.prefilled(&self.scheduler);
        for (id, reason) in self.scheduler.take_ended() {
            self.model.end(id, reason);
            let completed = matches!(reason, FinishReason::Stop | FinishReason::Length);
            self.in_flight.end(id, completed);
            let Some(request) = self.progress.remove(&id) else { continue };
            if !completed {
                self.report.cut_short += 1;
                continue;
            }
            let since = |time: Time| Duration::from_secs_f64((time - request.arrival).max(0.0));
            let served = Served {
                first_token: since(request.first),
                done: since(now),
                output_tokens: request.tokens,
            };
            self.report.finished += 1;
            self.report.e2e.add(now - request.arrival);
            self.report.deadlines_met +=
                u64::from(request.deadline.is_some_and(|deadline| now <= deadline));
            if request.quote.measured {
                self.report.quotes.add(compare(&request.quote, &served));
            }
            finished.push(Finished { id, served });
        }
        let more = self.scheduler.has_unfinished() || !self.inbox.is_empty();
        Ok(more && self.asks(now))
    }

    /// Completes the report.
    pub(super) fn report(mut self) -> LaneReport {
        let stats = self.scheduler.stats();
        (self.report.steps, self.report.preemptions) = (stats.steps, stats.preemptions);
        self.report
    }
}
