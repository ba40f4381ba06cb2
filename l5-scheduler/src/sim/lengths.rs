//! Numbers by chance, and the same ones again: each is looked up by what it is for.

use l4_sampler::philox::philox4x32;
use serde::Deserialize;

/// The most tokens that are made up for one request: no model reads more.
pub(super) const MOST_TOKENS: usize = 1 << 24;

/// What a number is for. Numbers of different purposes have nothing to do with each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Gap,
    Input,
    Output,
    Priority,
    HasPrefix,
    WhichPrefix,
    Prompt,
    Prefix,
}

/// The dice of one workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dice {
    seed: u64,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// 128 bits for a purpose of the `of`-th thing, and a number among them.
    pub(super) fn bits(self, purpose: Purpose, of: u64, nth: u32) -> [u32; 4] {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        philox4x32(key, [nth, of as u32, (of >> 32) as u32, purpose as u32])
    }

    /// A number from 0 up to and without 1.
    pub(super) fn uniform(self, purpose: Purpose, of: u64) -> f64 {
        let [low, high, ..] = self.bits(purpose, of, 0);
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        bits as f64 / (1u64 << 53) as f64
    }

    /// A time to wait for something that comes `rate` times a second, at any moment as likely as at any other.
    pub(super) fn gap(self, rate: f64, of: u64) -> f64 {
        -(1.0 - self.uniform(Purpose::Gap, of)).ln() / rate
    }

    /// Tokens that have nothing to do with anybody else's.
    pub(super) fn tokens(self, purpose: Purpose, of: u64, count: usize, into: &mut Vec<u32>) {
        let words = (0..count.div_ceil(4) as u32).flat_map(|n| self.bits(purpose, of, n));
        into.extend(words.take(count).map(|word| word >> 1));
    }
}

/// How long something is: `{"constant":128}`, `{"uniform":[100,1024]}`, `{"exponential":200}` or
/// `{"choice":[[16,0.9],[4096,0.1]]}`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lengths {
    /// Always as long.
    Constant(usize),
    /// From the first to the second, each as likely.
    Uniform([usize; 2]),
    /// Around a mean, seldom much longer.
    Exponential(f64),
    /// One of these, by weight.
    Choice(Vec<(usize, f64)>),
}

impl Lengths {
    /// What is wrong with it, if anything.
    pub(super) fn check(&self) -> Result<(), String> {
        let most = match self {
            Self::Constant(length) => *length,
            Self::Uniform([_, high]) => *high,
            Self::Exponential(mean) => *mean as usize,
            Self::Choice(choices) => choices.iter().map(|(length, _)| *length).max().unwrap_or(0),
        };
        match self {
            _ if most > MOST_TOKENS => Err(format!("{most} tokens: {MOST_TOKENS} at most")),
            Self::Constant(0) => Err("a length of 0: make it at least 1".to_owned()),
            Self::Uniform([low, high]) if *low == 0 || low > high => {
                Err(format!("uniform [{low}, {high}]: give the least and the most, from 1 on"))
            }
            Self::Exponential(mean) if !(mean.is_finite() && *mean >= 1.0) => {
                Err(format!("exponential {mean}: give a mean of at least 1"))
            }
            Self::Choice(choices) if choices.iter().any(|(length, _)| *length == 0) => {
                Err("a choice of length 0: make it at least 1".to_owned())
            }
            Self::Choice(choices) => check_weights(choices.iter().map(|(_, weight)| *weight)),
            _ => Ok(()),
        }
    }

    /// The length that a number from 0 to 1 stands for.
    pub(super) fn at(&self, uniform: f64) -> usize {
        match self {
            Self::Constant(length) => *length,
            Self::Uniform([low, high]) => low + (uniform * (high - low + 1) as f64) as usize,
            Self::Exponential(mean) => {
                ((-(1.0 - uniform).ln() * mean).round() as usize).clamp(1, MOST_TOKENS)
            }
            Self::Choice(choices) => *choose(choices, uniform),
        }
    }
}

/// Whether weights can be chosen by.
pub(super) fn check_weights(weights: impl Iterator<Item = f64> + Clone) -> Result<(), String> {
    let good = weights.clone().all(|weight| weight.is_finite() && weight >= 0.0);
    match good && weights.sum::<f64>() > 0.0 {
        true => Ok(()),
        false => Err("weights: give each 0 or above, and at least one above 0".to_owned()),
    }
}

/// One of several by weight, for a number from 0 to 1. There is at least one.
pub(super) fn choose<T>(choices: &[(T, f64)], uniform: f64) -> &T {
    let all: f64 = choices.iter().map(|(_, weight)| weight).sum();
    let mut left = uniform * all;
    for (what, weight) in choices {
        if left < *weight {
            return what;
        }
        left -= weight;
    }
    &choices[choices.len() - 1].0
}
