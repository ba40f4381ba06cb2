//! A histogram of durations of bounded size.

use std::fmt;

use serde::Serialize;

/// Ratio of the bounds of a bucket: percentiles are within half a percent.
const RATIO: f64 = 1.01;

/// Lower bound of the first bucket, in seconds.
const LEAST: f64 = 1e-6;

/// Durations in seconds, in buckets of a hundredth of their size: from a microsecond to 32 years there are about 3,500.
///
/// # Example
///
/// ```
/// let mut histogram = l6_ensemble::sim::Histogram::default();
/// (1..=100).for_each(|n| histogram.add(f64::from(n)));
/// let percentiles = histogram.percentiles().unwrap();
/// assert!((percentiles.p50 / 50.0 - 1.0).abs() < 0.01);
/// ```
#[derive(Clone, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
}

/// Percentiles in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Histogram {
    /// Adds a duration.
    pub fn add(&mut self, seconds: f64) {
        let bucket = ((seconds.clamp(LEAST, 1e9) / LEAST).ln() / RATIO.ln()) as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Percentiles; `None` without durations.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let at = |percent| self.percentile(percent);
        Some(Percentiles { p50: at(50.0)?, p95: at(95.0)?, p99: at(99.0)? })
    }

    fn percentile(&self, percent: f64) -> Option<f64> {
        let rank = (percent * self.count as f64 / 100.0).ceil().max(1.0) as u64;
        let mut so_far = 0;
        let bucket = self.counts.iter().position(|count| {
            so_far += count;
            so_far >= rank
        })?;
        Some(LEAST * RATIO.powf(bucket as f64 + 0.5))
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percentiles = self.percentiles();
        f.debug_struct("Histogram").field("count", &self.count).field("at", &percentiles).finish()
    }
}
