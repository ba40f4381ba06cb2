//! What is published of a lane: measurements, targets, and whether they are met.

use std::time::Duration;

use l5_scheduler::Time;
use serde::Serialize;

use super::{Percentiles, RATE_WINDOW_MINUTES, SloTargets, SloWindow};

/// Report of one lane's objectives. Times are milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SloReport {
    /// Window of the latencies, in seconds.
    pub latency_window_seconds: u64,
    /// Window of the rates, in seconds.
    pub rate_window_seconds: u64,
    /// Time from arrival to first token.
    pub ttft_ms: Percentiles,
    /// Time between tokens.
    pub itl_ms: Percentiles,
    /// Time from admission to first token.
    pub admission_to_first_token_ms: Percentiles,
    /// Compile checks that passed.
    pub compile_pass: Rate,
    /// Finished requests that were preempted at least once.
    pub preempted_once: Rate,
    /// Each target against what was measured.
    pub objectives: Objectives,
}

/// Objectives of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Objectives {
    /// 95th percentile of TTFT, in milliseconds.
    pub ttft: Objective,
    /// 95th percentile of ITL, in milliseconds.
    pub itl: Objective,
    /// Fraction of compile checks that pass.
    pub compile_pass: Objective,
}

/// One target, and what was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Objective {
    /// Target; `None` if the lane promises nothing.
    pub target: Option<f64>,
    /// Measured value; `None` without a sample.
    pub measured: Option<f64>,
    /// Number of samples.
    pub samples: u64,
    /// Whether the target is met; `None` without a target, or with fewer samples than the options require.
    pub met: Option<bool>,
}

/// A fraction of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rate {
    /// Number of events with the property.
    pub count: u64,
    /// Number of all events.
    pub total: u64,
    /// `count / total`; `None` without an event.
    pub fraction: Option<f64>,
}

impl Rate {
    /// The fraction of `total` events that `count` are.
    pub fn new(count: u64, total: u64) -> Self {
        let fraction = (total > 0).then(|| count as f64 / total as f64);
        Self { count, total, fraction }
    }
}

impl SloReport {
    pub(super) fn new(window: &SloWindow, now: Time, targets: &SloTargets) -> Self {
        let options = window.options();
        let (ttft_ms, itl_ms) = (window.ttft(now), window.itl(now));
        let compile_pass = window.compile_pass(now);
        let latency = |target: Option<Duration>, measured: Percentiles| {
            let target = target.map(|target| target.as_secs_f64() * 1e3);
            Objective::new(
                target,
                measured.p95,
                measured.count,
                options.min_latency_samples,
                |measured, target| measured <= target,
            )
        };
        let objectives = Objectives {
            ttft: latency(targets.ttft, ttft_ms),
            itl: latency(targets.itl, itl_ms),
            compile_pass: Objective::new(
                targets.compile_pass,
                compile_pass.fraction,
                compile_pass.total,
                options.min_compile_samples,
                |measured, target| measured >= target,
            ),
        };
        Self {
            latency_window_seconds: 60 * options.latency_minutes(),
            rate_window_seconds: 60 * RATE_WINDOW_MINUTES,
            ttft_ms,
            itl_ms,
            admission_to_first_token_ms: window.admission_to_first_token(now),
            compile_pass,
            preempted_once: window.preempted_once(now),
            objectives,
        }
    }

    /// Number of objectives that have a verdict, and of those that are missed.
    pub fn missed(&self) -> (usize, usize) {
        let Objectives { ttft, itl, compile_pass } = self.objectives;
        let verdicts = [ttft.met, itl.met, compile_pass.met];
        let missed = verdicts.iter().filter(|met| **met == Some(false)).count();
        (verdicts.iter().flatten().count(), missed)
    }
}

impl Objective {
    fn new(
        target: Option<f64>,
        measured: Option<f64>,
        samples: u64,
        min_samples: u64,
        meets: impl Fn(f64, f64) -> bool,
    ) -> Self {
        let enough = samples >= min_samples.max(1);
        let met = target.zip(measured).filter(|_| enough);
        Self {
            target,
            measured,
            samples,
            met: met.map(|(target, measured)| meets(measured, target)),
        }
    }
}
