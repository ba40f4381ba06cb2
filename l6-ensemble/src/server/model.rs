//! The model as clients see it.

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
    /// What `--model` was: where it is from.
    pub root: String,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// From messages to a prompt; `None`: there are no chats with this model.
    pub template: Option<ChatTemplate>,
    /// Whether its template knows the role `developer`; else such messages are the system's.
    pub developer: bool,
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

impl ServedModel {
    /// The name in responses.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// Whether a request that names this model means it.
    pub fn is_named(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }
}

/// Seconds since 1970, as `created` wants them.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
