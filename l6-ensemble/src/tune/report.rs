//! Curves and proposals.

use std::collections::BTreeMap;

use serde::Serialize;

use super::bins::{Bins, Counts, STEPS, threshold};
use super::reader::Lines;

/// What a proposal has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TuneOptions {
    /// Maximum fraction of routing errors above `shadow_below`.
    pub max_error: f64,
    /// Maximum fraction of requests that a spill below `spill_below` turns from right to wrong, on balance.
    pub max_loss: f64,
    /// Minimum precision of the classifier's routes above `min_score`.
    pub min_precision: f64,
    /// Minimum number of judged records that a proposal follows from.
    pub min_samples: u64,
    /// Standard deviations of the confidence intervals: 1.645 for one-sided 95 percent.
    pub z: f64,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self { max_error: 0.02, max_loss: 0.01, min_precision: 0.9, min_samples: 50, z: 1.645 }
    }
}

/// Proposals, and the curves that they follow from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TuneReport {
    /// Lines that were read.
    pub lines: Lines,
    /// What the proposals have to reach.
    pub options: TuneOptions,
    /// Report of each intent.
    pub intents: BTreeMap<String, IntentReport>,
    /// Report of the classifier's routes, over all intents.
    pub router: RouterReport,
}

/// Proposals for one intent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IntentReport {
    /// Number of records.
    pub records: u64,
    /// Number of judged records.
    pub judged: u64,
    /// Number of routing errors.
    pub routing_errors: u64,
    /// Score below which a request should have a shadow.
    pub shadow_below: Proposal,
    /// Score below which a request may spill.
    pub spill_below: Proposal,
    /// Precision and coverage by threshold, in ascending order.
    pub curve: Vec<CurvePoint>,
}

/// Proposal for the router.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouterReport {
    /// Number of records that the classifier decided.
    pub records: u64,
    /// Number of judged records.
    pub judged: u64,
    /// Number of routing errors.
    pub routing_errors: u64,
    /// Score below which the classifier should reject.
    pub min_score: Proposal,
    /// Precision and coverage by threshold, in ascending order.
    pub curve: Vec<CurvePoint>,
}

/// A threshold, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposal {
    /// The threshold.
    pub value: Option<f32>,
    /// What it follows from, or what is missing.
    pub why: String,
}

/// A point of a curve: the requests with a score of at least `threshold`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The threshold.
    pub threshold: f32,
    /// Fraction of all records that they are.
    pub coverage: f64,
    /// Fraction of their judged records that are no routing errors; `None` without a judged record.
    pub precision: Option<f64>,
    /// Number of their judged records.
    pub judged: u64,
}

impl IntentReport {
    pub(super) fn new(bins: &Bins, options: &TuneOptions) -> Self {
        let (from, below) = (bins.at_least(), bins.below());
        let all = from[0];
        Self {
            records: all.records,
            judged: all.judged,
            routing_errors: all.shadow_only,
            shadow_below: Proposal::least(&from, options.max_error, options),
            spill_below: Proposal::spill(&below, options),
            curve: curve(&from),
        }
    }
}

impl RouterReport {
    pub(super) fn new(bins: &Bins, options: &TuneOptions) -> Self {
        let from = bins.at_least();
        let all = from[0];
        Self {
            records: all.records,
            judged: all.judged,
            routing_errors: all.shadow_only,
            min_score: Proposal::least(&from, 1.0 - options.min_precision, options),
            curve: curve(&from),
        }
    }
}

impl Proposal {
    fn missing(judged: u64, options: &TuneOptions) -> Self {
        let needed = options.min_samples;
        let why = format!(
            "{judged} judged requests are too few, a proposal needs {needed}: collect more shadows with verdicts"
        );
        Self { value: None, why }
    }

