//! `/tokenize` and `/detokenize`, as vLLM has them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chat::{ChatMessage, Tool};
use crate::error::ApiError;
use crate::json::{FromBody, part, tree};

/// Request to tokenize a text or a conversation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// Name of the model.
    #[serde(default)]
    pub model: Option<String>,
    /// Text to tokenize.
    #[serde(default)]
    pub prompt: Option<String>,
    /// Conversation to tokenize, instead of a text.
    #[serde(default)]
    pub messages: Option<Vec<ChatMessage>>,
    /// Tools that the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Tool>>,
    /// Whether special tokens are added to a text [default: true]. In a conversation the chat template adds them.
    #[serde(default)]
    pub add_special_tokens: Option<bool>,
    /// Whether the header of the assistant's message is added [default: true].
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Whether a completion would continue the last message.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
    /// Variables for the chat template, such as `enable_thinking`.
    #[serde(default, deserialize_with = "tree::object")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the tokens are returned as text as well.
    #[serde(default)]
    pub return_token_strs: Option<bool>,
}

impl FromBody for TokenizeRequest {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        part(body)
    }
}

impl TokenizeRequest {
    /// Estimated number of bytes that the template writes.
    pub fn bytes(&self) -> usize {
        self.messages.iter().flatten().map(ChatMessage::bytes).sum()
    }
}

/// Response of `/tokenize`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Tokenized {
    /// Number of tokens.
    pub count: usize,
    /// Maximum context length of the model, in tokens.
    pub max_model_len: usize,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Tokens as text, with `return_token_strs`.
    pub token_strs: Option<Vec<String>>,
}

/// Request to decode tokens.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// Name of the model.
    #[serde(default)]
    pub model: Option<String>,
    /// Token ids.
    pub tokens: Vec<u32>,
}

impl FromBody for DetokenizeRequest {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        part(body)
    }
}

/// Response of `/detokenize`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Detokenized {
    /// Text of the tokens.
    pub prompt: String,
}
