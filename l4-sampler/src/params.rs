//! Sampling parameters of a request.

use crate::error::ParamError;
use crate::logprobs::LogprobsRequest;

/// Sampling parameters of a request. Every field has a neutral value, and [`Default`] is all of them: sampling from the
/// model's own distribution.
///
/// The stages run in the order of the fields. Names and ranges are those of vLLM's `SamplingParams`, where vLLM has
/// them.
///
/// # Example
///
/// ```
/// use l4_sampler::SamplingParams;
///
/// let params = SamplingParams { temperature: 0.7, top_p: 0.9, ..SamplingParams::default() };
/// assert!(params.validate(49152).is_ok(), "49152: logits of a row");
/// assert!(!params.is_greedy() && SamplingParams::greedy().is_greedy());
///
/// let hot = SamplingParams { temperature: -1.0, ..SamplingParams::default() };
/// let error = hot.validate(49152).unwrap_err();
/// assert_eq!(error.to_string(), "temperature must be 0 or above, and finite, got -1");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Added to the logits of these tokens. A bias of -inf bans the token. A token that is given twice gets both.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only tokens that may be sampled; `None` allows all.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Tokens that are never sampled.
    pub banned_tokens: Vec<u32>,
    /// Number of output tokens before which no token may be sampled that ends the output.
    pub min_tokens: usize,
    /// Makes tokens less likely that are in the prompt or the output: positive logits are divided by this value,
    /// negative ones multiplied. 1 is off; must be above 0. (Keskar et al., "CTRL", 2019)
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token that is in the output. 0 is off; from -2 to 2, as in OpenAI's API.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time that the token is in the output. 0 is off; from -2 to 2, as in
    /// OpenAI's API.
    pub frequency_penalty: f32,
    /// Divides the logits. 0 is greedy: the most likely token is taken, and the filters below have no effect.
    pub temperature: f32,
    /// Keeps the `k` most likely tokens; of equal ones those with the lower ids. 0 is off.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens whose probabilities sum to at least this value, including the token
    /// that crosses it. 1 is off, 0 keeps one token. (Holtzman et al., "The Curious Case of Neural Text Degeneration",
    /// 2020)
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the most likely token's probability. 0 is off.
    pub min_p: f32,
    /// Keeps the smallest set of tokens whose probabilities sum to at least this value, beginning with those whose
    /// surprise is nearest to the expected one. 1 is off. (Meister et al., "Locally Typical Sampling", 2023)
    pub typical_p: f32,
    /// Log probabilities to return; `None` for none.
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
    /// Parameters that take the most likely token in every step.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the most likely token is taken, so that no random number is needed.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether any of the three penalties is on.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Whether the token of a row depends on which tokens came before it, beyond the row's logits: by a penalty, or by
    /// `min_tokens`, which counts them. `ends`: tokens that end the output.
    pub fn depends_on_history(&self, ends: &[u32]) -> bool {
        self.has_penalties() || (self.min_tokens > 0 && !ends.is_empty())
    }

    /// Whether any token is banned. A guide's forced tokens are one way to spell the only text that it allows; if a
    /// token of that spelling may be banned, another spelling must be sampled.
    pub fn forbids_tokens(&self) -> bool {
        self.allowed_tokens.is_some()
            || !self.banned_tokens.is_empty()
            || self.logit_bias.iter().any(|(_, bias)| *bias == f32::NEG_INFINITY)
    }

    /// Checks all parameters for a vocabulary, before the request is admitted.
    ///
    /// # Errors
    /// [`ParamError`], which names the field.
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

/// Checks that a number `holds` what is `expected`. NaN is in no range.
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

/// Checks that a token has a logit.
fn known(name: &'static str, id: u32, vocab: usize) -> Result<(), ParamError> {
    if (id as usize) < vocab {
        return Ok(());
    }
    Err(ParamError::TokenOutOfRange { name, id, vocab })
}
