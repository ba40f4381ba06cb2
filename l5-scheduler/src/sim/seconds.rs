//! Distributions of durations.

use std::f64::consts::TAU;

use serde::Deserialize;

use super::lengths::{check_weights, choose};

/// Distribution of a duration in seconds: `{"constant":2}`, `{"uniform":[0.05,0.1]}`, `{"exponential":1.5}`,
/// `{"lognormal":{"median":3,"sigma":0.8}}` or `{"choice":[[0.1,0.9],[30,0.1]]}`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seconds {
    /// Always this duration.
    Constant(f64),
    /// Uniform from the first to the second.
    Uniform([f64; 2]),
    /// Exponential with this mean.
    Exponential(f64),
    /// Lognormal: many short durations and a few long ones.
    Lognormal(Lognormal),
    /// One of these durations, with weights.
    Choice(Vec<(f64, f64)>),
}

/// Maximum of a duration and of a time in seconds, about 32 years: sums of them stay exact to a microsecond.
pub(super) const MAX_SECONDS: f64 = 1e9;

/// Lognormal distribution.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lognormal {
    /// Median, in seconds.
    pub median: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
}

impl Seconds {
    /// Checks the parameters.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        let good = |seconds: f64| (0.0..=MAX_SECONDS).contains(&seconds);
        match self {
            Self::Constant(seconds) if !good(*seconds) => {
                Err(format!("constant must be from 0 to {MAX_SECONDS:e}, got {seconds}"))
            }
            Self::Uniform([low, high]) if !(good(*low) && good(*high) && low <= high) => {
                Err(format!(
                    "uniform must be [least, most] with 0 <= least <= most <= {MAX_SECONDS:e}, got [{low}, {high}]"
                ))
            }
            Self::Exponential(mean) if !good(*mean) => {
                Err(format!("exponential must be a mean from 0 to {MAX_SECONDS:e}, got {mean}"))
            }
            Self::Lognormal(Lognormal { median, sigma }) if !(good(*median) && good(*sigma)) => {
                let got = format!("got a median of {median} and a sigma of {sigma}");
                Err(format!("lognormal: median and sigma must be from 0 to {MAX_SECONDS:e}, {got}"))
            }
            // Beyond this sigma, draws have no useful mean.
            Self::Lognormal(Lognormal { sigma, .. }) if *sigma > 10.0 => {
                Err(format!("lognormal: sigma must be at most 10, got {sigma}"))
            }
            Self::Choice(choices) if choices.iter().any(|(seconds, _)| !good(*seconds)) => {
                Err(format!("choice: each duration must be from 0 to {MAX_SECONDS:e}"))
            }
            Self::Choice(choices) => check_weights(choices.iter().map(|(_, weight)| *weight)),
            _ => Ok(()),
        }
    }

    /// Duration that two uniform numbers in [0, 1) give.
    pub fn at(&self, [uniform, other]: [f64; 2]) -> f64 {
        let seconds = match self {
            Self::Constant(seconds) => *seconds,
            Self::Uniform([low, high]) => low + uniform * (high - low),
            Self::Exponential(mean) => -(1.0 - uniform).ln() * mean,
            Self::Lognormal(Lognormal { median, sigma }) => {
                // Box and Muller 1958: a standard normal number.
                let normal = (-2.0 * (1.0 - uniform).ln()).sqrt() * (TAU * other).cos();
                median * (sigma * normal).exp()
            }
            Self::Choice(choices) => *choose(choices, uniform),
        };
        seconds.min(MAX_SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lengths::{Dice, Purpose};
    use super::*;

    fn draws(seconds: &str) -> Vec<f64> {
        let seconds: Seconds = serde_json::from_str(seconds).unwrap();
        seconds.check().unwrap();
        let dice = Dice::new(7);
        let mut all: Vec<f64> =
            (0..20_000).map(|i| seconds.at(dice.uniforms(Purpose::ToolSeconds, i))).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    #[test]
    fn draws_have_the_quantiles_of_their_distribution() {
        // Of a lognormal distribution, 84.13% are below the median times e to the sigma.
        let cases = [
            (r#"{"constant":2}"#, [2.0, 2.0]),
            (r#"{"uniform":[1,3]}"#, [2.0, 1.0 + 2.0 * 0.8413]),
            (r#"{"exponential":1.5}"#, [1.5 * 2f64.ln(), -1.5 * (1.0 - 0.8413f64).ln()]),
            (r#"{"lognormal":{"median":3,"sigma":0.8}}"#, [3.0, 3.0 * 0.8f64.exp()]),
            (r#"{"choice":[[0.5,3],[30,1]]}"#, [0.5, 30.0]),
        ];
        for (seconds, want) in cases {
            let all = draws(seconds);
            for (quantile, want) in [0.5, 0.8413].into_iter().zip(want) {
                let got = all[(quantile * all.len() as f64) as usize];
                assert!((got / want - 1.0).abs() < 0.03, "{seconds} at {quantile}: {got}, {want}");
            }
            assert!(all.iter().all(|s| s.is_finite() && *s >= 0.0), "{seconds}");
        }
    }

    #[test]
    fn bad_parameters_are_named() {
        let cases = [
            (r#"{"constant":-1}"#, "constant must be from 0 to 1e9, got -1"),
            (r#"{"constant":1e300}"#, "constant must be from 0 to 1e9"),
            (r#"{"uniform":[2,1]}"#, "uniform must be [least, most]"),
            (r#"{"exponential":-2}"#, "exponential must be a mean"),
            (r#"{"lognormal":{"median":-3,"sigma":1}}"#, "median and sigma"),
            (r#"{"lognormal":{"median":3,"sigma":11}}"#, "at most 10"),
            (r#"{"choice":[[-1,1]]}"#, "each duration"),
            (r#"{"choice":[]}"#, "each weight"),
        ];
        for (seconds, want) in cases {
            let got = serde_json::from_str::<Seconds>(seconds).unwrap().check().unwrap_err();
            assert!(got.contains(want), "{seconds}: {got}");
        }
    }
}
