//! Levels and times of a breaker.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::duration_text;

/// Configuration of a [`Breaker`](super::Breaker).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// Pass rate below which the lane is demoted.
    pub trip_below: f64,
    /// Pass rate from which on the lane recovers; above `trip_below`. The distance between the two keeps the noise of a
    /// rate from flapping the breaker: 50 verdicts at a rate of 0.8 have a standard deviation of 0.06.
    pub reset_above: f64,
    /// Least number of verdicts, since the last transition and within the window, for a transition.
    pub min_samples: u64,
    /// Window of the pass rate.
    #[serde(with = "duration_text")]
    pub window: Duration,
    /// Least time between two transitions.
    #[serde(with = "duration_text")]
    pub dwell: Duration,
    /// Least time of probation before the lane closes.
    #[serde(with = "duration_text")]
    pub probation: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            trip_below: 0.7,
            reset_above: 0.85,
            min_samples: 50,
            window: Duration::from_secs(3600),
            dwell: Duration::from_secs(300),
            probation: Duration::from_secs(900),
        }
    }
}

impl BreakerConfig {
    /// Every error of the configuration; empty if it is valid.
    pub fn errors(&self) -> Vec<ConfigError> {
        let Self { trip_below, reset_above, min_samples, window, dwell, probation } = *self;
        let mut errors = vec![];
        let mut error = |field: &str, what: String| {
            errors.push(ConfigError::new(format!("breaker.{field}"), what))
        };
        for (name, level) in [("trip_below", trip_below), ("reset_above", reset_above)] {
            if !(0.0..=1.0).contains(&level) {
                error(name, format!("must be a fraction from 0 to 1, got {level}"));
            }
        }
        // A level that is out of range has been reported.
        if trip_below >= reset_above && trip_below <= 1.0 && reset_above >= 0.0 {
            let what = format!(
                "must be below `breaker.reset_above`, which is {reset_above}, got {trip_below}: the breaker needs a \
                 lower level to trip than to reset"
            );
            error("trip_below", what);
        }
        if min_samples == 0 {
            error("min_samples", "must be at least 1: a rate needs a verdict".into());
        }
        if window.is_zero() {
            error("window", "must be above 0, such as \"1h\"".into());
        }
        if probation < dwell {
            let (dwell, probation) =
                (duration_text::format(dwell), duration_text::format(probation));
            error(
                "probation",
                format!("must be at least `breaker.dwell`, which is {dwell}, got {probation}"),
            );
        }
        errors
    }
}
