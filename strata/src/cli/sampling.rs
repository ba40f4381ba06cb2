//! Sampling options, which `generate` and `chat` share.

use l4_sampler::SamplingParams;
use l4_sampler::philox::fresh_seed;

use super::context::{Context, warn};

/// Sampling options.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Sampling temperature: lower values favour likely tokens. 0 takes the most likely token at every step, so that
    /// the same prompt gives the same text [default: 0]
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number("0 or above", |t| t >= 0.0))]
    temperature: Option<f32>,
    /// Sample from the K most likely tokens; 0 for all
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Sample from the smallest set of most likely tokens whose probabilities sum to P; 1 for all
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number("from 0 to 1", share))]
    top_p: Option<f32>,
    /// Sample from tokens with at least P times the probability of the most likely one; 0 for all
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number("from 0 to 1", share))]
    min_p: Option<f32>,
    /// Sample from the tokens whose information content is closest to the entropy, up to probability P (locally typical
    /// sampling); 1 for all
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    #[arg(value_parser = number("above 0 and at most 1", |p| share(p) && p > 0.0))]
    typical_p: Option<f32>,
    /// Divide positive logits of tokens in prompt or output by R, and multiply negative ones: above 1 makes them less
    /// likely; 1 for none
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    #[arg(value_parser = number("above 0", |r| r > 0.0))]
    repetition_penalty: f32,
    /// Subtract X from the logit of every token that is already in the output, from -2 to 2
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    #[arg(value_parser = number("from -2 to 2", penalty))]
    presence_penalty: f32,
    /// Subtract X from a token's logit for each time that it is already in the output, from -2 to 2
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    #[arg(value_parser = number("from -2 to 2", penalty))]
    frequency_penalty: f32,
    /// Seed of all random numbers: the same seed gives the same text [default: random, reported by --json]
    #[arg(long, value_name = "SEED", allow_negative_numbers = true)]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// The sampler's parameters.
    pub fn params(&self) -> SamplingParams {
        let off = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(0.0),
            top_k: self.top_k.unwrap_or(off.top_k),
            top_p: self.top_p.unwrap_or(off.top_p),
            min_p: self.min_p.unwrap_or(off.min_p),
            typical_p: self.typical_p.unwrap_or(off.typical_p),
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            ..off
        }
    }

    /// The seed, if one was given.
    pub fn given_seed(&self) -> Option<u64> {
        self.seed
    }

    /// The seed that was given, or a random one.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(fresh_seed)
    }

    /// Warns about options that have no effect because --temperature is not given. `others` are options of the command
    /// that need a temperature too.
    pub fn explain(&self, others: &[(&'static str, bool)], context: &Context) {
        if self.temperature.is_some() || context.quiet {
            return;
        }
        let own = [
            ("--top-k", self.top_k.is_some()),
            ("--top-p", self.top_p.is_some()),
            ("--min-p", self.min_p.is_some()),
            ("--typical-p", self.typical_p.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        let idle = own.iter().chain(others).filter(|(_, given)| *given);
        let idle: Vec<&str> = idle.map(|(name, _)| *name).collect();
        if !idle.is_empty() {
            let names = idle.join(", ");
            warn(format_args!(
                "{names}: no effect at temperature 0; give --temperature, such as 0.8"
            ));
        }
    }
}

/// A finite number for which `holds` says whether it is what is `expected`.
fn number(
    expected: &'static str,
    holds: fn(f32) -> bool,
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |s| match s.parse::<f32>() {
        Ok(x) if x.is_finite() && holds(x) => Ok(x),
        Ok(_) => Err(format!("must be {expected}")),
        Err(e) => Err(format!("{e}; must be a number {expected}")),
    }
}

fn share(p: f32) -> bool {
    (0.0..=1.0).contains(&p)
}

fn penalty(x: f32) -> bool {
    (-2.0..=2.0).contains(&x)
}
