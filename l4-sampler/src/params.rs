//! What one request asks of the sampler.

use crate::error::ParamError;
use crate::logprobs::LogprobsRequest;

/// How one request wants its tokens chosen. Every field has a value that changes nothing, and [`Default`] is all of
/// them: plain sampling from the model's own distribution.
///
/// The stages run in the order of the fields. Names and ranges are those of vLLM's `SamplingParams`, where it has them.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Added to the logits of these tokens. A value of -inf is a ban. A token named twice gets both.
    pub logit_bias: Vec<(u32, f32)>,
    /// Only these tokens may be chosen; `None` allows all.
    pub allowed_tokens: Option<Vec<u32>>,
    /// These tokens are never chosen.
    pub banned_tokens: Vec<u32>,
    /// Tokens that end an answer are not chosen before it has this many.
    pub min_tokens: usize,
    /// Logits of every token seen so far, in prompt or answer, move towards unlikely: positive ones are divided by
    /// this, negative ones multiplied. 1 is off, must be above 0. (Keskar et al., "CTRL", 2019)
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token the answer holds. 0 is off. (OpenAI's API: -2 to 2)
    pub presence_penalty: f32,
    /// Subtracted from a token's logit as many times as the answer holds it. 0 is off. (OpenAI's API: -2 to 2)
    pub frequency_penalty: f32,
    /// Logits are divided by this. 0 takes the likeliest token, and the filters below have nothing left to do.
    pub temperature: f32,
    /// Keep the `k` likeliest tokens; of equal ones those with the lower ids. 0 is off.
    pub top_k: usize,
    /// Keep the fewest of the likeliest tokens that together have at least this probability: the one that crosses it
    /// stays. 1 is off, 0 keeps one token. (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020)
    pub top_p: f32,
    /// Keep tokens at least this many times as likely as the likeliest. 0 is off.
    pub min_p: f32,
    /// Keep the fewest tokens, beginning with those whose surprise is nearest to the expected one, that together have
    /// at least this probability. 1 is off. (Meister et al., "Locally Typical Sampling", 2023)
    pub typical_p: f32,
    /// What to tell about each token besides its id.
    pub logprobs: Option<LogprobsRequest>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            logit_bias: Vec::new(),
            allowed_tokens: None,
            banned_tokens: Vec::new(),
            min_tokens: 0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// The likeliest token at every step.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the likeliest token is taken, so that no random number is needed.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether any of the three penalties changes a token that was seen.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Whether any token is forbidden. A guide's forced tokens are one way to write the only text that it allows; when that
    /// way may be closed, another must be looked for.
    pub fn forbids_tokens(&self) -> bool {
        self.allowed_tokens.is_some()
            || !self.banned_tokens.is_empty()
            || self.logit_bias.iter().any(|(_, bias)| *bias == f32::NEG_INFINITY)
    }

    /// Check everything against a vocabulary, before the request is admitted.
    ///
    /// # Errors
    /// [`ParamError`], naming the field.
    pub fn validate(&self, vocab: usize) -> Result<(), ParamError> {
        for (id, bias) in &self.logit_bias {
            known("logit_bias", *id, vocab)?;
            in_range("logit_bias", *bias, "a number (-inf bans)", !bias.is_nan())?;
        }
        for id in &self.banned_tokens {
            known("banned_tokens", *id, vocab)?;
        }
        if let Some(allowed) = &self.allowed_tokens {
            for id in allowed {
                known("allowed_tokens", *id, vocab)?;
            }
            if allowed.is_empty() {
                return Err(ParamError::NothingAllowed);
            }
        }
        let Self { repetition_penalty, presence_penalty, frequency_penalty, .. } = *self;
        let Self { temperature, top_p, min_p, typical_p, .. } = *self;
        let positive = repetition_penalty > 0.0 && repetition_penalty.is_finite();
        in_range("repetition_penalty", repetition_penalty, "above 0 and finite", positive)?;
        let penalty = |p: f32| (-2.0..=2.0).contains(&p);
        in_range("presence_penalty", presence_penalty, "from -2 to 2", penalty(presence_penalty))?;
        in_range(
            "frequency_penalty",
            frequency_penalty,
            "from -2 to 2",
            penalty(frequency_penalty),
        )?;
        let warm = temperature >= 0.0 && temperature.is_finite();
        in_range("temperature", temperature, "0 or above, and finite", warm)?;
        let share = |p: f32| (0.0..=1.0).contains(&p);
        in_range("top_p", top_p, "from 0 to 1", share(top_p))?;
        in_range("min_p", min_p, "from 0 to 1", share(min_p))?;
        in_range(
            "typical_p",
            typical_p,
            "above 0 and at most 1",
            share(typical_p) && typical_p > 0.0,
        )?;
        if let Some(wanted) = self.logprobs
            && wanted.top > vocab
        {
            let expected = "at most the number of tokens in the vocabulary";
            return Err(ParamError::OutOfRange {
                name: "logprobs",
                expected,
                got: wanted.top as f64,
            });
        }
        Ok(())
    }
}

/// A number for which `holds` says whether it is what is `expected`. NaN is in no range.
fn in_range(
    name: &'static str,
    got: f32,
    expected: &'static str,
    holds: bool,
) -> Result<(), ParamError> {
    if holds {
        return Ok(());
    }
    Err(ParamError::OutOfRange { name, expected, got: f64::from(got) })
}

/// A token that a row of logits has a place for.
fn known(name: &'static str, id: u32, vocab: usize) -> Result<(), ParamError> {
    if (id as usize) < vocab {
        return Ok(());
    }
    Err(ParamError::TokenOutOfRange { name, id, vocab })
}
