//! Durations, and the value that a share of them does not exceed.
//!
//! Percentiles are exact: those of all values, by the nearest rank. That takes little memory, because of requests that
//! share a step all wait equally long for their next tokens: equal values in a row are kept once, with their number,
//! and now and then those that are not in a row are brought together.

/// Durations in seconds.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    /// Values and how often.
    runs: Vec<(f64, u64)>,
    count: u64,
    sum: f64,
    /// Bring equal values together when there are so many.
    limit: usize,
    sorted: bool,
}

impl Durations {
    /// One more.
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

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// The smallest value that at least `percent` of 100 do not exceed; the smallest of all for 0, the largest for 100.
    /// `None` if there are none.
    pub fn percentile(&mut self, percent: f64) -> Option<f64> {
        self.sort();
        // exercise l5.clock
        // The value's number among all, from 1.
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

    /// In order, equal values together.
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
