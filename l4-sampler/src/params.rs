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

    /// Check everything against a vocabulary, before the request is admitted.
    ///
    /// # Errors
    /// [`ParamError`], naming the field.
    pub fn validate(&self, vocab: usize) -> Result<(), ParamError> {
        let _ = vocab;
        todo!()
    }
}
