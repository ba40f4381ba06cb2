//! `/v1/completions`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::common::{Sampling, Usage};
use super::refused;
use super::whole::{self, Number};
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
    fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        refused::in_completion(body)?;
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
    #[serde(default, deserialize_with = "whole::option")]
    pub max_tokens: Option<usize>,
    /// Log probabilities of so many of the likeliest tokens.
    #[serde(default, deserialize_with = "whole::option")]
    pub logprobs: Option<usize>,
    /// Begin the answer with the prompt. Not with `logprobs`: there are none of prompts.
    #[serde(default)]
    pub echo: Option<bool>,
    /// A text behind the answer: refused, unless it is empty.
    #[serde(default)]
    pub suffix: Option<String>,
    /// Whether what the model expects around a text (BOS, mostly) is added [default: true].
    #[serde(default)]
    pub add_special_tokens: Option<bool>,
    /// Keep so many of the prompt's last tokens; -1: as many as leave room for the answer.
    #[serde(default, deserialize_with = "whole::option")]
    pub truncate_prompt_tokens: Option<i64>,
    /// Write tokens in log probabilities as `token_id:17`.
    #[serde(default)]
    pub return_tokens_as_token_ids: Option<bool>,
    /// Who asks, in the client's words.
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

/// Reads a prompt by its first element, so that an error has the path of the element that does not fit.
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

/// What a list of prompts begins with.
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

/// The elements of a list whose first is read already.
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
    /// Tokens, counted. In a stream only if asked for: in its last event, and null in the others unless they shall have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
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
    /// Where each token begins in the answer's text, in characters.
    pub text_offset: Vec<usize>,
    /// Of each token; -9999 for minus infinity, which JSON has no number for.
    pub token_logprobs: Vec<Option<f32>>,
    /// Each token as text; one that is not UTF-8 on its own as `bytes:\\xe2\\x82`.
    pub tokens: Vec<String>,
    /// The likeliest tokens at each place, and the one that was chosen.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
}
