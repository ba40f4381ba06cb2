//! A circuit breaker for correctness: it takes a lane's primaries away while too many of its responses are wrong.
//!
//! The pattern is Nygard's circuit breaker (*Release It!*, 2007). Two differences follow from what it guards against. A
//! model whose responses drift does not recover by waiting, so the breaker leaves the open state by evidence and not by
//! a timeout. And a verdict is a sample of a rate, so the breaker compares rates, with hysteresis: it trips below one
//! level and recovers above a higher one.
//!
//! ```text
//!            rate < trip_below                    rate >= reset_above
//!   Closed ---------------------> Open ------------------------------> Probation
//!     ^                             ^                                      |
//!     |                             +---------- rate < trip_below ---------+
//!     +------------- rate >= reset_above, for as long as `probation` ------+
//! ```
//!
//! * **Closed**: the lane serves its requests.
//! * **Open**: the lane is shadow-only. Its fallback is the primary of its requests, and the verdicts of its shadows
//!   show whether it has recovered.
//! * **Probation**: the lane serves again, and closes after a sustained recovery.
//!
//! Every transition needs `min_samples` verdicts since the last one: verdicts of the past state do not count. Between
//! two transitions at least `dwell` passes, so there is at most one transition in any time of that length, whatever the
//! verdicts are. A rate between the two levels changes nothing.
//!
//! The breaker knows verdicts only. A lane whose engines have all ended ([`Lane::ended`](crate::Lane::ended)) can serve
//! nothing, whatever its breaker says: the caller checks that first.
//!
//! # Example
//!
//! ```
//! use l5_scheduler::Time;
//! use l6_ensemble::breaker::{Breaker, BreakerConfig, Role};
//!
//! let mut breaker = Breaker::new(BreakerConfig { min_samples: 20, ..BreakerConfig::default() });
//! for second in 0..20 {
//!     assert_eq!(breaker.role(), Role::Primary);
//!     breaker.observe(false, Time(f64::from(second)));
//! }
//! assert_eq!(breaker.role(), Role::ShadowOnly, "20 of 20 responses were wrong");
//! ```

mod config;
mod recent;

#[cfg(test)]
mod tests;

pub use config::BreakerConfig;
use l5_scheduler::Time;
use recent::Recent;
use serde::Serialize;

/// State of a breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BreakerState {
    /// The lane serves its requests.
    #[default]
    Closed,
    /// The lane is shadow-only.
    Open {
        /// When it was demoted.
        since: Time,
    },
    /// The lane serves again, under observation.
    Probation {
        /// When probation began.
        since: Time,
    },
}

/// What a lane may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It serves its requests.
    Primary,
    /// It serves its requests and is watched: a shadow is worth more than usual.
    Probation,
    /// It gets shadows only; its fallback serves its requests.
    ShadowOnly,
}

impl Role {
    /// Whether the lane may be the primary of a request.
    pub fn may_serve(self) -> bool {
        self != Self::ShadowOnly
    }
}

/// The breaker of one lane.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: BreakerState,
    /// Time of the last transition.
    changed: Option<Time>,
    recent: Recent,
    trips: u64,
    transitions: u64,
}

impl Breaker {
    /// Creates a closed breaker. [`BreakerConfig::errors`] checks a configuration; with an invalid one the breaker may
    /// never trip or never recover.
    pub fn new(config: BreakerConfig) -> Self {
        let recent = Recent::new(config.window);
        Self {
            config,
            state: BreakerState::Closed,
            changed: None,
            recent,
            trips: 0,
            transitions: 0,
        }
    }

    /// Counts a verdict about a response of the lane, primary or shadow, and makes the transition that follows from it.
    /// A time before the last verdict counts as the time of the last verdict.
    pub fn observe(&mut self, pass: bool, now: Time) {
        let now = self.recent.count(pass, now);
        // exercise l6.breaker
        let dwelt = self.changed.is_none_or(|since| now - since >= self.config.dwell.as_secs_f64());
        let Some(rate) = self.recent.rate(self.config.min_samples).filter(|_| dwelt) else {
            return;
        };
        let (low, high) = (rate < self.config.trip_below, rate >= self.config.reset_above);
        match self.state {
            BreakerState::Closed if low => self.change(BreakerState::Open { since: now }, now),
            BreakerState::Open { .. } if high => {
                self.change(BreakerState::Probation { since: now }, now)
            }
            BreakerState::Probation { .. } if low => {
                self.change(BreakerState::Open { since: now }, now)
            }
            BreakerState::Probation { since }
                if high && now - since >= self.config.probation.as_secs_f64() =>
            {
                self.change(BreakerState::Closed, now)
            }
            _ => {}
        }
        // end of exercise
    }

    /// What the lane may do. It changes by verdicts only, never by the passing of time.
    pub fn role(&self) -> Role {
        match self.state {
            BreakerState::Closed => Role::Primary,
            BreakerState::Open { .. } => Role::ShadowOnly,
            BreakerState::Probation { .. } => Role::Probation,
        }
    }

    /// State of the breaker.
    pub fn state(&self) -> BreakerState {
        self.state
    }

    /// Configuration of the breaker.
    pub fn config(&self) -> &BreakerConfig {
        &self.config
    }

    /// Pass rate of the verdicts in the window since the last transition, and their number.
    pub fn recent(&self, now: Time) -> (Option<f64>, u64) {
        self.recent.at(now)
    }

    /// Number of times that the lane was demoted.
    pub fn trips(&self) -> u64 {
        self.trips
    }

    /// Number of all transitions.
    pub fn transitions(&self) -> u64 {
        self.transitions
    }

    /// Takes another configuration. State, verdicts and counts stay, as far as they are within the new window; the next
    /// verdict makes the transition that follows from them.
    pub fn configure(&mut self, config: BreakerConfig) {
        if config.window != self.config.window {
            self.recent = self.recent.with_window(config.window);
        }
        self.config = config;
    }

    /// Closes the breaker and forgets all verdicts: the lane has another model. The counts of trips and transitions go
    /// on.
    pub fn reset(&mut self) {
        self.state = BreakerState::Closed;
        self.changed = None;
        self.recent.clear();
    }

    fn change(&mut self, state: BreakerState, now: Time) {
        self.trips += u64::from(matches!(state, BreakerState::Open { .. }));
        self.transitions += 1;
        self.state = state;
        self.changed = Some(now);
        self.recent.clear();
    }
}
