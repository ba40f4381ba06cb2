//! Refusals of a lane's door, and how good its quotes were.

use l6_ensemble::admission::RefusalCode;
use l6_ensemble::quote::{Accuracy, CalibrationReport};

use super::registry::{Counter, Gauge, Registry};

/// What a quote promises.
const PROMISES: [&str; 2] = ["first_token", "done"];

/// Metrics of a door.
#[derive(Debug)]
pub struct DoorFamilies {
    refusals: [Counter; RefusalCode::ALL.len()],
    quotes: [Gauge; PROMISES.len()],
    wrong: [Gauge; PROMISES.len()],
}

impl DoorFamilies {
    /// Registers all of them, at 0.
    pub fn new(registry: &Registry, model: &str) -> Self {
        let refusal = |code: RefusalCode| {
            let help = "Requests refused before they were submitted, by the code of the error.";
            let labels = [("model_name", model), ("code", code.name())];
            registry.counter("strata:refusals_total", help, &labels)
        };
        let gauge = |name, help| {
            PROMISES.map(|of| registry.gauge(name, help, &[("model_name", model), ("promise", of)]))
        };
        Self {
            refusals: RefusalCode::ALL.map(refusal),
            quotes: gauge(
                "strata:quotes",
                "Number of quotes of the last 15 minutes that were compared with what happened.",
            ),
            wrong: gauge(
                "strata:quotes_wrong_ratio",
                "Fraction of these quotes that were wrong by more than 25 percent; NaN without one.",
            ),
        }
    }

    /// Counts a refusal.
    pub fn refused(&self, code: RefusalCode) {
        let at = RefusalCode::ALL.iter().position(|own| *own == code);
        if let Some(counter) = at.and_then(|at| self.refusals.get(at)) {
            counter.inc();
        }
    }

    /// Sets the gauges, from the reports of all replicas.
    pub fn set(&self, reports: &[CalibrationReport]) {
        let of: [fn(&CalibrationReport) -> &Accuracy; 2] =
            [|own| &own.first_token, |own| &own.done];
        for (at, of) in of.iter().enumerate() {
            let sum =
                |what: fn(&Accuracy) -> u64| reports.iter().map(|own| what(of(own))).sum::<u64>();
            let (count, wrong) = (sum(|own| own.count), sum(|own| own.wrong));
            self.quotes[at].set(count as f64);
            self.wrong[at].set(if count > 0 { wrong as f64 / count as f64 } else { f64::NAN });
        }
    }
}
