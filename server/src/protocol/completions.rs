//! `/v1/completions`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::common::{Sampling, Usage};
use super::refused;
use super::routing::Routing;
use super::whole::{self, Number};
use crate::error::ApiError;
use crate::json::{FromBody, part};

/// Request for completions of prompts.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CompletionRequest {
    /// Fields of completions only.
    #[serde(flatten)]
    pub own: CompletionFields,
    /// Fields of chats as well.
    #[serde(flatten)]
    pub sampling: Sampling,
    /// Routing and deadline.
    #[serde(flatten)]
    pub routing: Routing,
}

impl FromBody for CompletionRequest {
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        refused::in_completion(body)?;
        Ok(Self { own: part(body)?, sampling: part(body)?, routing: part(body)? })
    }
}

/// Fields of completions only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionFields {
    /// Name of the model.
    #[serde(default)]
    pub model: Option<String>,
    /// One prompt or several, as text or token ids.
    pub prompt: PromptField,
    /// Maximum number of completion tokens [default: 16].
    #[serde(default, deserialize_with = "whole::option")]
    pub max_tokens: Option<usize>,
    /// Number of likeliest tokens whose log probabilities are returned.
    #[serde(default, deserialize_with = "whole::option")]
    pub logprobs: Option<usize>,
    /// Whether the prompt is returned before the completion. Not with `logprobs`: prompts have none.
    #[serde(default)]
    pub echo: Option<bool>,
    /// Text after the completion: not supported unless it is empty.
    #[serde(default)]
    pub suffix: Option<String>,
    /// Whether the tokenizer adds special tokens, such as BOS [default: true].
    #[serde(default)]
    pub add_special_tokens: Option<bool>,
    /// Number of the prompt's last tokens to keep; -1: as many as leave room for the completion.
    #[serde(default, deserialize_with = "whole::option")]
    pub truncate_prompt_tokens: Option<i64>,
    /// Whether tokens in log probabilities are written as `token_id:17`.
    #[serde(default)]
    pub return_tokens_as_token_ids: Option<bool>,
    /// Id of the end user. It is ignored.
    #[serde(default)]
    pub user: Option<String>,
}

/// One prompt or several, as text or token ids.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
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

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PromptVisitor)
    }
}

/// Reads a prompt by its first element, so that an error has the path of the invalid element.
struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = PromptField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of token ids, or a list of either")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PromptField, E> {
        Ok(PromptField::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<PromptField, E> {
        Ok(PromptField::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PromptField, A::Error> {
        match seq.next_element()? {
            None => Ok(PromptField::Ids(Vec::new())),
            Some(First::Id(id)) => rest(seq, id, |Number(id)| id).map(PromptField::Ids),
            Some(First::Text(text)) => rest(seq, text, |text| text).map(PromptField::Texts),
            Some(First::Ids(ids)) => rest(seq, ids, ids_of).map(PromptField::IdLists),
        }
    }
}

/// Kind of a list of prompts, by its first element.
enum First {
    Id(u32),
    Text(String),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(FirstVisitor)
    }
}

struct FirstVisitor;

impl<'de> Visitor<'de> for FirstVisitor {
    type Value = First;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token id, or a list of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<First, E> {
        Ok(First::Text(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<First, E> {
        Number::deserialize(id.into_deserializer()).map(|Number(id)| First::Id(id))
    }

    fn visit_i64<E: Error>(self, id: i64) -> Result<First, E> {
        Number::deserialize(id.into_deserializer()).map(|Number(id)| First::Id(id))
    }

    fn visit_f64<E: Error>(self, id: f64) -> Result<First, E> {
        Number::deserialize(id.into_deserializer()).map(|Number(id)| First::Id(id))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<First, A::Error> {
        let mut ids = Vec::new();
        while let Some(Number(id)) = seq.next_element()? {
            ids.push(id);
        }
        Ok(First::Ids(ids))
    }
}

/// Elements of a list whose first is read already.
fn rest<'de, A: SeqAccess<'de>, R: Deserialize<'de>, T>(
    mut seq: A,
    first: T,
    of: impl Fn(R) -> T,
) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(read) = seq.next_element()? {
        all.push(of(read));
    }
    Ok(all)
}

fn ids_of(numbers: Vec<Number<u32>>) -> Vec<u32> {
    numbers.into_iter().map(|Number(id)| id).collect()
}

/// Response to a [`CompletionRequest`], or an event of it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Completion {
    /// Id of the response, with the request's `x-request-id`.
    pub id: String,
    /// `text_completion`.
    pub object: &'static str,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// The choices, or new parts of them.
    pub choices: Vec<CompletionChoice>,
    /// Token counts. In a stream only with `include_usage`: in the last event, and null in others unless usage is
    /// continuous.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// One choice, or a new part of it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Index of the choice.
    pub index: usize,
    /// Text, or new text.
    pub text: String,
    /// Log probabilities of the tokens.
    pub logprobs: Option<CompletionLogprobs>,
    /// Reason for the end; null before it.
    pub finish_reason: Option<&'static str>,
    /// Stop string or stop token that ended the choice.
    pub stop_reason: Option<Value>,
    /// Token ids, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Token ids of the prompt, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// Log probabilities, as lists side by side.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Offset of each token in the text, in characters.
    pub text_offset: Vec<usize>,
    /// Log probability of each token; -9999 for minus infinity, which JSON does not have.
    pub token_logprobs: Vec<Option<f32>>,
    /// Each token as text; one that is not UTF-8 on its own as `bytes:\\xe2\\x82`.
    pub tokens: Vec<String>,
    /// The likeliest tokens at each position, and the sampled one.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
}
