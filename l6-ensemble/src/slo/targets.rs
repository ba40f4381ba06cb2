//! What a lane promises, and how it is measured.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    /// Every error of the targets; empty if they are valid.
    pub fn errors(&self) -> Vec<String> {
        let mut errors = vec![];
        for (name, bound) in [("ttft", self.ttft), ("itl", self.itl)] {
            if bound.is_some_and(|bound| bound.is_zero()) {
                errors.push(format!(
                    "slo.{name} is 0, which no lane can keep: set a time above 0, or leave it out"
                ));
            }
        }
        if let Some(rate) = self.compile_pass
            && !(0.0..=1.0).contains(&rate)
        {
            errors.push(format!("slo.compile_pass is {rate}: it is a fraction, from 0 to 1"));
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
    pub fn errors(&self) -> Vec<String> {
        let mut errors = vec![];
        let most = Duration::from_secs(60 * Self::MAX_LATENCY_MINUTES);
        if self.latency_window.is_zero() || self.latency_window > most {
            errors.push(format!(
                "slo.latency_window is {}: it must be from 1m to 1h",
                duration_text::format(self.latency_window)
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