    /// The least threshold above which at most `max_error` of the judged records are routing errors.
    fn least(from: &[Counts], max_error: f64, options: &TuneOptions) -> Self {
        let enough = |counts: &Counts| counts.judged >= options.min_samples.max(1);
        let Some(all) = from.first().filter(|counts| enough(counts)) else {
            return Self::missing(from.first().map_or(0, |all| all.judged), options);
        };
        let bound = |counts: &Counts| wilson_upper(counts.shadow_only, counts.judged, options.z);
        let found = from.iter().position(|counts| enough(counts) && bound(counts) <= max_error);
        match found.and_then(|step| Some((step, from.get(step)?))) {
            Some((step, counts)) => {
                let (errors, judged) = (counts.shadow_only, counts.judged);
                let most = 100.0 * bound(counts);
                let why = format!(
                    "of {judged} judged requests with at least this score, {errors} are routing errors; the rate is at \
                     most {most:.1} %, with the uncertainty of so many requests"
                );
                Self { value: Some(threshold(step)), why }
            }
            None => Self {
                value: None,
                why: format!(
                    "of all {} judged requests, {} are routing errors, so the rate may be up to {:.1} %, and no score \
                     separates requests with a rate of at most {:.1} %: collect more judged requests, or allow more \
                     errors",
                    all.judged,
                    all.shadow_only,
                    100.0 * bound(all),
                    100.0 * max_error
                ),
            },
        }
    }

    /// The greatest threshold below which the second choice loses at most `max_loss` of the requests.
    fn spill(below: &[Counts], options: &TuneOptions) -> Self {
        let all = below.last().copied().unwrap_or_default();
        let enough = |counts: &Counts| counts.judged >= options.min_samples.max(1);
        if !enough(&all) {
            return Self::missing(all.judged, options);
        }
        let bound = |counts: &Counts| loss_upper(counts, options.z);
        let found = below.iter().rposition(|c| enough(c) && bound(c) <= options.max_loss);
        match found.and_then(|step| Some((step, below.get(step)?))) {
            Some((step, Counts { judged, primary_only, shadow_only, .. })) => {
                let why = format!(
                    "of {judged} judged requests with a lower score, the primary alone is right in {primary_only} and \
                     the shadow alone in {shadow_only}"
                );
                Self { value: Some(threshold(step)), why }
            }
            None => Self {
                value: None,
                why: format!(
                    "the second choice is worse at all scores: of {} judged requests, the primary alone is right in {} \
                     and the shadow alone in {}",
                    all.judged, all.primary_only, all.shadow_only
                ),
            },
        }
    }
}

/// Upper end of Wilson's score interval for a proportion (Wilson 1927).
fn wilson_upper(count: u64, total: u64, z: f64) -> f64 {
    let n = total as f64;
    let p = count as f64 / n;
    let z2 = z * z;
    let centre = p + z2 / (2.0 * n);
    let spread = z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    (centre + spread) / (1.0 + z2 / n)
}

/// Upper end of the normal interval for the difference of two paired proportions: the fraction that the primary alone
/// gets right less the fraction that the shadow alone gets right.
fn loss_upper(counts: &Counts, z: f64) -> f64 {
    let n = counts.judged as f64;
    let (b, c) = (counts.primary_only as f64, counts.shadow_only as f64);
    let difference = (b - c) / n;
    difference + z * ((b + c) / n - difference * difference).max(0.0).sqrt() / n.sqrt()
}

/// A point for each hundredth of a score.
fn curve(from: &[Counts]) -> Vec<CurvePoint> {
    let all = from.first().map_or(0, |all| all.records).max(1) as f64;
    let points = from.iter().enumerate().step_by(STEPS / 100);
    points
        .map(|(step, counts)| CurvePoint {
            threshold: threshold(step),
            coverage: counts.records as f64 / all,
            precision: (counts.judged > 0)
                .then(|| 1.0 - counts.shadow_only as f64 / counts.judged as f64),
            judged: counts.judged,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_textbook() {
        // Agresti and Coull 1998: 0 of 20 at 95 percent, two-sided, ends at 0.161.
        assert!((wilson_upper(0, 20, 1.96) - 0.161).abs() < 5e-4);
        assert!((wilson_upper(10, 20, 1.96) - 0.701).abs() < 5e-4);
        let counts = Counts { records: 0, judged: 100, primary_only: 20, shadow_only: 10 };
        // 0.1 + 1.96 * sqrt((0.3 - 0.01) / 100)
        assert!((loss_upper(&counts, 1.96) - 0.20555).abs() < 1e-4);
    }
}
