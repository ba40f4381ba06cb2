//! Drafts of a simulated drafter, which are right as often as is said.

use serde::Serialize;

use super::fake::Script;
use super::lengths::{Dice, Purpose};

/// A request's output with drafts, each of which is right with the same probability, whatever became of the others.
#[derive(Debug)]
pub(super) struct Drafting<S> {
    pub output: S,
    /// Number of drafts behind each token.
    pub drafts: usize,
    /// Probability that a draft is right.
    pub acceptance_rate: f64,
    /// Number of the request: other requests have other luck.
    pub id: u64,
}

impl<S: Script> Script for Drafting<S> {
    fn token(&self, n: usize) -> Option<u32> {
        self.output.token(n)
    }

    fn drafts(&self, n: usize, out: &mut Vec<u32>) {
        let drafts = (n..).map_while(|n| Some((n, self.output.token(n)?))).take(self.drafts);
        out.extend(drafts.map(|(n, token)| token ^ u32::from(!self.is_right(n))));
    }
}

impl<S> Drafting<S> {
    /// Whether the draft of the `n`-th output token is right: the same in every run.
    fn is_right(&self, n: usize) -> bool {
        Dice::new(self.id).uniform(Purpose::Draft, n as u64) < self.acceptance_rate
    }
}

/// Drafts of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpeculationReport {
    /// Drafts that were computed.
    pub draft_tokens: u64,
    /// Drafts that were accepted. A draft behind a wrong one is never accepted.
    pub accepted_tokens: u64,
    /// Output tokens as a multiple of the rows that sampled.
    pub tokens_per_row: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafting(acceptance_rate: f64) -> Drafting<Vec<u32>> {
        Drafting { output: (0..10_000).collect(), drafts: 4, acceptance_rate, id: 7 }
    }

    #[test]
    fn drafts_are_right_as_often_as_is_said() {
        for rate in [0.0, 0.3, 0.9, 1.0] {
            let script = drafting(rate);
            let right = (0..10_000).filter(|n| script.is_right(*n)).count() as f64 / 1e4;
            assert!((right - rate).abs() < 0.02, "{right} of the drafts, and not {rate}");
        }
    }

    #[test]
    fn there_are_as_many_as_output_follows() {
        let mut out = Vec::new();
        drafting(1.0).drafts(9_998, &mut out);
        assert_eq!(out, [9_998, 9_999]);
        out.clear();
        drafting(0.0).drafts(2, &mut out);
        assert_eq!(out, [3, 2, 5, 4], "none is right");
    }
}
