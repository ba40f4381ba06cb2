//! What the pauses of a tool say of the next one: a Bayesian model of their logarithms.

use super::estimate::{Estimate, FAST_PIN, LONG_SECONDS};
use super::student_t::quantile;

/// Number of pauses from which on the posterior is used.
const ENOUGH_PAUSES: usize = 8;

/// Share of pauses that the blocks of a fast tool are held for.
const SHARE: f64 = 0.95;

/// Shortest pause that is told from none, in seconds: a logarithm needs one.
const SHORTEST: f64 = 1e-3;

/// Normal-inverse-gamma distribution of mean and variance of the logarithm of a tool's seconds:
///
/// ```text
/// variance ~ InverseGamma(alpha, beta),   mean ~ Normal(mean, variance / kappa)
/// ```
///
/// It is the conjugate prior of a normal distribution (Murphy 2007, "Conjugate Bayesian analysis of the Gaussian
/// distribution"): after `n` observations with mean `m` and sum of squared deviations `s` it has the same form, with
///
/// ```text
/// kappa' = kappa + n                  alpha' = alpha + n / 2
/// mean'  = (kappa mean + n m) / kappa'
/// beta'  = beta + s / 2 + kappa n (m - mean)^2 / (2 kappa')
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Posterior {
    mean: f64,
    kappa: f64,
    alpha: f64,
    beta: f64,
}

/// Before anything is known a tool takes a second, give or take a factor of `e`, which counts as one observation.
const PRIOR: Posterior = Posterior { mean: 0.0, kappa: 1.0, alpha: 1.0, beta: 1.0 };

impl Posterior {
    /// The distribution after these seconds were observed.
    pub(super) fn of(seconds: &[f64]) -> Self {
        if seconds.is_empty() {
            return PRIOR;
        }
        let logs = || seconds.iter().map(|seconds| seconds.max(SHORTEST).ln());
        let n = seconds.len() as f64;
        let m = logs().sum::<f64>() / n;
        let s = logs().map(|log| (log - m) * (log - m)).sum::<f64>();
        let kappa = PRIOR.kappa + n;
        let off = m - PRIOR.mean;
        Self {
            mean: (PRIOR.kappa * PRIOR.mean + n * m) / kappa,
            kappa,
            alpha: PRIOR.alpha + n / 2.0,
            beta: PRIOR.beta + s / 2.0 + PRIOR.kappa * n * off * off / (2.0 * kappa),
        }
    }

    /// Quantile of a duration whose logarithm is `mean + sqrt(variance) * t`, where `t` has Student's distribution with
    /// `2 alpha` degrees of freedom: a whole number, since the prior's is.
    fn quantile(&self, p: f64, variance: f64) -> f64 {
        (self.mean + variance.sqrt() * quantile(p, (2.0 * self.alpha) as u32)).exp()
    }

    /// Quantile of the next duration: the posterior predictive distribution is Student's, with the variance
    /// `beta (kappa + 1) / (alpha kappa)`.
    pub(super) fn next(&self, p: f64) -> f64 {
        self.quantile(p, self.beta * (self.kappa + 1.0) / (self.alpha * self.kappa))
    }

    /// Quantile of the median duration, which is not known exactly: the mean of the logarithm has Student's
    /// distribution, too, with the variance `beta / (alpha kappa)`.
    pub(super) fn median(&self, p: f64) -> f64 {
        self.quantile(p, self.beta / (self.alpha * self.kappa))
    }
}

/// Estimate from the recorded pauses of a tool; `None` if they are too few.
///
/// Whether the tool is fast is decided by Thompson sampling (Thompson 1933): by a median that is drawn from the
/// posterior, at the quantile `uniform`, which is random. So a tool of which it is not certain is taken for fast as
/// often as it is likely to be. For how long blocks are held is not random: it is a quantile of the next duration.
pub(super) fn estimate(pauses: &[f64], uniform: f64) -> Option<Estimate> {
    if pauses.len() < ENOUGH_PAUSES {
        return None;
    }
    let posterior = Posterior::of(pauses);
    let long = posterior.next(SHARE);
    Some(match posterior.median(uniform) {
        median if median > LONG_SECONDS => Estimate::Slow,
        _ if long <= FAST_PIN => Estimate::Fast(long),
        _ => Estimate::Uncertain,
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        student_t: Vec<(u32, f64, f64)>,
        posteriors: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        seconds: Vec<f64>,
        mean: f64,
        kappa: f64,
        alpha: f64,
        beta: f64,
        medians: Vec<(f64, f64)>,
        predicted: Vec<(f64, f64)>,
    }

    #[track_caller]
    fn close(found: f64, expected: f64) {
        let error = (found - expected).abs();
        assert!(error <= 1e-9 * expected.abs().max(1.0), "{found}, expected {expected}");
    }

    #[test]
    fn quantiles_are_those_of_scipy() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tool-durations/student_t.json");
        let golden: Golden = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!((golden.student_t.len(), golden.posteriors.len()), (48, 4));
        for (degrees, p, expected) in golden.student_t {
            close(quantile(p, degrees), expected);
        }
        for case in golden.posteriors {
            let posterior = Posterior::of(&case.seconds);
            close(posterior.mean, case.mean);
            close(posterior.kappa, case.kappa);
            close(posterior.alpha, case.alpha);
            close(posterior.beta, case.beta);
            case.medians.iter().for_each(|(p, expected)| close(posterior.median(*p), *expected));
            case.predicted.iter().for_each(|(p, expected)| close(posterior.next(*p), *expected));
        }
    }

    #[test]
    fn a_tool_is_estimated_from_the_eighth_pause_on() {
        assert_eq!(estimate(&[0.1; 7], 0.5), None);
        let Some(Estimate::Fast(seconds)) = estimate(&[0.1; 8], 0.5) else { panic!("it is fast") };
        assert!((0.1..3.0).contains(&seconds), "{seconds}");
        let Some(Estimate::Fast(sure)) = estimate(&[0.1; 128], 0.5) else { panic!("it is fast") };
        assert!(sure < seconds && sure > 0.1, "more records, a narrower distribution: {sure}");
        assert_eq!(estimate(&[30.0; 8], 0.5), Some(Estimate::Slow));
        // A tool that takes half a second or half a minute.
        let mixed: Vec<f64> = (0..40).map(|n| if n % 4 == 0 { 30.0 } else { 0.3 }).collect();
        assert_eq!(estimate(&mixed, 0.5), Some(Estimate::Uncertain));
    }

    #[test]
    fn a_tool_of_which_it_is_not_certain_is_slow_as_often_as_it_is_likely_to_be() {
        // Pauses around two seconds, most of them longer.
        let pauses: Vec<f64> = (0..16).map(|n| if n % 8 < 3 { 0.5 } else { 5.0 }).collect();
        let slow = (0..1000)
            .filter(|n| estimate(&pauses, (f64::from(*n) + 0.5) / 1000.0) == Some(Estimate::Slow));
        let (share, posterior) = (slow.count() as f64 / 1000.0, Posterior::of(&pauses));
        assert!((0.1..0.9).contains(&share), "{share}");
        assert!(posterior.median(0.999 - share) < 2.0 && posterior.median(1.001 - share) > 2.0);
    }

    #[test]
    fn a_pause_of_no_time_and_a_quantile_at_the_end_have_an_estimate() {
        assert!(matches!(estimate(&[0.0; 9], 0.0), Some(Estimate::Fast(_))));
        close(Posterior::of(&[]).next(0.5), 1.0);
    }
}
