//! Levels and times of a breaker.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    pub fn errors(&self) -> Vec<String> {
        let Self { trip_below, reset_above, min_samples, window, dwell, probation } = *self;
        let mut errors = vec![];
        for (name, level) in [("trip_below", trip_below), ("reset_above", reset_above)] {
            if !(0.0..=1.0).contains(&level) {
                errors.push(format!("breaker.{name} is {level}: it is a fraction, from 0 to 1"));
            }
        }
        if trip_below >= reset_above {
            errors.push(format!(
                "breaker.trip_below is {trip_below} and breaker.reset_above {reset_above}: the breaker needs a lower \
                 level to trip than to reset"
            ));
        }
        if min_samples == 0 {
            errors
                .push("breaker.min_samples is 0: at least one verdict is needed for a rate".into());
        }
        if window.is_zero() {
            errors.push("breaker.window is 0: set a time above 0, such as \"1h\"".into());
        }
        if probation < dwell {
            errors.push(format!(
                "breaker.probation is {} and breaker.dwell {}: probation is at least one dwell",
                duration_text::format(probation),
                duration_text::format(dwell)
            ));
        }
        errors
    }
}
