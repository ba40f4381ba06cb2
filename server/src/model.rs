//! The model as clients see it.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use l2_model::chat_template::ChatTemplate;
use l2_model::tokenizer::Tokenizer;

use l4_sampler::output::{ReasoningFormat, ToolFormat};
use l6_ensemble::DecodingPolicy;

/// The model as clients see it.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// Names of the model in requests. The first is the one in responses and metrics.
    pub names: Vec<String>,
    /// A further name, which `/v1/models` does not list: the path of a model that was given no name.
    pub alias: Option<String>,
    /// Value of `--model`: path or repository.
    pub root: String,
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// Chat template; `None`: the model cannot chat.
    pub template: Option<Arc<ChatTemplate>>,
    /// Whether the template knows the role `developer`; otherwise it is replaced by `system`.
    pub developer: bool,
    /// Quoted words of the template, which include its roles.
    pub roles: HashSet<String>,
    /// Format of tool calls.
    pub tools: ToolFormat,
    /// Format of reasoning.
    pub reasoning: ReasoningFormat,
    /// Sampling defaults of the model.
    pub defaults: GenerationDefaults,
    /// Maximum number of tokens of prompt and completion together.
    pub max_model_len: usize,
    /// Start of the server, in seconds since 1970.
    pub created: u64,
}

/// Sampling defaults of a model: the fields of generation_config.json that vLLM reads as well. `None`: OpenAI's
/// default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// See [`l4_sampler::SamplingParams`], as all of them.
    pub temperature: Option<f32>,
    /// Nucleus sampling.
    pub top_p: Option<f32>,
    /// Number of likeliest tokens to keep.
    pub top_k: Option<usize>,
    /// Minimum probability, as a share of the likeliest token's.
    pub min_p: Option<f32>,
    /// Locally typical sampling.
    pub typical_p: Option<f32>,
    /// Above 1: penalises tokens that are in prompt or output.
    pub repetition_penalty: Option<f32>,
    /// Maximum number of completion tokens.
    pub max_tokens: Option<usize>,
}

/// Writes the fields that are set, as in `temperature=0.6, top_p=0.95`.
impl fmt::Display for GenerationDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A field that is added here must be written below.
        let Self { temperature, top_p, top_k, min_p, typical_p, repetition_penalty, max_tokens } =
            self;
        let set = [
            ("temperature", temperature.map(|x| x.to_string())),
            ("top_p", top_p.map(|x| x.to_string())),
            ("top_k", top_k.map(|x| x.to_string())),
            ("min_p", min_p.map(|x| x.to_string())),
            ("typical_p", typical_p.map(|x| x.to_string())),
            ("repetition_penalty", repetition_penalty.map(|x| x.to_string())),
            ("max_tokens", max_tokens.map(|x| x.to_string())),
        ];
        let set = set.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        f.write_str(&set.collect::<Vec<_>>().join(", "))
    }
}

impl GenerationDefaults {
    /// The defaults of a request with a decoding policy: the policy replaces temperature, `top_p`, `top_k`, `min_p` and
    /// `typical_p`.
    #[must_use]
    pub fn with_policy(&self, policy: Option<DecodingPolicy>) -> Self {
        let Some(policy) = policy else { return self.clone() };
        let (temperature, top_p, typical_p) = policy.sampling();
        Self {
            temperature: Some(temperature),
            top_p: Some(top_p),
            typical_p: Some(typical_p),
            top_k: None,
            min_p: None,
            ..self.clone()
        }
    }
}

impl ServedModel {
    /// Name in responses.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// Returns whether `name` is a name of this model.
    pub fn is_named(&self, name: &str) -> bool {
        self.names.iter().chain(&self.alias).any(|own| own == name)
    }
}

/// Seconds since 1970, for `created`.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_defaults_are_shown_as_requests_spell_them() {
        let defaults = GenerationDefaults {
            temperature: Some(0.6),
            top_p: Some(0.95),
            max_tokens: Some(20),
            ..GenerationDefaults::default()
        };
        assert_eq!(defaults.to_string(), "temperature=0.6, top_p=0.95, max_tokens=20");
        assert_eq!(GenerationDefaults::default().to_string(), "");
    }
}
