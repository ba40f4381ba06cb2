//! The requests: lengths, tokens and arrivals, all from one seed.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use super::refused;
use crate::cli::bench::random::Random;
use crate::cli::bench::span::Span;
use crate::cli::error::CliError;

/// A request and its arrival.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Arriving {
    /// Seconds from the beginning.
    pub arrival: f64,
    /// Its prompt.
    pub tokens: Vec<u32>,
    /// Number of tokens of its completion.
    pub output_tokens: usize,
}

/// Draws a workload. The same arguments give the same workload.
pub(super) fn draw(
    requests: usize,
    input: Span,
    output: Span,
    rate: Option<f64>,
    vocab: usize,
    seed: u64,
) -> Vec<Arriving> {
    let mut random = Random::new(seed);
    let mut arrival = 0.0;
    let request = |i: usize| {
        let (prompt, output_tokens) = (random.within(input), random.within(output));
        let tokens = (0..prompt).map(|_| random.below(vocab as u64) as u32).collect();
        // Moments that know nothing of each other lie apart by times that are distributed exponentially.
        if let Some(rate) = rate.filter(|_| i > 0) {
            arrival += random.exponential() / rate;
        }
        Arriving { arrival, tokens, output_tokens }
    };
    (0..requests).map(request).collect()
}

/// Writes a workload, one request per line, so that other engines can run the same.
pub(super) fn dump(path: &Path, all: &[Arriving]) -> Result<(), CliError> {
    let file = File::create(path).map_err(|why| refused(path, why))?;
    let mut file = BufWriter::new(file);
    for arriving in all {
        let written = serde_json::to_writer(&mut file, arriving).map_err(std::io::Error::from);
        written.and_then(|()| file.write_all(b"\n")).map_err(|why| refused(path, why))?;
    }
    file.flush().map_err(|why| refused(path, why))
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
