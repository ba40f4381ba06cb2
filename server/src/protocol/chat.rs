//! `/v1/chat/completions`.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::common::{Sampling, Usage};
use super::routing::Routing;
use super::{refused, whole};
use crate::error::ApiError;
use crate::json::tree::{self, Tree, written};
use crate::json::{FromBody, part};

/// Request for the next message of a conversation.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatRequest {
    /// Fields of chats only.
    #[serde(flatten)]
    pub own: ChatFields,
    /// Fields of completions as well.
    #[serde(flatten)]
    pub sampling: Sampling,
    /// Routing and deadline.
    #[serde(flatten)]
    pub routing: Routing,
}

impl FromBody for ChatRequest {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        refused::in_chat(body)?;
        Ok(Self { own: part(body)?, sampling: part(body)?, routing: part(body)? })
    }
}

/// Fields of chats only.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChatFields {
    /// Name of the model.
    #[serde(default)]
    pub model: Option<String>,
    /// Messages of the conversation so far.
    #[schema(min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// Maximum number of completion tokens [default: the operator's, 4096 unless changed].
    #[serde(default, deserialize_with = "whole::option")]
    pub max_completion_tokens: Option<usize>,
    /// Older name of `max_completion_tokens`.
    #[serde(default, deserialize_with = "whole::option")]
    pub max_tokens: Option<usize>,
    /// Whether log probabilities are returned.
    #[serde(default)]
    pub logprobs: Option<bool>,
    /// Number of likeliest tokens to return at each position, with `logprobs`.
    #[schema(maximum = 20)]
    #[serde(default, deserialize_with = "whole::option")]
    pub top_logprobs: Option<usize>,
    /// Tools that the model may call.
    #[serde(default)]
    pub tools: Option<Vec<Tool>>,
    /// Whether the model must call a tool, and which.
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may call several tools at once [default: true].
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    /// Variables for the chat template, such as `enable_thinking`.
    #[serde(default, deserialize_with = "tree::object")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Reasoning effort, for templates that know the variable.
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    /// Documents to answer from, for templates that know the variable.
    #[serde(default, deserialize_with = "tree::objects")]
    pub documents: Option<Vec<Map<String, Value>>>,
    /// Whether the header of the assistant's message is added to the prompt [default: true].
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Whether the completion continues the last message.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
    /// Whether reasoning is returned, apart from the content [default: true].
    #[serde(default)]
    pub include_reasoning: Option<bool>,
    /// Id of the end user. It is ignored.
    #[serde(default)]
    pub user: Option<String>,
}

/// A message. Fields beside these are kept for the chat template.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`; another role only if the chat template knows it.
    pub role: String,
    /// Text or parts; may be missing beside tool calls.
    pub content: Option<Content>,
    /// Other fields: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`, ...
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub more: Map<String, Value>,
}

/// Deserialized by hand: serde's `flatten` forgets the path of an error.
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
                            // Clients write null for a missing field, and templates distinguish the two.
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
    /// Estimated number of bytes that a template writes for the message and its header.
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

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    /// Text.
    Text(String),
    /// Parts, of which those of text are accepted.
    Parts(Vec<ContentPart>),
}

/// Deserialized by hand: serde's untagged enums forget the path of an error.
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

/// A part of a message's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContentPart {
    /// `text`; other types are rejected.
    #[serde(rename = "type")]
    pub kind: String,
    /// Text of the part.
    #[serde(default)]
    pub text: Option<String>,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Description of the function.
    pub function: Function,
}

/// Description of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// What the function does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "tree::option")]
    pub parameters: Option<Value>,
    /// Whether the arguments must follow the schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether the model must call a tool, and which.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    /// `none`, `auto` or `required`.
    Mode(ToolMode),
    /// The tool to call.
    Named(NamedTool),
}

/// Deserialized by hand, as [`Content`].
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

/// Whether the model must call a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolMode {
    /// The model must not call a tool.
    None,
    /// The model may call tools.
    Auto,
    /// The model must call at least one tool.
    Required,
}

/// The tool to call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedTool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function to call.
    pub function: NamedFunction,
}

/// Name of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedFunction {
    /// The name.
    pub name: String,
}

/// Response to a [`ChatRequest`].
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Id of the response, with the request's `x-request-id`.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// The choices.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
    /// Token ids of the prompt, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One choice.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Index of the choice.
    pub index: usize,
    /// The message.
    pub message: AssistantMessage,
    /// Log probabilities of the tokens.
    pub logprobs: Option<ChatLogprobs>,
    /// Reason for the end.
    pub finish_reason: Option<&'static str>,
    /// Stop string or stop token that ended the choice.
    pub stop_reason: Option<Value>,
    /// Token ids of the choice, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// The assistant's message.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: &'static str,
    /// Text; null if there are only reasoning or tool calls.
    pub content: Option<String>,
    /// Reasoning before the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// OpenAI's refusal: always null here.
    pub refusal: Option<String>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ToolCall {
    /// Id, by which the result refers to the call.
    pub id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Function and arguments.
    pub function: CalledFunction,
}

/// Function and arguments of a call.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CalledFunction {
    /// Name of the function.
    pub name: String,
    /// Arguments: a JSON object as a string.
    pub arguments: String,
}

/// Log probabilities, token by token.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry for each token.
    pub content: Vec<ChatTokenLogprob>,
}

/// Log probability of a token.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatTokenLogprob {
    /// The token as text.
    pub token: String,
    /// Log probability.
    pub logprob: f32,
    /// Bytes of the token.
    pub bytes: Option<Vec<u8>>,
    /// The likeliest tokens at this position.
    pub top_logprobs: Vec<ChatTopLogprob>,
}

/// One of the likeliest tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatTopLogprob {
    /// The token as text.
    pub token: String,
    /// Log probability.
    pub logprob: f32,
    /// Bytes of the token.
    pub bytes: Option<Vec<u8>>,
}

/// An event of a streamed chat completion.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChunk {
    /// Id of the response, the same in all events.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// New parts of choices.
    pub choices: Vec<ChatChunkChoice>,
    /// Token counts, with `include_usage`: in the last event, and null in those before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
    /// Token ids of the prompt in the first event, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// New part of a choice.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Index of the choice.
    pub index: usize,
    /// The new part.
    pub delta: Delta,
    /// Log probabilities of the new tokens.
    pub logprobs: Option<ChatLogprobs>,
    /// Reason for the end; null before it.
    pub finish_reason: Option<&'static str>,
    /// Stop string or stop token that ended the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<Value>,
    /// New token ids, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// New part of a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Delta {
    /// `assistant`, in the first event of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// New text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// New reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// New tool calls, or parts of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallDelta>,
}

/// Part of a tool call: id and name come first, then the arguments in parts.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ToolCallDelta {
    /// Index of the call in the choice.
    pub index: usize,
    /// Id of the call, in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, in the first part.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// Part of function and arguments.
    pub function: FunctionDelta,
}

/// Part of function and arguments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct FunctionDelta {
    /// Name of the function, in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Next part of the arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}
