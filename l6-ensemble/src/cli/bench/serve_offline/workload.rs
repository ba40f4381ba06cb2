//! The requests: lengths, tokens and moments, all from one seed.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use super::{Span, refused};
use crate::cli::error::CliError;

/// A request and its moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Arriving {
    /// Seconds from the beginning.
    pub arrival: f64,
    /// Its prompt.
    pub tokens: Vec<u32>,
    /// Tokens of its answer.
    pub output_tokens: usize,
}

/// Draw a workload. The same arguments draw the same one.
pub(super) fn draw(
    requests: usize,
    input: Span,
    output: Span,
    rate: Option<f64>,
    vocab: usize,
    seed: u64,
) -> Vec<Arriving> {
    let mut random = Random(seed);
    let mut arrival = 0.0;
    let request = |i: usize| {
        let (prompt, output_tokens) = (random.within(input), random.within(output));
        let tokens = (0..prompt).map(|_| random.below(vocab as u64) as u32).collect();
        // Moments that know nothing of each other lie apart by times that are distributed exponentially.
        if let Some(rate) = rate.filter(|_| i > 0) {
            arrival -= (1.0 - random.uniform()).ln() / rate;
        }
        Arriving { arrival, tokens, output_tokens }
    };
    (0..requests).map(request).collect()
}

/// Write a workload, a request a line, so that others can be given the same.
pub(super) fn dump(path: &Path, all: &[Arriving]) -> Result<(), CliError> {
    let file = File::create(path).map_err(|why| refused(path, why))?;
    let mut file = BufWriter::new(file);
    for arriving in all {
        let written = serde_json::to_writer(&mut file, arriving).map_err(std::io::Error::from);
        written.and_then(|()| file.write_all(b"\n")).map_err(|why| refused(path, why))?;
    }
    file.flush().map_err(|why| refused(path, why))
}

/// SplitMix64 (Steele, Lea and Flood 2014): a counter and a finaliser.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = self.0;
        let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Below `n`; a remainder, as `n` is small beside 2^64.
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    fn within(&mut self, span: Span) -> usize {
        span.from + self.below((span.to - span.from + 1) as u64) as usize
    }

    /// In `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { from: 3, to: 9 };

    #[test]
    fn a_workload_follows_from_its_seed() {
        let draw = |seed| draw(50, SPAN, SPAN, Some(4.0), 100, seed);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn lengths_and_tokens_are_in_their_range_and_reach_both_ends() {
        let all = draw(500, SPAN, Span { from: 1, to: 1 }, None, 7, 0);
        let lengths = || all.iter().map(|a| a.tokens.len());
        assert_eq!((lengths().min(), lengths().max()), (Some(3), Some(9)));
        assert!(all.iter().all(|a| a.output_tokens == 1 && a.arrival == 0.0));
        let tokens = || all.iter().flat_map(|a| &a.tokens);
        assert_eq!((tokens().min(), tokens().max()), (Some(&0), Some(&6)));
    }

    #[test]
    fn requests_come_one_after_the_other_at_the_rate_that_was_asked_for() {
        let all = draw(4000, SPAN, SPAN, Some(8.0), 7, 5);
        assert!(all.is_sorted_by(|a, b| a.arrival <= b.arrival) && all[0].arrival == 0.0);
        let mean = all[3999].arrival / 3999.0;
        assert!((mean - 0.125).abs() < 0.01, "{mean}");
    }
}
