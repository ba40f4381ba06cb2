//! Counters that other parts of the server keep, copied at each scrape: the calibration stream's, and the compile check's.

use super::registry::{Counter, Registry};
use crate::lanes::Lanes;

/// What becomes of a record of the calibration stream.
const RECORDS: [&str; 3] = ["written", "dropped", "lost"];

/// What a compile check finds.
const CHECKS: [&str; 5] = ["pass", "fail", "no_code", "inconclusive", "dropped"];

/// Counters of the calibration stream and of compile checks.
#[derive(Debug)]
pub struct StreamFamilies {
    records: [Counter; RECORDS.len()],
    checks: [Counter; CHECKS.len()],
}

impl StreamFamilies {
    /// Registers all of them, at 0.
    pub fn new(registry: &Registry) -> Self {
        let record = |outcome| {
            let help = "Records of the calibration stream: written, dropped because the queue was full, lost because a \
                        file could not be written.";
            registry.counter("strata:calibration_records_total", help, &[("outcome", outcome)])
        };
        let check = |outcome| {
            let help =
                "Compile checks of code in responses, by outcome; dropped: the queue was full.";
            registry.counter("strata:compile_checks_total", help, &[("outcome", outcome)])
        };
        Self { records: RECORDS.map(record), checks: CHECKS.map(check) }
    }

    /// Copies the counts of this moment.
    pub fn set(&self, lanes: &Lanes) {
        if let Some(stream) = lanes.calibration() {
            let (queue, files) = (stream.queue_counts(), stream.file_counts());
            let counts = [files.written, queue.dropped, files.lost];
            self.records.iter().zip(counts).for_each(|(counter, count)| raise(counter, count));
        }
        let checks = lanes.checker().map(|checker| checker.counts()).unwrap_or_default();
        for (outcome, count) in checks {
            if let Some(at) = CHECKS.iter().position(|known| *known == outcome) {
                raise(&self.checks[at], count);
            }
        }
    }
}

/// Raises a counter to a count. Two scrapes at once may both add; the next one adds that much less.
fn raise(counter: &Counter, count: u64) {
    counter.inc_by(count.saturating_sub(counter.get()));
}
