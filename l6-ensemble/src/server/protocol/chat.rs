//! `/v1/chat/completions`.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::common::{Sampling, Usage};
use super::{refused, whole};
use crate::server::error::ApiError;
use crate::server::json::tree::{self, Tree, written};
use crate::server::json::{FromBody, part};

/// A conversation to go on with.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatRequest {
    /// What is particular to chats.
    #[serde(flatten)]
    pub own: ChatFields,
    /// What is not.
    #[serde(flatten)]
    pub sampling: Sampling,
}

impl FromBody for ChatRequest {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        refused::in_chat(body)?;
        Ok(Self { own: part(body)?, sampling: part(body)? })
    }
}

/// What is particular to chats.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChatFields {
    /// The model's name.
    #[serde(default)]
    pub model: Option<String>,
    /// The conversation so far.
    #[schema(min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// Maximum number of completion tokens [default: the operator's, 4096 unless changed].
    #[serde(default, deserialize_with = "whole::option")]
    pub max_completion_tokens: Option<usize>,
    /// The older name of the same.
    #[serde(default, deserialize_with = "whole::option")]
    pub max_tokens: Option<usize>,
    /// Whether log probabilities are told.
    #[serde(default)]
    pub logprobs: Option<bool>,
    /// Of so many of the likeliest tokens beside each.
    #[schema(maximum = 20)]
    #[serde(default, deserialize_with = "whole::option")]
    pub top_logprobs: Option<usize>,
    /// What the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Tool>>,
    /// Whether it must.
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may call several at once [default: true].
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    /// Variables for the chat template, such as `enable_thinking`.
    #[serde(default, deserialize_with = "tree::object")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// How much the model should think, for templates that know the variable.
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    /// Texts to answer from, for templates that know the variable.
    #[serde(default, deserialize_with = "tree::objects")]
    pub documents: Option<Vec<Map<String, Value>>>,
    /// Whether the head of the assistant's answer is added to the prompt [default: true].
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Whether the last message is the beginning of the answer.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
    /// Whether thoughts are told apart from the answer [default: true].
    #[serde(default)]
    pub include_reasoning: Option<bool>,
    /// Who asks, in the client's words.
    #[serde(default)]
    pub user: Option<String>,
}

/// One message. Fields that templates may know beside these are kept.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`; another one only if the chat template knows it.
    pub role: String,
    /// Text, parts, or nothing beside calls.
    pub content: Option<Content>,
    /// Everything else: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`, ...
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub more: Map<String, Value>,
}

/// Read by hand: serde's own `flatten` forgets the path of an error.
impl<'de> Deserialize<'de> for ChatMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = ChatMessage;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message: an object with `role` and `content`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ChatMessage, A::Error> {
                let (mut role, mut content, mut more) = (None, None, Map::new());
                while let Some(field) = map.next_key::<String>()? {
                    match field.as_str() {
                        "role" => role = Some(map.next_value()?),
                        "content" => content = map.next_value()?,
                        _ => {
                            let Tree(value) = map.next_value()?;
                            // Clients write null for what is not there, and templates tell the two apart.
                            if !value.is_null() {
                                more.insert(field, value);
                            }
                        }
                    }
                }
                let role = role.ok_or_else(|| A::Error::missing_field("role"))?;
                Ok(ChatMessage { role, content, more })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl ChatMessage {
    /// About how many bytes a template writes for it, with a head.
    pub fn bytes(&self) -> usize {
        let content = match &self.content {
            None => 0,
            Some(Content::Text(text)) => text.len(),
            Some(Content::Parts(parts)) => {
                parts.iter().map(|part| part.text.as_ref().map_or(0, String::len)).sum()
            }
        };
        32 + content + self.more.values().map(written).sum::<usize>()
    }
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    /// Text.
    Text(String),
    /// Parts, of which this server takes those of text.
    Parts(Vec<ContentPart>),
}

/// Read by hand: serde's own way with untagged values forgets the path of an error.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;
        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or a list of parts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = list.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
        }
        deserializer.deserialize_any(TextOrParts)
    }
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContentPart {
    /// `text`; others are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    #[serde(default)]
    pub text: Option<String>,
}

