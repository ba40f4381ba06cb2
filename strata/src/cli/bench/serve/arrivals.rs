//! When requests are sent.

use crate::cli::bench::random::Random;

/// What decides when a request is sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Load {
    /// Open loop: each request at its time, in seconds from the beginning, however fast the server is. Independent
    /// users send like this, and only this load shows how a queue grows.
    Open(Vec<f64>),
    /// Closed loop: this many requests are in flight, and each that ends starts the next one.
    Closed(usize),
}

/// Arrival times at a rate, with gamma distributed gaps. Burstiness 1 is a Poisson process; lower values are burstier
/// (the variance of a gap is `1 / burstiness` of its squared mean), higher values more even. The first request is sent
/// at once.
pub(in crate::cli::bench) fn moments(
    requests: usize,
    rate: f64,
    burstiness: f64,
    seed: u64,
) -> Vec<f64> {
    // Independent of the numbers that prompts are drawn from.
    let mut random = Random::new(seed ^ 0x6d6f_6d65_6e74_7321);
    let mut at = 0.0;
    let mut moment = |i: usize| {
        if i > 0 {
            // A gamma of shape 1 is an exponential, and that is quicker to draw.
            let gap =
                if burstiness == 1.0 { random.exponential() } else { random.gamma(burstiness) };
            at += gap / rate;
        }
        at
    };
    (0..requests).map(&mut moment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(of: &[f64]) -> Vec<f64> {
        of.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn mean_and_variance(of: &[f64]) -> (f64, f64) {
        let mean = of.iter().sum::<f64>() / of.len() as f64;
        (mean, of.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / of.len() as f64)
    }

    #[test]
    fn moments_follow_from_their_seed() {
        assert_eq!(moments(50, 4.0, 1.0, 1), moments(50, 4.0, 1.0, 1));
        assert_ne!(moments(50, 4.0, 1.0, 1), moments(50, 4.0, 1.0, 2));
        assert!(moments(0, 4.0, 1.0, 1).is_empty());
    }

    #[test]
    fn requests_come_at_the_rate_that_was_asked_for_and_as_burstily() {
        for burstiness in [0.25, 1.0, 8.0] {
            let all = moments(20_000, 8.0, burstiness, 5);
            assert!(all.is_sorted() && all[0] == 0.0);
            let (mean, variance) = mean_and_variance(&gaps(&all));
            assert!((mean * 8.0 - 1.0).abs() < 0.05, "{burstiness}: {mean}");
            let relative = variance / (mean * mean) * burstiness;
            assert!((relative - 1.0).abs() < 0.15, "{burstiness}: {relative}");
        }
    }
}
