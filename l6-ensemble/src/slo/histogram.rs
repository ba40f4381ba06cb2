//! Counts of latencies in buckets whose bounds grow geometrically, as in HdrHistogram and DDSketch (Masson et al.
//! 2019).

use serde::Serialize;

/// Shortest time that differs from 0, in seconds.
const MIN_SECONDS: f64 = 1e-5;

/// Ratio of the times of a bucket to those of the one below. A percentile is off by at most half of it: 2.5 percent.
const BUCKET_RATIO: f64 = 1.05;

/// Number of buckets: times up to `MIN_SECONDS * BUCKET_RATIO^(NUM_BUCKETS - 1)`, which is more than twenty minutes.
/// Longer times count in the last bucket.
pub(super) const NUM_BUCKETS: usize = 384;

/// Latencies of one kind in one minute. Memory is constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Histogram(Box<[u32; NUM_BUCKETS]>);

impl Default for Histogram {
    fn default() -> Self {
        Self(Box::new([0; NUM_BUCKETS]))
    }
}

impl Histogram {
    /// Counts a time. NaN is no time and is left out.
    pub(super) fn count(&mut self, seconds: f64) {
        if !seconds.is_nan() {
            self.add(bucket(seconds), 1);
        }
    }

    /// Adds `n` to a bucket. A number beyond the last bucket counts in the last one.
    pub(super) fn add(&mut self, bucket: usize, n: u32) {
        if let Some(count) = self.0.get_mut(bucket.min(NUM_BUCKETS - 1)) {
            *count = count.saturating_add(n);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }

    /// The buckets that are not empty, with their counts.
    pub(super) fn filled(&self) -> impl Iterator<Item = (usize, u32)> {
        self.0.iter().copied().enumerate().filter(|(_, n)| *n > 0)
    }
}

/// Bucket of a time: the one whose time is nearest in ratio.
fn bucket(seconds: f64) -> usize {
    // exercise l6.slo
    let steps = (seconds.max(MIN_SECONDS) / MIN_SECONDS).ln() / BUCKET_RATIO.ln();
    (steps.round() as usize).min(NUM_BUCKETS - 1)
    // end of exercise
}

/// Percentiles of the latencies in a window, in milliseconds, by nearest rank. They are `None` without a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Number of samples.
    pub count: u64,
    /// Median.
    pub p50: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

impl Percentiles {
    /// Percentiles of all samples of several minutes.
    pub(super) fn of<'a>(minutes: impl Iterator<Item = &'a Histogram>) -> Self {
        // exercise l6.slo
        let mut sums = [0_u64; NUM_BUCKETS];
        for minute in minutes {
            sums.iter_mut().zip(minute.0.iter()).for_each(|(sum, n)| *sum += u64::from(*n));
        }
        let count: u64 = sums.iter().sum();
        let at = |share: f64| {
            let rank = ((share * count as f64).ceil() as u64).max(1);
            let mut seen = 0;
            let bucket = sums.iter().position(|n| {
                seen += n;
                seen >= rank
            })?;
            Some(1e3 * MIN_SECONDS * BUCKET_RATIO.powi(bucket as i32))
        };
        Self { count, p50: at(0.5), p95: at(0.95), p99: at(0.99) }
        // end of exercise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_times_within_half_a_ratio() {
        for ms in [0.01, 0.5, 3.0, 47.0, 300.0, 12_345.0, 600_000.0] {
            let at = MIN_SECONDS * BUCKET_RATIO.powi(bucket(ms / 1e3) as i32) * 1e3;
            assert!((at / ms).ln().abs() <= BUCKET_RATIO.ln() / 2.0 + 1e-12, "{ms} as {at}");
        }
    }

    #[test]
    fn a_percentile_is_the_sample_of_the_nearest_rank() {
        let minute = |times: &[f64]| {
            let mut minute = Histogram::default();
            times.iter().for_each(|ms| minute.count(ms / 1e3));
            minute
        };
        let near = |got: Option<f64>, want: f64| {
            assert!(got.is_some_and(|got| (got / want - 1.0).abs() < 0.026), "{got:?} for {want}");
        };
        // Ranks of 50%, 95% and 99% of 4 samples: 2, 4 and 4, whatever minutes they came in.
        let minutes = [minute(&[80.0, 10.0]), minute(&[]), minute(&[40.0, 20.0])];
        let of = Percentiles::of(minutes.iter());
        assert_eq!(of.count, 4);
        near(of.p50, 20.0);
        near(of.p95, 80.0);
        near(of.p99, 80.0);
        // Of 100 samples they are those of ranks 50, 95 and 99.
        let hundred = [vec![10.0; 90], vec![40.0; 8], vec![80.0; 2]].concat();
        let of = Percentiles::of([minute(&hundred)].iter());
        near(of.p50, 10.0);
        near(of.p95, 40.0);
        near(of.p99, 80.0);
        // The greatest of 20 is beyond 95% of them, and that of 200 beyond 99%.
        let mut times = vec![10.0; 198];
        times.extend([40.0, 80.0]);
        let of = Percentiles::of([minute(&times)].iter());
        near(of.p95, 10.0);
        near(of.p99, 10.0);
        times.truncate(20);
        times[3] = 500.0;
        near(Percentiles::of([minute(&times)].iter()).p95, 10.0);
        near(Percentiles::of([minute(&[7.0])].iter()).p50, 7.0);
        assert_eq!(Percentiles::of([].iter()), Percentiles::default());
    }

    #[test]
    fn times_beyond_all_buckets_count_in_the_first_or_last() {
        let mut times = Histogram::default();
        for seconds in [-1.0, 0.0, f64::INFINITY, 1e9, f64::NAN] {
            times.count(seconds);
        }
        let filled: Vec<_> = times.filled().collect();
        assert_eq!(filled, [(0, 2), (NUM_BUCKETS - 1, 2)]);
    }
}