/// Something that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it is.
    pub function: Function,
}

/// A function, described.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "tree::option")]
    pub parameters: Option<Value>,
    /// Whether arguments must follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether the model must call something.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    /// `none`, `auto` or `required`.
    Mode(ToolMode),
    /// This one.
    Named(NamedTool),
}

/// Read by hand, as [`Content`].
impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModeOrName;
        impl<'de> Visitor<'de> for ModeOrName {
            type Value = ToolChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#""none", "auto", "required" or the function to call"#)
            }

            fn visit_str<E: Error>(self, mode: &str) -> Result<ToolChoice, E> {
                let mode = match mode {
                    "none" => ToolMode::None,
                    "auto" => ToolMode::Auto,
                    "required" => ToolMode::Required,
                    _ => return Err(E::unknown_variant(mode, &["none", "auto", "required"])),
                };
                Ok(ToolChoice::Mode(mode))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ToolChoice, A::Error> {
                NamedTool::deserialize(MapAccessDeserializer::new(map)).map(ToolChoice::Named)
            }
        }
        deserializer.deserialize_any(ModeOrName)
    }
}

/// Whether the model must call something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolMode {
    /// It must not.
    None,
    /// It may.
    Auto,
    /// It must.
    Required,
}

/// The one that must be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedTool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Which.
    pub function: NamedFunction,
}

/// A function's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedFunction {
    /// The name.
    pub name: String,
}

/// The answers to a [`ChatRequest`].
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// The request's name.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// When, in seconds since 1970.
    pub created: u64,
    /// Who answered.
    pub model: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// Tokens, counted.
    pub usage: Usage,
    /// The prompt's tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Which answer.
    pub index: usize,
    /// What it says.
    pub message: AssistantMessage,
    /// What the model thought of its tokens.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: Option<&'static str>,
    /// The text or token that stopped it.
    pub stop_reason: Option<Value>,
    /// Its tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What the model says.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: &'static str,
    /// Text; null beside calls without a word.
    pub content: Option<String>,
    /// What it thought before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// OpenAI's word for a declined request: always null here.
    pub refusal: Option<String>,
    /// What it calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ToolCall {
    /// A name for its result to refer to.
    pub id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is called.
    pub function: CalledFunction,
}

/// What is called, and with what.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CalledFunction {
    /// Its name.
    pub name: String,
    /// Its arguments: JSON, as text.
    pub arguments: String,
}

/// Log probabilities as chats tell them: token by token.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One for each token.
    pub content: Vec<ChatTokenLogprob>,
}

/// What the model thought of a token.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatTokenLogprob {
    /// The token as text.
    pub token: String,
    /// Its log probability.
    pub logprob: f32,
    /// The token's bytes.
    pub bytes: Option<Vec<u8>>,
    /// The likeliest tokens at its place.
    pub top_logprobs: Vec<ChatTopLogprob>,
}

/// One of the likeliest tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatTopLogprob {
    /// The token as text.
    pub token: String,
    /// Its log probability.
    pub logprob: f32,
    /// The token's bytes.
    pub bytes: Option<Vec<u8>>,
}

/// An event of a streamed chat.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChunk {
    /// The request's name.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// When, in seconds since 1970.
    pub created: u64,
    /// Who answers.
    pub model: String,
    /// What came.
    pub choices: Vec<ChatChunkChoice>,
    /// Tokens, counted, if asked for: in the last event, and null in those before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
    /// With the first event: the prompt's tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// What came of one answer.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Which answer.
    pub index: usize,
    /// What is new.
    pub delta: Delta,
    /// What the model thought of its tokens.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended; null while it goes on.
    pub finish_reason: Option<&'static str>,
    /// The text or token that stopped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
    /// Its tokens, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What is new in an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Delta {
    /// `assistant`, with the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Thoughts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls, or parts of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallDelta>,
}

/// A part of a call: name and id come first, then the arguments in pieces.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ToolCallDelta {
    /// Which of the answer's calls.
    pub index: usize,
    /// With the first part: its name for results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// With the first part: `function`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// What is called.
    pub function: FunctionDelta,
}

/// A part of what is called.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct FunctionDelta {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The next piece of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}
