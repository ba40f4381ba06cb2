//! Output lengths that a lane has seen, as fractions of `max_tokens`.

/// Number of bins of the histogram.
const BINS: usize = 32;

/// Factor by which the weight of an output shrinks with each later one: about the last 500 outputs count.
const DECAY: f64 = 0.998;

/// Number of outputs below which nothing is said about lengths, and `max_tokens` is expected.
const MIN_OUTPUTS: u64 = 16;

/// Distribution of output lengths, learned from the requests that have ended.
///
/// A client states `max_tokens`, an upper bound that most outputs do not reach. The lane learns the ratio of the two: a
/// histogram over (0, 1] in which older outputs count less. Until it has seen enough outputs, the bound is expected,
/// which makes early quotes too long and never too short.
///
/// # Example
///
/// ```
/// use l6_ensemble::quote::OutputLengths;
///
/// let mut lengths = OutputLengths::default();
/// assert_eq!(lengths.expected(200), 200.0, "nothing is known: the upper bound");
/// (0..100).for_each(|_| lengths.add(50, 200));
/// assert!((lengths.expected(400) - 100.0).abs() < 1e-9, "outputs take a quarter of max_tokens");
/// ```
#[derive(Clone, Debug, Default)]
pub struct OutputLengths {
    /// Weight of each bin, and weighted sum of its ratios.
    bins: [(f64, f64); BINS],
    count: u64,
}

impl OutputLengths {
    /// Adds the output of a request that has ended by itself, or has reached `max_tokens`. One that was aborted says
    /// nothing about lengths.
    pub fn add(&mut self, output_tokens: usize, max_tokens: usize) {
        let ratio = (output_tokens as f64 / max_tokens.max(1) as f64).clamp(0.0, 1.0);
        for (weight, sum) in &mut self.bins {
            *weight *= DECAY;
            *sum *= DECAY;
        }
        let bin = ((ratio * BINS as f64).ceil() as usize).clamp(1, BINS) - 1;
        self.bins[bin].0 += 1.0;
        self.bins[bin].1 += ratio;
        self.count += 1;
    }

    /// Whether enough outputs have been seen.
    fn is_known(&self) -> bool {
        self.count >= MIN_OUTPUTS
    }

    /// Mean output tokens of a request with this `max_tokens`.
    pub fn expected(&self, max_tokens: usize) -> f64 {
        if !self.is_known() {
            return max_tokens as f64;
        }
        let (weights, sums) = self.totals(0.0);
        (sums / weights * max_tokens as f64).max(1.0)
    }

    /// Output tokens that a fraction `quantile` of requests with this `max_tokens` do not exceed.
    pub fn quantile(&self, max_tokens: usize, quantile: f64) -> f64 {
        self.remaining(max_tokens, 0, quantile)
    }

    /// Tokens that are still to come of a request that has `so_far` output tokens: the quantile among the outputs that
    /// are longer. At least 1.
    pub fn remaining(&self, max_tokens: usize, so_far: usize, quantile: f64) -> f64 {
        let most = max_tokens as f64;
        let at_most = (most - so_far as f64).max(1.0);
        if !self.is_known() {
            return at_most;
        }
        let had = so_far as f64 / most.max(1.0);
        let (weights, _) = self.totals(had);
        let mut left = quantile * weights;
        for (weight, sum) in self.longer(had) {
            left -= weight;
            if left <= 1e-9 * weights {
                return (sum / weight * most - so_far as f64).clamp(1.0, at_most);
            }
        }
        at_most
    }

    /// Bins of outputs that are longer than this ratio.
    fn longer(&self, ratio: f64) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.bins.iter().copied().filter(move |(weight, sum)| *weight > 0.0 && sum / weight > ratio)
    }

    fn totals(&self, ratio: f64) -> (f64, f64) {
        self.longer(ratio).fold((0.0, 0.0), |(w, s), (weight, sum)| (w + weight, s + sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_expected_until_enough_outputs_are_known() {
        let mut lengths = OutputLengths::default();
        (1..MIN_OUTPUTS).for_each(|_| lengths.add(10, 100));
        assert_eq!((lengths.expected(100), lengths.remaining(100, 40, 0.5)), (100.0, 60.0));
        lengths.add(10, 100);
        assert!((lengths.expected(100) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_request_that_has_outlived_the_short_outputs_is_expected_to_be_a_long_one() {
        let mut lengths = OutputLengths::default();
        for _ in 0..500 {
            lengths.add(10, 100);
            lengths.add(90, 100);
        }
        assert!((lengths.expected(100) - 50.0).abs() < 1.0);
        assert!((lengths.quantile(100, 0.4) - 10.0).abs() < 1e-9, "the shorter kind");
        assert!((lengths.quantile(100, 0.9) - 90.0).abs() < 1e-9, "the longer kind");
        assert!(
            (lengths.remaining(100, 30, 0.1) - 60.0).abs() < 1e-9,
            "only the longer kind is left"
        );
        assert_eq!(lengths.remaining(100, 95, 0.5), 5.0, "longer than all before: up to the bound");
        assert_eq!(lengths.remaining(100, 100, 0.5), 1.0);
    }

    #[test]
    fn new_lengths_displace_old_ones() {
        let mut lengths = OutputLengths::default();
        (0..3000).for_each(|_| lengths.add(80, 100));
        (0..3000).for_each(|_| lengths.add(20, 100));
        assert!((lengths.expected(100) - 20.0).abs() < 1.0, "{}", lengths.expected(100));
    }
}
