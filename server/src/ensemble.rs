//! The state of an ensemble beside its lanes: router, breakers, escalation.
//!
//! The decisions are those of `l6-ensemble`, which knows no clock: this file gives them the time, and shares their state
//! between tasks. No lock is held while anything else is waited for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use l5_scheduler::{Load, Time};
use l6_ensemble::EnsembleConfig;
use l6_ensemble::control::{LaneControl, LanePatch, LaneStatus, PatchError};
use l6_ensemble::escalation::{Escalation, EscalationStatus, LaneSignal, NoSuchLevel, Thresholds};
use l6_ensemble::router::{Classifier, LoadError, Route, RouteInput, Router, RouterError};

use super::lanes::{Lanes, ServedLane};
use super::metrics::RouteCounters;

/// Interval at which loads are compared with the levels of escalation.
pub const ESCALATION_INTERVAL: Duration = Duration::from_secs(1);

/// Why an ensemble cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum EnsembleError {
    /// The classifier cannot be read.
    #[error(transparent)]
    Classifier(#[from] LoadError),
    /// The router's configuration is invalid.
    #[error(transparent)]
    Router(#[from] RouterError),
}

/// Router, breakers and escalation of an ensemble. Lanes are numbered as in its file.
#[derive(Debug)]
pub struct Ensemble {
    config: EnsembleConfig,
    router: Router,
    controls: Vec<Mutex<LaneControl>>,
    escalation: Mutex<Escalation>,
    counters: RouteCounters,
    /// Start of the clock of breakers and escalation.
    began: Instant,
}

impl Ensemble {
    /// The ensemble of a file. Reads its classifier.
    ///
    /// # Errors
    /// [`EnsembleError`].
    pub fn new(config: EnsembleConfig, counters: RouteCounters) -> Result<Self, EnsembleError> {
        let classifier = config.router.classifier.load()?;
        let classifier = classifier.map(|own| Box::new(own) as Box<dyn Classifier>);
        let names = config.specialists.iter().map(|own| own.name.clone()).collect();
        Ok(Self {
            router: Router::new(config.router.clone(), classifier, names)?,
            controls: config
                .specialists
                .iter()
                .map(|_| Mutex::new(LaneControl::new(config.breaker)))
                .collect(),
            escalation: Mutex::new(Escalation::new(config.escalation.clone())),
            counters,
            began: Instant::now(),
            config,
        })
    }

    /// The file.
    pub fn config(&self) -> &EnsembleConfig {
        &self.config
    }

    /// Counters of routes.
    pub fn counters(&self) -> &RouteCounters {
        &self.counters
    }

    /// Time on the clock of breakers and escalation.
    pub fn now(&self) -> Time {
        Time(self.began.elapsed().as_secs_f64())
    }

    /// The router's decision, and the index of the lane that it names.
    pub fn route(&self, input: &RouteInput<'_>) -> (Route, Option<usize>) {
        let route = self.router.route(input);
        let lane = route.primary.as_deref().and_then(|name| self.config.index(name));
        (route, lane)
    }

    /// Whether the file or a specialist knows an intent.
    pub fn knows_intent(&self, intent: &str) -> bool {
        self.router.config().intents().contains(intent)
    }

    /// The names of the intents.
    pub fn intents(&self) -> Vec<&str> {
        self.router.config().intents().into_iter().collect()
    }

    fn control(&self, lane: usize) -> MutexGuard<'_, LaneControl> {
        self.controls[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn escalation(&self) -> MutexGuard<'_, Escalation> {
        self.escalation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the breaker lets a lane serve requests that the router sends to it.
    pub fn may_serve(&self, lane: usize) -> bool {
        self.control(lane).role().may_serve()
    }

    /// Counts a verdict about a response of a lane.
    pub fn observe(&self, lane: usize, pass: bool) {
        let now = self.now();
        self.control(lane).observe(pass, now);
    }

    /// Thresholds of the present level of escalation.
    pub fn thresholds(&self) -> Thresholds {
        self.escalation().thresholds()
    }

    /// Priority number above which a lane refuses requests.
    pub fn priority_floor(&self, lane: usize) -> Option<i64> {
        let thresholds = self.thresholds();
        self.control(lane).priority_floor(&thresholds)
    }

    /// Compares the loads of all lanes with the levels of escalation.
    pub fn watch(&self, lanes: &Lanes) {
        let signals: Vec<LaneSignal> = lanes.iter().map(signal).collect();
        let now = self.now();
        self.escalation().observe(now, &signals);
    }

    /// State of a lane, for an operator.
    pub fn status(&self, lane: usize, served: &ServedLane) -> LaneStatus {
        let live = served.lane.replicas().filter(|(_, own)| own.ended().is_none()).count();
        let (thresholds, now) = (self.thresholds(), self.now());
        self.control(lane).status(served.model().name(), live, now, &thresholds)
    }

    /// State of the escalation, for an operator.
    pub fn escalation_status(&self) -> EscalationStatus {
        self.escalation().status()
    }

    /// Changes a lane as an operator asks.
    ///
    /// # Errors
    /// [`PatchError`]; then nothing has changed.
    pub fn patch(&self, lane: usize, patch: &LanePatch) -> Result<(), PatchError> {
        self.control(lane).apply(patch)
    }

    /// Holds a level of escalation, or lets the load decide again.
    ///
    /// # Errors
    /// [`NoSuchLevel`].
    pub fn pin(&self, level: Option<usize>) -> Result<(), NoSuchLevel> {
        self.escalation().pin(level)
    }

    /// The lane that serves a request that the router sends to `lane`: itself or, while it is down or demoted, the first
    /// of its fallbacks that can serve. A demoted lane without such a fallback goes on serving. `None`: the lane is down,
    /// and so is every fallback.
    pub fn serving(&self, lane: usize, lanes: &Lanes) -> Option<usize> {
        let up = |lane: usize| lanes[lane].lane.ended().is_none();
        let mut next = Some(lane);
        // The file has no cycle of fallbacks.
        while let Some(at) = next {
            if up(at) && self.may_serve(at) {
                return Some(at);
            }
            next = self.config.fallback_of(at);
        }
        up(lane).then_some(lane)
    }
}

/// Load of a lane, as the escalation sees it.
fn signal(served: &ServedLane) -> LaneSignal {
    let load = served.lane.load();
    let (missed, verdicts) = served.metrics().slo().report().missed();
    LaneSignal {
        queue_seconds: queue_seconds(&load, served.lane.config().seats()),
        refused: served.metrics().slo().refused_fraction(),
        slo_missed: if verdicts > 0 { missed as f64 / verdicts as f64 } else { 0.0 },
    }
}

/// Expected wait of a new request: none while a seat is free, or else the time of the present work, of which the part
/// of one seat must end first.
fn queue_seconds(load: &Load, seats: usize) -> f64 {
    if load.waiting == 0 && load.running < seats {
        return 0.0;
    }
    let ahead = (load.waiting + 1) as f64 / (load.waiting + load.running).max(1) as f64;
    load.seconds.unwrap_or(0.0) * ahead.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_nothing_while_a_seat_is_free() {
        let load =
            |running, waiting| Load { running, waiting, seconds: Some(8.0), ..Load::default() };
        assert_eq!(queue_seconds(&load(3, 0), 4), 0.0);
        assert_eq!(queue_seconds(&load(4, 0), 4), 2.0, "one of four must end");
        assert_eq!(queue_seconds(&load(4, 12), 4), 8.0 * 13.0 / 16.0);
        assert_eq!(queue_seconds(&Load { seconds: None, ..load(4, 4) }, 4), 0.0, "not measured");
    }
}
