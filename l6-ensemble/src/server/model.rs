//! The model as clients see it.

use std::collections::HashSet;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use l2_model::chat_template::ChatTemplate;
use l2_model::tokenizer::Tokenizer;

use super::chat::reasoning::ReasoningFormat;
use super::chat::tools::ToolFormat;

/// The model as clients see it.
#[derive(Debug)]
pub struct ServedModel {
    /// The names it answers to. The first is the one in responses and metrics.
    pub names: Vec<String>,
    /// Another name that requests may use, which no list shows: the path of a model that was given no name.
    pub alias: Option<String>,
    /// What `--model` was: where it is from.
    pub root: String,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// From messages to a prompt; `None`: there are no chats with this model.
    pub template: Option<ChatTemplate>,
    /// Whether its template knows the role `developer`; else such messages are the system's.
    pub developer: bool,
    /// Words that its template has in quotes: roles are among them.
    pub roles: HashSet<String>,
    /// How it writes calls of tools.
    pub tools: ToolFormat,
    /// How it sets its thoughts apart.
    pub reasoning: ReasoningFormat,
    /// How it wants to be sampled.
    pub defaults: GenerationDefaults,
    /// The most tokens of prompt and answer together.
    pub max_model_len: usize,
    /// When the server began, in seconds since 1970.
    pub created: u64,
}

/// How a model wants to be sampled where a request says nothing: the fields of generation_config.json that vLLM takes as
/// well. `None`: OpenAI's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// See [`l4_sampler::SamplingParams`], as all of them.
    pub temperature: Option<f32>,
    /// Nucleus.
    pub top_p: Option<f32>,
    /// How many.
    pub top_k: Option<usize>,
    /// Share of the likeliest.
    pub min_p: Option<f32>,
    /// Above 1: against repetitions.
    pub repetition_penalty: Option<f32>,
    /// Tokens of an answer.
    pub max_tokens: Option<usize>,
}

/// As in `temperature=0.6, top_p=0.95`: the fields that are set.
impl fmt::Display for GenerationDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A field that is added here must be written below.
        let Self { temperature, top_p, top_k, min_p, repetition_penalty, max_tokens } = self;
        let set = [
            ("temperature", temperature.map(|x| x.to_string())),
            ("top_p", top_p.map(|x| x.to_string())),
            ("top_k", top_k.map(|x| x.to_string())),
            ("min_p", min_p.map(|x| x.to_string())),
            ("repetition_penalty", repetition_penalty.map(|x| x.to_string())),
            ("max_tokens", max_tokens.map(|x| x.to_string())),
        ];
        let set = set.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        f.write_str(&set.collect::<Vec<_>>().join(", "))
    }
}

impl ServedModel {
    /// The name in responses.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// Whether a request that names this model means it.
    pub fn is_named(&self, name: &str) -> bool {
        self.names.iter().chain(&self.alias).any(|own| own == name)
    }
}

/// Seconds since 1970, as `created` wants them.
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
