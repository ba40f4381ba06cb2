//! The state of an ensemble beside its lanes: router, breakers, escalation.
//!
//! The decisions are those of `l6-ensemble`, which knows no clock: this file gives them the time, and shares their state
//! between tasks. No lock is held while anything else is waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use l5_scheduler::Time;
use l6_ensemble::EnsembleConfig;
use l6_ensemble::breaker::Role;
use l6_ensemble::control::{LaneControl, LanePatch, LaneStatus, PatchError};
use l6_ensemble::escalation::{Escalation, EscalationStatus, LaneSignal, NoSuchLevel, Thresholds};
use l6_ensemble::replica_choice::queue_seconds;
use l6_ensemble::router::{Classifier, LoadError, Route, RouteInput, Router, RouterError};
use l6_ensemble::shadow::{
    self, Freshness, LaneVersion, ShadowDecision, ShadowLane, ShadowRequest,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::calibration::fresh_salt;
use super::changes::{self, Change, LaneSettings};
use super::dispatch::RequestFacts;
use super::lanes::{Lanes, ServedLane};
use super::metrics::RouteCounters;
use super::reload::ConfigVersion;
use super::routing::RouterChoice;
use super::shadows::Shadows;

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

/// Router, breakers and escalation of an ensemble. Lanes are numbered as in its file when the server started.
///
/// Configuration and router are one version of the file. The rest is shared by all versions.
#[derive(Debug)]
pub struct Ensemble {
    config: EnsembleConfig,
    version: ConfigVersion,
    router: Router,
    states: LaneStates,
    counters: Arc<RouteCounters>,
    /// Salt of digests where no calibration stream has one.
    salt: Arc<str>,
    /// Start of the clock of breakers and escalation.
    began: Instant,
}

/// Breakers, overrides, escalation, freshness and shadows. Clones share them.
#[derive(Clone, Debug)]
pub struct LaneStates {
    controls: Arc<[Mutex<LaneControl>]>,
    escalation: Arc<Mutex<Escalation>>,
    freshness: Arc<[Mutex<Freshness>]>,
    shadows: Arc<Shadows>,
    /// Whether a calibration stream or a compile check reads what shadows show.
    learns: Arc<AtomicBool>,
    /// Whether each lane serves although it is demoted, when that was last looked at.
    unreplaced: Arc<[AtomicBool]>,
}

impl Ensemble {
    /// The ensemble of a file. Reads its classifier.
    ///
    /// # Errors
    /// [`EnsembleError`].
    pub fn new(config: EnsembleConfig, counters: RouteCounters) -> Result<Self, EnsembleError> {
        let shadows = Shadows::new(config.shadow.max_in_flight);
        Ok(Self {
            router: router(&config)?,
            version: ConfigVersion::first(),
            states: LaneStates {
                controls: config
                    .specialists
                    .iter()
                    .map(|_| Mutex::new(LaneControl::new(config.breaker)))
                    .collect(),
                escalation: Arc::new(Mutex::new(Escalation::new(config.escalation.clone()))),
                freshness: config
                    .specialists
                    .iter()
                    .map(|own| Mutex::new(Freshness::new(version(&config, own.model.clone()))))
                    .collect(),
                shadows: Arc::new(shadows),
                learns: Arc::default(),
                unreplaced: config.specialists.iter().map(|_| AtomicBool::new(false)).collect(),
            },
            counters: Arc::new(counters),
            salt: fresh_salt().into(),
            began: Instant::now(),
            config,
        })
    }

    /// The next version, of the same lanes with another configuration: see [`EnsembleConfig::reloaded`]. Breakers and
    /// escalation are shared, and stay as they are until [`Self::configure_states`].
    ///
    /// # Errors
    /// [`EnsembleError`].
    pub fn reloaded(&self, config: EnsembleConfig) -> Result<Self, EnsembleError> {
        Ok(Self {
            router: router(&config)?,
            version: self.version.next(),
            states: self.states.clone(),
            counters: self.counters.clone(),
            salt: self.salt.clone(),
            began: self.began,
            config,
        })
    }

    /// Gives breakers and escalation the configuration of this version. Their states and overrides stay. With other
    /// thresholds, lanes are fresh.
    pub fn configure_states(&self) {
        for lane in 0..self.states.controls.len() {
            self.control(lane).configure(self.config.breaker);
        }
        self.escalation().configure(self.config.escalation.clone());
        for lane in 0..self.states.freshness.len() {
            let mut freshness = self.lock_freshness(lane);
            let model = freshness.version().model.clone();
            freshness.update(version(&self.config, model));
        }
    }

    /// When the file was loaded, and how often before.
    pub fn version(&self) -> &ConfigVersion {
        &self.version
    }

    /// Breakers, overrides and escalation, without the router.
    pub fn states(&self) -> &LaneStates {
        &self.states
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
        self.states.control(lane)
    }

    fn escalation(&self) -> MutexGuard<'_, Escalation> {
        self.states.escalation()
    }

    /// Whether the breaker lets a lane serve requests that the router sends to it.
    pub fn may_serve(&self, lane: usize) -> bool {
        self.control(lane).role().may_serve()
    }

    /// Counts a verdict about a response of a lane.
    pub fn observe(&self, lane: usize, pass: bool) {
        let (now, mut control) = (self.now(), self.control(lane));
        let before = control.breaker().state();
        control.observe(pass, now);
        let (after, mode) = (control.breaker().state(), control.mode());
        drop(control);
        let change = changes::of_breaker(self.lane_name(lane), [before, after], mode);
        change.iter().for_each(Change::log);
    }

    /// Name of a lane.
    fn lane_name(&self, lane: usize) -> &str {
        self.config.specialists.get(lane).map_or("", |own| &own.name)
    }

    /// Thresholds of the present level of escalation.
    pub fn thresholds(&self) -> Thresholds {
        self.escalation().thresholds()
    }

    /// Priority number above which a lane refuses requests.
    pub fn priority_floor(&self, lane: usize) -> Option<i64> {
        self.states.priority_floor(lane)
    }

    /// Salt of digests where no calibration stream has one: another one for each process.
    pub fn salt(&self) -> &str {
        &self.salt
    }

    /// The shadows in flight.
    pub fn shadows(&self) -> &Shadows {
        &self.states.shadows
    }

    /// What shadows show is read: by a calibration stream or a compile check.
    pub(super) fn set_learns(&self) {
        self.states.learns.store(true, Ordering::Relaxed);
    }

    /// Score of the first choice below which a request of an intent may spill from a lane.
    pub fn spill_below(&self, lane: usize, intent: &str) -> f32 {
        let (configured, thresholds) = (self.config.shadow.intent(intent), self.thresholds());
        self.control(lane).spill_below(configured.spill_below, &thresholds)
    }

    /// Score of the first choice below which a request of an intent has a shadow. Where nothing reads what shadows show,
    /// only an operator's threshold counts.
    fn shadow_below(&self, lane: usize, intent: &str) -> f32 {
        let learns = self.states.learns.load(Ordering::Relaxed);
        let configured = if learns { self.config.shadow.intent(intent).shadow_below } else { 0.0 };
        let thresholds = self.thresholds();
        self.control(lane).shadow_below(configured, &thresholds)
    }

    /// Decides whether a request that `lane` serves has a shadow.
    pub fn decide_shadow(
        &self,
        lanes: &Lanes,
        lane: usize,
        choice: &RouterChoice,
        facts: &RequestFacts,
    ) -> ShadowDecision {
        let request = ShadowRequest {
            digest: choice.digest,
            score: choice.score,
            shadow_below: self.shadow_below(lane, &choice.intent),
            high_stakes: facts.high_stakes,
            tools: facts.tools,
            n: u32::try_from(facts.choices).unwrap_or(u32::MAX),
            guided: facts.guided,
        };
        let second = choice.shadow.map(|lane| self.shadow_lane(lanes, lane));
        let primary = self.shadow_lane(lanes, lane);
        let thresholds = self.thresholds();
        shadow::decide(&request, &primary, second.as_ref(), &thresholds, &self.config.shadow)
    }

    /// A lane, as the decision about a shadow sees it.
    fn shadow_lane(&self, lanes: &Lanes, lane: usize) -> ShadowLane {
        let served = &lanes[lane];
        ShadowLane {
            role: self.control(lane).role(),
            fresh: self.states.learns.load(Ordering::Relaxed) && self.is_fresh(lane),
            queue_seconds: queue_seconds(&served.lane.load(), served.lane.config().seats()),
            up: served.lane.ended().is_none(),
        }
    }

    /// Whether a lane is demoted or on probation, so that verdicts about its shadows count for its breaker.
    pub fn is_watched(&self, lane: usize) -> bool {
        self.control(lane).role() != Role::Primary
    }

    fn lock_freshness(&self, lane: usize) -> MutexGuard<'_, Freshness> {
        self.states.freshness[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a verdict about a response of a lane, primary or shadow, for its freshness.
    pub fn count_verdict(&self, lane: usize) {
        self.lock_freshness(lane).verdict();
    }

    /// Sets the digest of a lane's model.
    pub fn set_model_version(&self, lane: usize, model: String) {
        let mut freshness = self.lock_freshness(lane);
        let version = LaneVersion { model, ..freshness.version().clone() };
        freshness.update(version);
    }

    /// Restores what an earlier process has counted of the same version. Returns whether it was the same.
    pub fn restore_freshness(&self, lane: usize, stored: Freshness) -> bool {
        let mut freshness = self.lock_freshness(lane);
        let same = stored.version() == freshness.version();
        if same {
            *freshness = stored;
        }
        same
    }

    /// Verdicts about a lane since its version changed, to be stored.
    pub fn stored_freshness(&self, lane: usize) -> Freshness {
        self.lock_freshness(lane).clone()
    }

    fn is_fresh(&self, lane: usize) -> bool {
        self.lock_freshness(lane).fresh(self.config.shadow.fresh_samples)
    }

    /// Freshness of a lane, for an operator.
    pub fn freshness(&self, lane: usize) -> FreshnessStatus {
        let (freshness, needed) = (self.lock_freshness(lane), self.config.shadow.fresh_samples);
        FreshnessStatus {
            fresh: freshness.fresh(needed),
            verdicts: freshness.verdicts(),
            needed,
            version: freshness.version().clone(),
        }
    }

    /// Compares the loads of all lanes with the levels of escalation, and logs which demoted lanes go on serving.
    pub fn watch(&self, lanes: &Lanes) {
        let signals: Vec<LaneSignal> = lanes.iter().map(signal).collect();
        let now = self.now();
        let mut escalation = self.escalation();
        let before = escalation.status();
        escalation.observe(now, &signals);
        let after = escalation.status();
        drop(escalation);
        let moved = changes::of_escalation("load", &before, &after);
        let replacements = self.replacements_changed(lanes);
        moved.iter().chain(&replacements).for_each(Change::log);
    }

    /// Demoted lanes that serve since no fallback can, and those that no longer do, since the last call.
    pub(super) fn replacements_changed(&self, lanes: &Lanes) -> Vec<Change> {
        let changed = self.states.unreplaced.iter().enumerate().filter_map(|(lane, was)| {
            let is = self.is_unreplaced(lane, lanes);
            let changed = was.swap(is, Ordering::Relaxed) != is;
            changed.then(|| changes::of_replacement(self.lane_name(lane), is))
        });
        changed.collect()
    }

    /// Whether a lane serves what the router sends to it although it is demoted: no fallback can.
    pub fn is_unreplaced(&self, lane: usize, lanes: &Lanes) -> bool {
        !self.may_serve(lane) && self.serving(lane, lanes) == Some(lane)
    }

    /// State of a lane, for an operator.
    pub fn status(&self, lane: usize, served: &ServedLane) -> LaneStatus {
        let live = served.lane.replicas().filter(|(_, own)| own.ended().is_none()).count();
        let (thresholds, now) = (self.thresholds(), self.now());
        self.control(lane).status(served.model().name(), live, now, &thresholds)
    }

    /// What the breaker of a lane, or the operator, lets it do.
    pub fn role(&self, lane: usize) -> Role {
        self.control(lane).role()
    }

    /// State of the escalation, for an operator.
    pub fn escalation_status(&self) -> EscalationStatus {
        self.escalation().status()
    }

    /// What an operator has set for a lane.
    pub fn settings(&self, lane: usize) -> LaneSettings {
        LaneSettings::from(&*self.control(lane))
    }

    /// Changes a lane as an operator asks, and logs it. `by`: what asked for it.
    ///
    /// # Errors
    /// [`PatchError`]; then nothing has changed.
    pub fn patch(&self, lane: usize, patch: &LanePatch, by: &str) -> Result<(), PatchError> {
        let mut control = self.control(lane);
        let (before, served) = (LaneSettings::from(&*control), control.role().may_serve());
        control.apply(patch)?;
        let (after, serves) = (LaneSettings::from(&*control), control.role().may_serve());
        drop(control);
        let named = (by, self.lane_name(lane));
        let change = changes::of_settings(named, [before, after], served && !serves);
        change.iter().for_each(Change::log);
        Ok(())
    }

    /// Holds a level of escalation, or lets the load decide again, and logs it. `by`: what asked for it.
    ///
    /// # Errors
    /// [`NoSuchLevel`].
    pub fn pin(&self, level: Option<usize>, by: &str) -> Result<(), NoSuchLevel> {
        let mut escalation = self.escalation();
        let before = escalation.status();
        escalation.pin(level)?;
        let after = escalation.status();
        drop(escalation);
        let change = changes::of_escalation(by, &before, &after);
        change.iter().for_each(Change::log);
        Ok(())
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

/// Freshness of a lane, as `GET /strata/lanes` shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FreshnessStatus {
    /// Whether the lane has too few verdicts since its version changed.
    pub fresh: bool,
    /// Number of its verdicts since then.
    pub verdicts: u64,
    /// Number of verdicts from which on it is not fresh.
    pub needed: u64,
    /// What the verdicts are about.
    pub version: LaneVersion,
}

/// Version of a lane with this model.
fn version(config: &EnsembleConfig, model: String) -> LaneVersion {
    LaneVersion { model, adapter: None, thresholds: thresholds_of(config) }
}

/// Digest of what lanes are chosen by: the router's configuration, and the thresholds of intents.
fn thresholds_of(config: &EnsembleConfig) -> String {
    let text = serde_json::to_vec(&(&config.router, &config.shadow)).unwrap_or_default();
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

impl LaneStates {
    fn control(&self, lane: usize) -> MutexGuard<'_, LaneControl> {
        self.controls[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn escalation(&self) -> MutexGuard<'_, Escalation> {
        self.escalation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Priority number above which a lane refuses requests.
    pub fn priority_floor(&self, lane: usize) -> Option<i64> {
        let thresholds = self.escalation().thresholds();
        self.control(lane).priority_floor(&thresholds)
    }
}

/// The router of a file. Reads its classifier.
fn router(config: &EnsembleConfig) -> Result<Router, EnsembleError> {
    let classifier = config.router.classifier.load()?;
    let classifier = classifier.map(|own| Box::new(own) as Box<dyn Classifier>);
    let names = config.specialists.iter().map(|own| own.name.clone()).collect();
    Ok(Router::new(config.router.clone(), classifier, names)?)
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
