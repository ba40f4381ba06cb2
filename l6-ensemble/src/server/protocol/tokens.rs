//! `/tokenize` and `/detokenize`, as vLLM has them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chat::{ChatMessage, Tool};
use crate::server::error::ApiError;
use crate::server::json::{FromBody, part, tree};

/// A text, or a conversation, to cut into tokens.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// The model's name.
    #[serde(default)]
    pub model: Option<String>,
    /// A text.
    #[serde(default)]
    pub prompt: Option<String>,
    /// Or a conversation.
    #[serde(default)]
    pub messages: Option<Vec<ChatMessage>>,
    /// What the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Tool>>,
    /// Whether what the model expects around a text is added [default: true]. A conversation's template decides by itself.
    #[serde(default)]
    pub add_special_tokens: Option<bool>,
    /// Whether the head of an answer is added to a conversation [default: true].
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Whether the last message is the beginning of the answer.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
    /// Variables for the chat template, such as `enable_thinking`.
    #[serde(default, deserialize_with = "tree::object")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the tokens are told as text, too.
    #[serde(default)]
    pub return_token_strs: Option<bool>,
}

impl FromBody for TokenizeRequest {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        part(body)
    }
}

impl TokenizeRequest {
    /// About how many bytes a template has to write.
    pub fn bytes(&self) -> usize {
        self.messages.iter().flatten().map(ChatMessage::bytes).sum()
    }
}

/// A text as tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Tokenized {
    /// How many.
    pub count: usize,
    /// How many the model takes.
    pub max_model_len: usize,
    /// Their ids.
    pub tokens: Vec<u32>,
    /// The same as text, if asked for.
    pub token_strs: Option<Vec<String>>,
}

/// Tokens to make a text of.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// The model's name.
    #[serde(default)]
    pub model: Option<String>,
    /// Their ids.
    pub tokens: Vec<u32>,
}

impl FromBody for DetokenizeRequest {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        part(body)
    }
}

/// Tokens as a text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Detokenized {
    /// The text.
    pub prompt: String,
}
