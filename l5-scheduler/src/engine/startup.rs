//! How an engine came to be: one line a step, with what it took.

use std::fmt;
use std::time::{Duration, Instant};

/// The steps of a construction, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Startup {
    /// What was done.
    pub steps: Vec<StartupStep>,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct StartupStep {
    /// Its name: device, runner, weights, kv, pool, capture.
    pub name: &'static str,
    /// What it took.
    pub took: Duration,
    /// What came of it. May have several lines.
    pub what: String,
}

impl Startup {
    /// Do a step, and note and log it. A step that fails is not noted: its error is what counts.
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

    /// All steps together.
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
        write!(f, "{:8} {:>9.1} ms", "together", ms(self.total()))
    }
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}
