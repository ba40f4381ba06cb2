//! Durations and their percentiles.
//!
//! Percentiles are exact (nearest rank over all values). Little memory is needed, because requests that share a step
//! wait equally long for their next tokens: equal values in a row are stored once with their count, and from time to
//! time all equal values are merged.

/// A multiset of durations, in seconds.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    /// Values and their counts.
    runs: Vec<(f64, u64)>,
    count: u64,
    sum: f64,
    /// Number of runs at which equal values are merged.
    limit: usize,
    sorted: bool,
}

impl Durations {
    /// Adds a duration.
    pub fn add(&mut self, seconds: f64) {
        self.count += 1;
        self.sum += seconds;
        self.sorted = false;
        match self.runs.last_mut() {
            Some((value, times)) if *value == seconds => *times += 1,
            _ => self.runs.push((seconds, 1)),
        }
        if self.runs.len() > self.limit.max(1 << 16) {
            self.sort();
            self.limit = 2 * self.runs.len();
        }
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Mean of the durations.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Percentile: the smallest value that at least `percent` of 100 do not exceed; the smallest of all for 0, the
    /// largest for 100. `None` without values.
    pub fn percentile(&mut self, percent: f64) -> Option<f64> {
        self.sort();
        // exercise l5.clock
        // Rank of the value among all, from 1.
        let rank = (percent * self.count as f64 / 100.0).ceil().max(1.0) as u64;
        let mut so_far = 0;
        for (value, times) in &self.runs {
            so_far += times;
            if so_far >= rank {
                return Some(*value);
            }
        }
        None
        // end of exercise
    }

    /// Sorts the values and merges equal ones.
    fn sort(&mut self) {
        if std::mem::replace(&mut self.sorted, true) {
            return;
        }
        self.runs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        self.runs.dedup_by(|next, before| {
            let equal = next.0 == before.0;
            if equal {
                before.1 += next.1;
            }
            equal
        });
    }
}

impl FromIterator<f64> for Durations {
    fn from_iter<I: IntoIterator<Item = f64>>(seconds: I) -> Self {
        let mut all = Self::default();
        seconds.into_iter().for_each(|seconds| all.add(seconds));
        all
    }
}
