//! Random numbers of workloads, the same ones for the same seed on every machine.

use std::f64::consts::TAU;

use super::span::Span;

/// SplitMix64 (Steele, Lea and Flood 2014): a counter and a finaliser.
pub(in crate::cli) struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub(in crate::cli) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The numbers of a job of agents.
    pub(in crate::cli) fn of_job(seed: u64, number: usize) -> Self {
        Self::new(seed ^ (number as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = self.0;
        let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Below `n`; a remainder, as `n` is small beside 2^64.
    pub(in crate::cli) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Within a span, both ends included.
    pub(super) fn within(&mut self, span: Span) -> usize {
        span.from + self.below((span.to - span.from + 1) as u64) as usize
    }

    /// In `[0, 1)`.
    pub(in crate::cli) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In `[from, to)`.
    pub(in crate::cli) fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.uniform()
    }

    /// Of mean 1, as times between moments that know nothing of each other.
    pub(in crate::cli) fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }

    /// Of mean 0 and variance 1 (Box and Muller 1958, one of the pair).
    fn normal(&mut self) -> f64 {
        (2.0 * self.exponential()).sqrt() * (TAU * self.uniform()).cos()
    }

    /// Lognormal, with this median and this standard deviation of the logarithm.
    pub(in crate::cli) fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }

    /// Gamma of a shape, and mean 1: the variance is `1 / shape`. (Marsaglia and Tsang 2000; shapes below 1 are made
    /// from the one above, as they say.)
    pub(super) fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let lifted = self.gamma(shape + 1.0) * (shape + 1.0);
            return lifted * (1.0 - self.uniform()).powf(1.0 / shape) / shape;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            let accept = 0.5 * x * x + d - d * v + d * v.ln();
            if v > 0.0 && (1.0 - self.uniform()).ln() < accept {
                return d * v / shape;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn moments(mut draw: impl FnMut() -> f64, mean: f64, variance: f64) {
        let all: Vec<f64> = (0..40_000).map(|_| draw()).collect();
        let got = all.iter().sum::<f64>() / all.len() as f64;
        let spread = all.iter().map(|x| (x - got).powi(2)).sum::<f64>() / all.len() as f64;
        assert!((got - mean).abs() < 0.05, "mean {got}, not {mean}");
        assert!((spread / variance - 1.0).abs() < 0.1, "variance {spread}, not {variance}");
    }

    #[test]
    fn draws_have_the_moments_of_their_distributions() {
        let mut random = Random::new(7);
        moments(|| random.exponential(), 1.0, 1.0);
        moments(|| random.normal(), 0.0, 1.0);
        moments(|| random.lognormal(2.0, 0.5).ln(), 2.0_f64.ln(), 0.25);
        for shape in [0.25, 0.5, 1.0, 4.0, 100.0] {
            moments(|| random.gamma(shape), 1.0, 1.0 / shape);
        }
    }

    #[test]
    fn what_is_drawn_within_a_span_reaches_both_ends() {
        let mut random = Random::new(0);
        let drawn: Vec<usize> = (0..200).map(|_| random.within(Span { from: 3, to: 9 })).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&9)));
    }
}
