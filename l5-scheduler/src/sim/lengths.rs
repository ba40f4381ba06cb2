//! Random numbers of a workload. Each follows from the seed and its purpose alone, so a workload can be repeated.

use l4_sampler::philox::philox4x32;
use serde::Deserialize;

/// Maximum number of tokens that are generated for one request.
pub(super) const MAX_TOKENS_PER_REQUEST: usize = 1 << 24;

/// Purpose of a random number. Numbers of different purposes are independent.
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
    Turns,
    Tool,
    ToolSeconds,
    Draft,
}

/// Random numbers of one workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dice {
    seed: u64,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// 128 random bits for a purpose of the `of`-th object; `nth` continues the stream.
    pub(super) fn bits(self, purpose: Purpose, of: u64, nth: u32) -> [u32; 4] {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        philox4x32(key, [nth, of as u32, (of >> 32) as u32, purpose as u32])
    }

    /// Uniform number in [0, 1).
    pub(super) fn uniform(self, purpose: Purpose, of: u64) -> f64 {
        self.uniforms(purpose, of)[0]
    }

    /// Two independent uniform numbers in [0, 1).
    pub(super) fn uniforms(self, purpose: Purpose, of: u64) -> [f64; 2] {
        let [a, b, c, d] = self.bits(purpose, of, 0);
        [(a, b), (c, d)].map(|(low, high)| {
            let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
            bits as f64 / (1u64 << 53) as f64
        })
    }

    /// Time between two arrivals of a Poisson process with `rate` arrivals a second.
    pub(super) fn gap(self, rate: f64, of: u64) -> f64 {
        -(1.0 - self.uniform(Purpose::Gap, of)).ln() / rate
    }

    /// Random tokens, which no other request has.
    pub(super) fn tokens(self, purpose: Purpose, of: u64, count: usize, into: &mut Vec<u32>) {
        let words = (0..count.div_ceil(4) as u32).flat_map(|n| self.bits(purpose, of, n));
        into.extend(words.take(count).map(|word| word >> 1));
    }
}

/// Distribution of a length: `{"constant":128}`, `{"uniform":[100,1024]}`, `{"exponential":200}` or
/// `{"choice":[[16,0.9],[4096,0.1]]}`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lengths {
    /// Always this length.
    Constant(usize),
    /// Uniform from the first to the second, both included.
    Uniform([usize; 2]),
    /// Exponential with this mean.
    Exponential(f64),
    /// One of these lengths, with weights.
    Choice(Vec<(usize, f64)>),
}

impl Lengths {
    /// Checks the parameters; returns what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        let most = self.most();
        match self {
            _ if most > MAX_TOKENS_PER_REQUEST => Err(format!(
                "the length must be at most {MAX_TOKENS_PER_REQUEST} tokens, got {most}"
            )),
            Self::Constant(0) => Err("constant must be at least 1, got 0".to_owned()),
            Self::Uniform([low, high]) if *low == 0 || low > high => Err(format!(
                "uniform must be [least, most] with 1 <= least <= most, got [{low}, {high}]"
            )),
            Self::Exponential(mean) if !(mean.is_finite() && *mean >= 1.0) => {
                Err(format!("exponential must be a mean of at least 1, got {mean}"))
            }
            Self::Choice(choices) if choices.iter().any(|(length, _)| *length == 0) => {
                Err("choice: each length must be at least 1, got 0".to_owned())
            }
            Self::Choice(choices) => check_weights(choices.iter().map(|(_, weight)| *weight)),
            _ => Ok(()),
        }
    }

    /// Largest length; of an exponential distribution, its mean.
    pub(super) fn most(&self) -> usize {
        match self {
            Self::Constant(length) => *length,
            Self::Uniform([_, high]) => *high,
            Self::Exponential(mean) => *mean as usize,
            Self::Choice(choices) => choices.iter().map(|(length, _)| *length).max().unwrap_or(0),
        }
    }

    /// Length at quantile `uniform`, from 0 to 1.
    pub(super) fn at(&self, uniform: f64) -> usize {
        match self {
            Self::Constant(length) => *length,
            Self::Uniform([low, high]) => low + (uniform * (high - low + 1) as f64) as usize,
            Self::Exponential(mean) => {
                ((-(1.0 - uniform).ln() * mean).round() as usize).clamp(1, MAX_TOKENS_PER_REQUEST)
            }
            Self::Choice(choices) => *choose(choices, uniform),
        }
    }
}

/// Checks that weights define a distribution.
pub(super) fn check_weights(weights: impl Iterator<Item = f64> + Clone) -> Result<(), String> {
    let good = weights.clone().all(|weight| weight.is_finite() && weight >= 0.0);
    match good && weights.sum::<f64>() > 0.0 {
        true => Ok(()),
        false => Err("each weight must be 0 or above, and at least one above 0".to_owned()),
    }
}

/// Value at quantile `uniform` of a weighted choice, which must not be empty.
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
