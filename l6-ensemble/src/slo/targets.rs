//! What a lane promises, and how it is measured.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::duration_text;

/// Service level objectives of a lane. An absent one is not promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SloTargets {
    /// Upper bound of the 95th percentile of TTFT: `"300ms"`.
    #[serde(with = "duration_text::option", skip_serializing_if = "Option::is_none")]
    pub ttft: Option<Duration>,
    /// Upper bound of the 95th percentile of ITL.
    #[serde(with = "duration_text::option", skip_serializing_if = "Option::is_none")]
    pub itl: Option<Duration>,
    /// Lower bound of the fraction of compile checks that pass, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compile_pass: Option<f64>,
}

impl SloTargets {
    /// Every error of the targets; empty if they are valid. Paths begin with `slo`, the field of a specialist.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = vec![];
        for (name, bound) in [("ttft", self.ttft), ("itl", self.itl)] {
            if bound.is_some_and(|bound| bound.is_zero()) {
                let what = "must be above 0, or left out: no lane can keep 0";
                errors.push(ConfigError::new(format!("slo.{name}"), what));
            }
        }
        if let Some(rate) = self.compile_pass
            && !(0.0..=1.0).contains(&rate)
        {
            let what = format!("must be a fraction from 0 to 1, got {rate}");
            errors.push(ConfigError::new("slo.compile_pass", what));
        }
        errors
    }
}

/// How a lane's objectives are measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SloOptions {
    /// Window of the published latencies, from 1 to 60 minutes; the default is 5. It is rounded up to whole minutes.
    ///
    /// At one request a second, five minutes hold 300 first tokens, so that the 99th percentile is the third largest
    /// and not a single one. A longer window would show an overload when it has ended. One minute costs 4.5 KiB a lane.
    #[serde(with = "duration_text")]
    pub latency_window: Duration,
    /// Least number of latencies for a verdict about an objective. By nearest rank, the 95th percentile of fewer than
    /// 20 samples is their maximum.
    pub min_latency_samples: u64,
    /// Least number of compile checks for a verdict about their pass rate.
    pub min_compile_samples: u64,
}

impl Default for SloOptions {
    fn default() -> Self {
        Self {
            latency_window: Duration::from_secs(300),
            min_latency_samples: 20,
            min_compile_samples: 20,
        }
    }
}

impl SloOptions {
    /// Longest window of latencies, in minutes.
    pub const MAX_LATENCY_MINUTES: u64 = 60;

    /// Every error of the options; empty if they are valid.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = vec![];
        let most = Duration::from_secs(60 * Self::MAX_LATENCY_MINUTES);
        if self.latency_window.is_zero() || self.latency_window > most {
            let got = duration_text::format(self.latency_window);
            errors.push(ConfigError::new(
                "slo.latency_window",
                format!("must be above 0 and at most 1h, got {got}"),
            ));
        }
        errors
    }

    /// Number of minutes in the window of latencies, within its bounds.
    pub(super) fn latency_minutes(&self) -> u64 {
        let minutes = self.latency_window.as_secs_f64() / 60.0;
        (minutes.ceil() as u64).clamp(1, Self::MAX_LATENCY_MINUTES)
    }
}
