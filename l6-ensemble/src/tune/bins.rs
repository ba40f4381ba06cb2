//! Records counted by score, so that every threshold is a sum.

use crate::calibration::Outcome;

/// Number of steps from score 0 to 1. Thresholds are multiples of one step.
pub(super) const STEPS: usize = 1000;

/// Counts of records by score: bin `i` has the scores from threshold `i` up to threshold `i + 1`.
#[derive(Clone, Debug)]
pub(super) struct Bins(Vec<Counts>);

/// Counts of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All records.
    pub(super) records: u64,
    /// Records of which both responses have a verdict.
    pub(super) judged: u64,
    /// Judged records that the primary alone got right.
    pub(super) primary_only: u64,
    /// Judged records that the shadow alone got right: routing errors.
    pub(super) shadow_only: u64,
}

impl Default for Bins {
    fn default() -> Self {
        Self(vec![Counts::default(); STEPS + 1])
    }
}

impl Bins {
    /// Counts a record. The score is from 0 to 1.
    pub(super) fn add(&mut self, score: f32, outcome: Option<Outcome>) {
        let counts = &mut self.0[bin(score)];
        counts.records += 1;
        counts.judged += u64::from(outcome.is_some());
        counts.primary_only += u64::from(outcome == Some(Outcome::PrimaryOnly));
        counts.shadow_only += u64::from(outcome == Some(Outcome::ShadowOnly));
    }

    /// Counts of the records with a score of at least each threshold: `STEPS + 1` of them, the first of all records.
    pub(super) fn at_least(&self) -> Vec<Counts> {
        let mut sums: Vec<Counts> = self.0.iter().rev().scan(Counts::default(), sum).collect();
        sums.reverse();
        sums
    }

    /// Counts of the records with a score below each threshold: `STEPS + 1` of them, the first of none.
    pub(super) fn below(&self) -> Vec<Counts> {
        let none =
            std::iter::once(&Counts { records: 0, judged: 0, primary_only: 0, shadow_only: 0 });
        none.chain(&self.0[..STEPS]).scan(Counts::default(), sum).collect()
    }
}

fn sum(so_far: &mut Counts, counts: &Counts) -> Option<Counts> {
    so_far.records += counts.records;
    so_far.judged += counts.judged;
    so_far.primary_only += counts.primary_only;
    so_far.shadow_only += counts.shadow_only;
    Some(*so_far)
}

/// A threshold, as the f32 that a configuration with its decimal digits has.
pub(super) fn threshold(step: usize) -> f32 {
    (step as f64 / STEPS as f64) as f32
}

/// Greatest step whose threshold the score reaches.
fn bin(score: f32) -> usize {
    // The product is within one step of it; the comparison is the one that the router will make.
    let guess = ((score * STEPS as f32) as usize).min(STEPS);
    let candidates = (guess.saturating_sub(1)..=(guess + 1).min(STEPS)).rev();
    candidates.into_iter().find(|step| threshold(*step) <= score).unwrap_or(0)
}
