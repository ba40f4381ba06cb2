//! Escalation under load: what the ensemble does without, step by step, while a lane is overloaded.
//!
//! Each level keeps what the levels below it do, and adds to it:
//!
//! 1. **Fewer shadows**: `shadow_below` and the sampled fractions are scaled down, at last to 0. A shadow is work that
//!    no client waits for, so it goes first.
//! 2. **More spill**: `spill_below` is raised, so that requests of which the router is less sure move to their second
//!    choice. The work stays the same; it moves.
//! 3. **A priority floor**: requests that are less urgent than the floor are refused. A lower priority number is more
//!    urgent, so the door refuses `priority > floor`, and a higher level has a lower number.
//!
//! The two thresholds move in opposite directions. *Lowering* `shadow_below` gives fewer shadows; *raising*
//! `spill_below` makes the second choice catch more. A single threshold could not do both.
//!
//! The level is the ensemble's, not a lane's: shadows and spill of one lane are load of another, and lanes on one
//! machine share its processors. It follows the lane with the highest load, and moves by one level at a time: up after
//! an overload that has lasted `dwell_up`, down after a calm that has lasted `dwell_down`. Between the levels for
//! overload and for calm it stays (hysteresis), so a load that sits at a level does not flap.
//!
//! An operator may pin a level, and release it, at any time: nothing else changes by that, so both are reversible.
//!
//! # Example
//!
//! ```
//! use l5_scheduler::Time;
//! use l6_ensemble::escalation::{Escalation, EscalationConfig, LaneSignal};
//!
//! let mut escalation = Escalation::new(EscalationConfig::default());
//! let busy = LaneSignal { queue_seconds: 30.0, ..LaneSignal::default() };
//! for second in 0..=10 {
//!     escalation.observe(Time(f64::from(second)), &[LaneSignal::default(), busy]);
//! }
//! assert_eq!(escalation.level(), 1);
//! assert!(escalation.thresholds().shadow_below(0.5) < 0.5, "fewer shadows");
//! ```

mod config;

#[cfg(test)]
mod tests;

pub use config::{EscalationConfig, EscalationLevel, LoadLevels};
use l5_scheduler::Time;
use serde::Serialize;

/// Number of requests below which [`refused_fraction`] says nothing.
const MIN_DECISIONS: u64 = 8;

/// Fraction of `asked` requests that were refused for load. 0 if they are few: of one request in a second all or none
/// are refused, and neither is an overload.
pub fn refused_fraction(asked: u64, refused: u64) -> f64 {
    if asked < MIN_DECISIONS { 0.0 } else { refused as f64 / asked as f64 }
}

/// Load of one lane, as its caller measures it over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LaneSignal {
    /// Expected wait of a new request, in seconds.
    pub queue_seconds: f64,
    /// Fraction of recent requests that were refused for load, from 0 to 1.
    pub refused: f64,
    /// Fraction of the lane's latency objectives that are missed, of those with a verdict, from 0 to 1.
    pub slo_missed: f64,
}

/// What a level of escalation changes. The neutral value, of level 0, changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Thresholds {
    /// Factor of `shadow_below` and of the sampled fractions of shadows, from 0 (no shadows) to 1.
    pub shadow_scale: f32,
    /// Addition to `spill_below`, from 0 to 1.
    pub spill_raise: f32,
    /// Priority number above which requests are refused; `None` refuses none.
    pub priority_floor: Option<i64>,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { shadow_scale: 1.0, spill_raise: 0.0, priority_floor: None }
    }
}

impl Thresholds {
    /// The score below which a request has a shadow, from what is configured.
    pub fn shadow_below(&self, configured: f32) -> f32 {
        configured * self.shadow_scale
    }

    /// The score below which a request may move to its second choice, from what is configured.
    pub fn spill_below(&self, configured: f32) -> f32 {
        (configured + self.spill_raise).min(1.0)
    }

    /// The stricter of this floor and another one: the lower number.
    pub fn floor_with(&self, other: Option<i64>) -> Option<i64> {
        self.priority_floor.into_iter().chain(other).min()
    }
}

/// Load of all lanes, compared with the levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressure {
    /// A signal of some lane is above its upper level.
    Over,
    /// Every signal of every lane is below its lower level.
    Calm,
    Between,
}

/// The level of escalation of an ensemble.
#[derive(Clone, Debug)]
pub struct Escalation {
    config: EscalationConfig,
    level: usize,
    pinned: Option<usize>,
    /// Time of the latest observation.
    latest: Time,
    pressure: Pressure,
    /// Since when the pressure is what it is, or when the level changed last, whichever is later.
    since: Time,
    raised: u64,
    lowered: u64,
}

