//! The last pauses of a tool: how long one takes that has lasted for a while.

use std::collections::VecDeque;

/// The last durations of something, in seconds: a ring of limited size.
#[derive(Clone, Debug)]
pub(super) struct Gaps {
    capacity: usize,
    /// In the order in which they were added.
    recent: VecDeque<f64>,
    /// In ascending order.
    sorted: Vec<f64>,
    /// For each of `sorted`, the sum from there on.
    sums: Vec<f64>,
}

impl Gaps {
    /// Creates an empty ring.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, recent: VecDeque::new(), sorted: Vec::new(), sums: Vec::new() }
    }

    /// Adds a duration; the oldest one goes if there are too many. A negative one counts as 0, since clocks of clients
    /// and of the engine differ.
    pub(super) fn add(&mut self, seconds: f64) {
        if !seconds.is_finite() {
            return;
        }
        let seconds = seconds.max(0.0);
        // exercise l5.gaps
        if self.recent.len() == self.capacity
            && let Some(oldest) = self.recent.pop_front()
        {
            self.sorted.remove(self.sorted.partition_point(|gap| *gap < oldest));
        }
        self.recent.push_back(seconds);
        self.sorted.insert(self.sorted.partition_point(|gap| *gap <= seconds), seconds);
        self.sums.clear();
        self.sums.resize(self.sorted.len(), 0.0);
        let mut sum = 0.0;
        for (to, gap) in self.sums.iter_mut().zip(&self.sorted).rev() {
            sum += gap;
            *to = sum;
        }
        // end of exercise
    }

    /// Number of durations.
    pub(super) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Mean; `None` without durations.
    pub(super) fn mean(&self) -> Option<f64> {
        Some(self.sums.first()? / self.len() as f64)
    }

    /// The durations in ascending order.
    pub(super) fn sorted(&self) -> &[f64] {
        &self.sorted
    }

    /// The shortest duration above `age`.
    pub(super) fn next_above(&self, age: f64) -> Option<f64> {
        self.sorted.get(self.sorted.partition_point(|gap| *gap <= age)).copied()
    }

    /// Expected rest of a pause that has lasted for `age` seconds. `n` of the recorded pauses were longer, and their
    /// rests count once each; one further rest is `age` itself, which is all that is known of a tool without records
    /// (as in the problem of ski rental, where one rents until the rents have reached the price):
    ///
    /// ```text
    /// E(age) = (age + sum of (gap - age) over gaps > age) / (1 + n)
    /// ```
    pub(super) fn expected_rest(&self, age: f64) -> f64 {
        // exercise l5.rest
        let from = self.sorted.partition_point(|gap| *gap <= age);
        let longer = (self.len() - from) as f64;
        let rests = self.sums.get(from).map_or(0.0, |sum| sum - longer * age);
        (age + rests) / (1.0 + longer)
        // end of exercise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(capacity: usize, all: &[f64]) -> Gaps {
        let mut gaps = Gaps::new(capacity);
        all.iter().for_each(|gap| gaps.add(*gap));
        gaps
    }

    #[test]
    fn the_rest_of_a_pause_follows_from_longer_ones() {
        let gaps = gaps(8, &[4.0, 1.0, 10.0]);
        assert_eq!(gaps.expected_rest(0.0), (1.0 + 4.0 + 10.0) / 4.0);
        assert_eq!(gaps.expected_rest(2.0), (2.0 + 2.0 + 8.0) / 3.0, "4 and 10 are longer");
        assert_eq!(gaps.expected_rest(4.0), (4.0 + 6.0) / 2.0, "a pause of 4 s is over");
        assert_eq!(gaps.expected_rest(25.0), 25.0, "none is longer");
        assert_eq!(Gaps::new(8).expected_rest(3.0), 3.0, "without records");
    }

    #[test]
    fn the_oldest_pause_is_forgotten() {
        let gaps = gaps(3, &[9.0, 1.0, 9.0, 2.0, 5.0]);
        assert_eq!(gaps.sorted(), [2.0, 5.0, 9.0]);
        assert_eq!(gaps.mean(), Some(16.0 / 3.0));
        assert_eq!([gaps.next_above(2.0), gaps.next_above(9.0)], [Some(5.0), None]);
    }

    #[test]
    fn of_equal_pauses_one_is_forgotten_and_sums_are_those_of_the_rest() {
        let gaps = gaps(4, &[3.0, 3.0, 0.5, 3.0, 8.0]);
        assert_eq!((gaps.sorted(), gaps.len()), (&[0.5, 3.0, 3.0, 8.0][..], 4));
        assert_eq!(gaps.sums, [14.5, 14.0, 11.0, 8.0], "each with all longer ones");
    }

    #[test]
    fn a_pause_that_is_no_duration_is_left_out_or_counts_as_none() {
        let gaps = gaps(3, &[f64::NAN, -4.0, f64::INFINITY]);
        assert_eq!(gaps.sorted(), [0.0]);
        assert_eq!(Gaps::new(1).mean(), None);
    }
}
