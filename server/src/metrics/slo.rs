//! Service levels of a lane: measured by the observers of its engines, published with their targets.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use l5_scheduler::Time;
use l6_ensemble::escalation::refused_fraction;
use l6_ensemble::slo::{Percentiles, SloOptions, SloReport, SloTargets, SloWindow};

use super::registry::{Gauge, Registry};
use crate::state_file;

/// Measurements of a lane. Clones share them.
#[derive(Clone, Debug)]
pub struct SharedSlo(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    window: Mutex<SloWindow>,
    targets: Mutex<SloTargets>,
    began: Instant,
    /// Requests since the last call of [`SharedSlo::refused_fraction`].
    admitted: AtomicU64,
    refused: AtomicU64,
}

impl SharedSlo {
    /// Measures nothing yet.
    pub fn new(options: SloOptions, targets: SloTargets) -> Self {
        Self(Arc::new(Inner {
            window: Mutex::new(SloWindow::new(options)),
            targets: Mutex::new(targets),
            began: Instant::now(),
            admitted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, SloWindow> {
        self.0.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self, at: Instant) -> Time {
        Time(at.saturating_duration_since(self.0.began).as_secs_f64())
    }

    /// Counts measurements of one step, under one lock.
    pub fn count(&self, at: Instant, add: impl FnOnce(&mut SloWindow, Time)) {
        let now = self.time(at);
        add(&mut self.lock(), now);
    }

    /// Counts a request that was admitted to the queue, or refused for load.
    pub fn decided(&self, admitted: bool) {
        let counter = if admitted { &self.0.admitted } else { &self.0.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Fraction of the requests since the last call that were refused for load; 0 if they were few.
    pub fn refused_fraction(&self) -> f64 {
        let (admitted, refused) =
            (self.0.admitted.swap(0, Ordering::Relaxed), self.0.refused.swap(0, Ordering::Relaxed));
        refused_fraction(admitted + refused, refused)
    }

    /// Counts a check of code in a response.
    pub fn compile_checked(&self, pass: bool) {
        self.count(Instant::now(), |window, now| window.compile_checked(now, pass));
    }

    /// Measurements and targets.
    pub fn report(&self) -> SloReport {
        let now = self.time(Instant::now());
        let targets = *self.targets();
        self.lock().report(now, &targets)
    }

    fn targets(&self) -> MutexGuard<'_, SloTargets> {
        self.0.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes other options and targets. What was measured stays.
    pub fn configure(&self, options: SloOptions, targets: SloTargets) {
        *self.targets() = targets;
        let mut window = self.lock();
        if *window.options() != options {
            window.configure(options);
        }
    }

    /// Restores what an earlier process has measured of the same model. Returns whether there was something.
    ///
    /// # Errors
    /// A file that cannot be read, or that is no such snapshot: then nothing is restored.
    pub fn restore(&self, file: &Path, identity: &str) -> Result<bool, String> {
        let read = state_file::read(file).map_err(|why| why.to_string())?;
        let Some(bytes) = read else { return Ok(false) };
        let now = self.time(Instant::now());
        let restored = self.lock().restore(&bytes, now, wall_minute(), identity);
        restored.map(|()| true).map_err(|why| why.to_string())
    }

    /// Writes a snapshot.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, file: &Path, identity: &str) -> Result<(), String> {
        let now = self.time(Instant::now());
        let bytes = self.lock().snapshot(now, wall_minute(), identity);
        let written = bytes
            .map_err(|why| why.to_string())
            .and_then(|bytes| state_file::replace(file, &bytes).map_err(|why| why.to_string()));
        written.map_err(|why| format!("{}: {why}", file.display()))
    }
}

/// Minute since 1970.
fn wall_minute() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_secs() / 60
}

/// Quantiles of the published latencies.
const QUANTILES: [&str; 3] = ["0.5", "0.95", "0.99"];

/// Gauges of a lane's service levels, set at each scrape.
#[derive(Debug)]
pub struct SloFamilies {
    ttft: [Gauge; QUANTILES.len()],
    itl: [Gauge; QUANTILES.len()],
    admitted: [Gauge; QUANTILES.len()],
    compile_pass: Gauge,
    preempted_once: Gauge,
    met: [Gauge; 3],
}

impl SloFamilies {
    /// Registers all of them, at 0.
    pub fn new(registry: &Registry, model: &str) -> Self {
        let latency = |of| {
            QUANTILES.map(|quantile| {
                let help = "Latencies of the published window, in seconds: ttft, itl, and admission_to_first_token; \
                            NaN without samples.";
                let labels = [("model_name", model), ("latency", of), ("quantile", quantile)];
                registry.gauge("strata:slo_latency_seconds", help, &labels)
            })
        };
        let rate = |name, help| registry.gauge(name, help, &[("model_name", model)]);
        let met = |objective| {
            let help = "Whether an objective is met: 1 or 0; NaN without a target, or with too few samples.";
            registry.gauge(
                "strata:slo_met",
                help,
                &[("model_name", model), ("objective", objective)],
            )
        };
        Self {
            ttft: latency("ttft"),
            itl: latency("itl"),
            admitted: latency("admission_to_first_token"),
            compile_pass: rate(
                "strata:slo_compile_pass_ratio",
                "Fraction of compile checks of the last 24 hours that passed; NaN without one.",
            ),
            preempted_once: rate(
                "strata:slo_preempted_once_ratio",
                "Fraction of the requests of the last 24 hours that were preempted at least once; NaN without one.",
            ),
            met: ["ttft", "itl", "compile_pass"].map(met),
        }
    }

    /// Sets the gauges.
    pub fn set(&self, report: &SloReport) {
        let all = [
            (&self.ttft, &report.ttft_ms),
            (&self.itl, &report.itl_ms),
            (&self.admitted, &report.admission_to_first_token_ms),
        ];
        for (gauges, Percentiles { p50, p95, p99, .. }) in all {
            for (gauge, ms) in gauges.iter().zip([p50, p95, p99]) {
                gauge.set(ms.map_or(f64::NAN, |ms| ms / 1e3));
            }
        }
        self.compile_pass.set(report.compile_pass.fraction.unwrap_or(f64::NAN));
        self.preempted_once.set(report.preempted_once.fraction.unwrap_or(f64::NAN));
        let objectives = &report.objectives;
        let all = [objectives.ttft.met, objectives.itl.met, objectives.compile_pass.met];
        for (gauge, met) in self.met.iter().zip(all) {
            gauge.set(met.map_or(f64::NAN, |met| f64::from(u8::from(met))));
        }
    }
}