impl Escalation {
    /// Begins at level 0.
    pub fn new(config: EscalationConfig) -> Self {
        Self {
            config,
            level: 0,
            pinned: None,
            latest: Time::ZERO,
            pressure: Pressure::Between,
            since: Time::ZERO,
            raised: 0,
            lowered: 0,
        }
    }

    /// Takes the load of all lanes, and moves by at most one level. A load counts until the next call, so that calls
    /// may be as rare as a dwell. A signal that is NaN is neither high nor low. A time before the last one counts as
    /// the last one.
    pub fn observe(&mut self, now: Time, lanes: &[LaneSignal]) {
        if now.seconds().is_finite() {
            self.latest = self.latest.max(now);
        }
        let now = self.latest;
        let pressure = self.pressure_of(lanes);
        // exercise l6.escalation
        if pressure != self.pressure {
            (self.pressure, self.since) = (pressure, now);
        }
        let lasted = now - self.since;
        if pressure == Pressure::Over
            && self.level < self.config.levels.len()
            && lasted >= self.config.dwell_up.as_secs_f64()
        {
            self.level += 1;
            self.raised += 1;
            self.since = now;
        } else if pressure == Pressure::Calm
            && self.level > 0
            && lasted >= self.config.dwell_down.as_secs_f64()
        {
            self.level -= 1;
            self.lowered += 1;
            self.since = now;
        }
        // end of exercise
    }

    /// Takes another configuration. The level stays, and so does a pinned one; without such a level it is the highest
    /// one that there is.
    pub fn configure(&mut self, config: EscalationConfig) {
        let highest = config.levels.len();
        self.level = self.level.min(highest);
        self.pinned = self.pinned.map(|level| level.min(highest));
        self.config = config;
    }

    /// What the level in force changes.
    pub fn thresholds(&self) -> Thresholds {
        match self.level().checked_sub(1).and_then(|above| self.config.levels.get(above)) {
            Some(level) => level.thresholds(),
            None => Thresholds::default(),
        }
    }

    /// The level in force: the pinned one, or else the one that follows from the load.
    pub fn level(&self) -> usize {
        self.pinned.unwrap_or(self.level)
    }

    /// The level that follows from the load, whether or not another one is pinned.
    pub fn automatic_level(&self) -> usize {
        self.level
    }

    /// The level that an operator has pinned.
    pub fn pinned(&self) -> Option<usize> {
        self.pinned
    }

    /// Highest level.
    pub fn max_level(&self) -> usize {
        self.config.levels.len()
    }

    /// Pins a level, or releases it with `None`. Meanwhile the automatic level goes on following the load.
    ///
    /// # Errors
    /// [`NoSuchLevel`]; nothing changes then.
    pub fn pin(&mut self, level: Option<usize>) -> Result<(), NoSuchLevel> {
        match level {
            Some(level) if level > self.max_level() => {
                Err(NoSuchLevel { level, highest: self.max_level() })
            }
            _ => {
                self.pinned = level;
                Ok(())
            }
        }
    }

    /// Number of times that the load has raised the level, and that it has lowered it.
    pub fn moves(&self) -> (u64, u64) {
        (self.raised, self.lowered)
    }

    /// State of the escalation, for an operator.
    pub fn status(&self) -> EscalationStatus {
        EscalationStatus {
            level: self.level(),
            max_level: self.max_level(),
            automatic_level: self.level,
            pinned: self.pinned,
            thresholds: self.thresholds(),
        }
    }

    fn pressure_of(&self, lanes: &[LaneSignal]) -> Pressure {
        let EscalationConfig { queue_seconds, refused, slo_missed, .. } = &self.config;
        let signals = || {
            lanes.iter().flat_map(|lane| {
                [
                    (lane.queue_seconds, queue_seconds),
                    (lane.refused, refused),
                    (lane.slo_missed, slo_missed),
                ]
            })
        };
        // exercise l6.escalation
        if signals().any(|(signal, levels)| signal > levels.up) {
            Pressure::Over
        } else if signals().all(|(signal, levels)| signal < levels.down) {
            Pressure::Calm
        } else {
            Pressure::Between
        }
        // end of exercise
    }
}

/// State of the escalation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EscalationStatus {
    /// Level in force.
    pub level: usize,
    /// Highest level.
    pub max_level: usize,
    /// Level that follows from the load.
    pub automatic_level: usize,
    /// Level that an operator has pinned.
    pub pinned: Option<usize>,
    /// What the level in force changes.
    pub thresholds: Thresholds,
}

/// A level that the configuration does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no escalation level {level}: use a level from 0 to {highest}, or null to release it"
)]
pub struct NoSuchLevel {
    /// Level that was asked for.
    pub level: usize,
    /// Highest level.
    pub highest: usize,
}
