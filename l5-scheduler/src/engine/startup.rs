//! Startup report of an engine: its phases, with their durations.

use std::fmt;
use std::time::{Duration, Instant};

/// Startup report of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Startup {
    /// Phases, in their order.
    pub steps: Vec<StartupStep>,
}

/// A phase of the startup.
#[derive(Clone, Debug, PartialEq)]
pub struct StartupStep {
    /// Name of the phase: device, runner, weights, kv, tiers (if there are any), pool, capture.
    pub name: &'static str,
    /// Duration.
    pub took: Duration,
    /// Result of the phase; may have several lines.
    pub what: String,
}

impl Startup {
    /// Runs a phase, records it and logs it. A phase that fails is not recorded, since its error is returned.
    pub(crate) fn step<T, E>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<(T, String), E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let (made, what) = work()?;
        let took = began.elapsed();
        tracing::info!("{name}: {what} ({:.1} ms)", ms(took));
        self.steps.push(StartupStep { name, took, what });
        Ok(made)
    }

    /// Duration of all phases.
    pub fn total(&self) -> Duration {
        self.steps.iter().map(|step| step.took).sum()
    }
}

impl fmt::Display for Startup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let mut lines = step.what.lines();
            let first = lines.next().unwrap_or_default();
            writeln!(f, "{:8} {:>9.1} ms  {first}", step.name, ms(step.took))?;
            for line in lines {
                writeln!(f, "{:22} {line}", "")?;
            }
        }
        write!(f, "{:8} {:>9.1} ms", "total", ms(self.total()))
    }
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}
