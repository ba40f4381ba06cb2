//! `/v1/completions`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::common::{Sampling, Usage};
use crate::server::error::ApiError;
use crate::server::json::{FromBody, part};

/// A text to continue.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CompletionRequest {
    /// What is particular to completions.
    #[serde(flatten)]
    pub own: CompletionFields,
    /// What is not.
    #[serde(flatten)]
    pub sampling: Sampling,
}

impl FromBody for CompletionRequest {
    fn from_body(body: &Value) -> Result<Self, ApiError> {
        Ok(Self { own: part(body)?, sampling: part(body)? })
    }
}

/// What is particular to completions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionFields {
    /// The model's name.
    #[serde(default)]
    pub model: Option<String>,
    /// One prompt or several, as text or token ids.
    pub prompt: PromptField,
    /// Tokens of an answer [default: 16].
    #[serde(default)]
    pub max_tokens: Option<usize>,
    /// Log probabilities of so many of the likeliest tokens.
    #[serde(default)]
    pub logprobs: Option<usize>,
    /// Begin the answer with the prompt.
    #[serde(default)]
    pub echo: Option<bool>,
    /// A text behind the answer: not supported.
    #[serde(default)]
    pub suffix: Option<String>,
    /// Whether what the model expects around a text (BOS, mostly) is added [default: true].
    #[serde(default)]
    pub add_special_tokens: Option<bool>,
    /// Who asks, in the client's words.
    #[serde(default)]
    pub user: Option<String>,
}

/// One prompt or several, as text or token ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PromptField {
    /// A text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    IdLists(Vec<Vec<u32>>),
}

/// The answers to a [`CompletionRequest`], or an event of them.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Completion {
    /// The request's name.
    pub id: String,
    /// `text_completion`.
    pub object: &'static str,
    /// When, in seconds since 1970.
    pub created: u64,
    /// Who answered.
    pub model: String,
    /// The answers.
    pub choices: Vec<CompletionChoice>,
    /// Tokens, counted. In a stream: only in its last event, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One answer, or a part of it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Which answer.
    pub index: usize,
    /// Its text.
    pub text: String,
    /// What the model thought of its tokens.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why it ended; null while it goes on.
    pub finish_reason: Option<&'static str>,
    /// The text or token that stopped it.
    pub stop_reason: Option<Value>,
    /// Its tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// The prompt's tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// Log probabilities as completions tell them: lists side by side.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Where each token begins in the text, in characters.
    pub text_offset: Vec<usize>,
    /// Of each token.
    pub token_logprobs: Vec<Option<f32>>,
    /// Each token as text.
    pub tokens: Vec<String>,
    /// The likeliest tokens at each place.
    pub top_logprobs: Vec<Option<serde_json::Map<String, Value>>>,
}
