//! Thresholds from the calibration stream, offline.
//!
//! A record with a shadow and verdicts about both responses is *judged*. If the shadow alone is right, the route was a
//! **routing error**: the second choice would have served the request better. If both or neither is right, the route
//! made no difference. Over the judged records with a score of at least `t`,
//!
//! ```text
//! precision(t) = 1 - routing errors / judged            coverage(t) = records with score >= t / all records
//! ```
//!
//! From these curves, and from nothing else, follow three proposals:
//!
//! * **`shadow_below`** of an intent: the least `t` at which at most [`TuneOptions::max_error`] of the requests above
//!   are routing errors. Above it a shadow hardly ever shows an error.
//! * **`spill_below`** of an intent: the greatest `t` below which the second choice is as good. There, the requests
//!   that only the primary gets right exceed those that only the shadow gets right by at most [`TuneOptions::max_loss`]
//!   of all.
//! * **`min_score`** of the router: the least `t` at which the classifier's own routes, over all intents, have a
//!   precision of at least [`TuneOptions::min_precision`]. Requests below it are better rejected.
//!
//! A proposal is cautious. Rates are the upper ends of confidence intervals ([`TuneOptions::z`]): Wilson's (1927) for a
//! proportion, the normal approximation for the difference of paired proportions. With fewer than
//! [`TuneOptions::min_samples`] judged records there is none.
//!
//! The stream is biased: a request with a high score has a shadow only if it is flagged or a lane is fresh. So there
//! are few judged records at high scores, and a precision over "all above `t`" leans to the low end, where most errors
//! are. The estimate is too low, and `shadow_below` too high, rather than the other way round. A fresh lane's sample,
//! over all scores, corrects it.
//!
//! # Example
//!
//! ```
//! use l6_ensemble::tune::{Evidence, TuneOptions};
//!
//! let stream = br#"{"version":1,"time":0,"digest":"0","intent":"review"}"#;
//! let mut evidence = Evidence::default();
//! evidence.read(stream.as_slice())?;
//! let report = evidence.propose(&TuneOptions::default());
//! assert_eq!((report.lines.records, report.lines.torn), (0, 1), "the record is not complete");
//! # Ok::<(), std::io::Error>(())
//! ```

mod bins;
mod reader;
mod report;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bins::Bins;
pub use reader::{Lines, MAX_LINE_BYTES};
pub use report::{CurvePoint, IntentReport, Proposal, RouterReport, TuneOptions, TuneReport};

use crate::calibration::{CalibrationRecord, DecidedBy};

/// Maximum number of intents that are told apart.
pub const MAX_INTENTS: usize = 256;

/// Counts of a calibration stream, by intent and score. Memory does not depend on the length of the stream.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    lines: Lines,
    intents: BTreeMap<String, Bins>,
    /// Routes that the classifier decided, over all intents.
    classifier: Bins,
}

impl Evidence {
    /// Counts a record. Returns false for one whose score is not from 0 to 1, or whose intent is one too many; it
    /// counts nowhere.
    pub fn add(&mut self, record: &CalibrationRecord) -> bool {
        let score = record.score;
        let known = self.intents.contains_key(&record.intent);
        if !(0.0..=1.0).contains(&score) || !known && self.intents.len() == MAX_INTENTS {
            return false;
        }
        // The score is that of the first choice. Where another lane served, the primary's response is not the first
        // choice's, and the pair says nothing about the score.
        let shadow = record.shadow.as_ref().filter(|_| record.decided_by != DecidedBy::Fallback);
        let outcome = shadow.and_then(|shadow| shadow.agreement.outcome());
        self.intents.entry(record.intent.clone()).or_default().add(score, outcome);
        if record.decided_by == DecidedBy::Classifier {
            self.classifier.add(score, outcome);
        }
        true
    }

    /// Proposes thresholds.
    pub fn propose(&self, options: &TuneOptions) -> TuneReport {
        let intents = self.intents.iter();
        TuneReport {
            lines: self.lines.clone(),
            options: *options,
            intents: intents
                .map(|(name, bins)| (name.clone(), IntentReport::new(bins, options)))
                .collect(),
            router: RouterReport::new(&self.classifier, options),
        }
    }
}
