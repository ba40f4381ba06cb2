//! What completions and chats have in common.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::whole;
use crate::server::json::tree;

/// How tokens are chosen, where the answer ends, and what the scheduler should know: fields of every request for text.
/// Without one, what the model's generation_config.json says; then OpenAI's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Sampling {
    /// Divides the logits. 0 takes the likeliest token at every step.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Keep the likeliest tokens that have this probability together.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Keep so many of the likeliest tokens. 0 or -1: all.
    #[schema(minimum = -1)]
    #[serde(deserialize_with = "whole::option")]
    pub top_k: Option<i64>,
    /// Keep tokens at least this many times as likely as the likeliest.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Keep the tokens whose surprise is nearest to the expected one.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub typical_p: Option<f32>,
    /// Against what the answer already holds.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    /// Against what the answer holds often.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Against what prompt or answer hold.
    #[schema(exclusive_minimum = 0)]
    pub repetition_penalty: Option<f32>,
    /// Added to the logits of tokens, by id: -100 to 100, what is beyond counts as that. Each token once.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Only these tokens may come: at most as many as the vocabulary has.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// What all random numbers follow from.
    #[serde(deserialize_with = "whole::option")]
    pub seed: Option<i64>,
    /// Answers to the prompt.
    #[schema(minimum = 1)]
    #[serde(deserialize_with = "whole::option")]
    pub n: Option<u32>,
    /// Answers to choose the best `n` of.
    #[schema(minimum = 1)]
    #[serde(deserialize_with = "whole::option")]
    pub best_of: Option<u32>,
    /// Texts that end the answer: at most 64, of 4,096 bytes together.
    pub stop: Option<Stop>,
    /// Tokens that end the answer: at most 1,024.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Whether the text that ended the answer is part of it.
    pub include_stop_str_in_output: Option<bool>,
    /// Tokens before which the answer does not end by itself.
    #[serde(deserialize_with = "whole::option")]
    pub min_tokens: Option<usize>,
    /// Go on past the model's end tokens.
    pub ignore_eos: Option<bool>,
    /// Leave special tokens out of the text [default: true]. The token that ends the answer is never part of it.
    pub skip_special_tokens: Option<bool>,
    /// Whether the answer comes as events.
    pub stream: Option<bool>,
    /// What the events tell.
    pub stream_options: Option<StreamOptions>,
    /// What the answer must look like.
    pub structured_outputs: Option<StructuredOutputs>,
    /// The older names of the same: a JSON schema.
    #[serde(deserialize_with = "tree::option")]
    pub guided_json: Option<Value>,
    /// A regular expression.
    pub guided_regex: Option<String>,
    /// One of these texts.
    pub guided_choice: Option<Vec<String>>,
    /// A grammar.
    pub guided_grammar: Option<String>,
    /// OpenAI's way to ask for JSON.
    pub response_format: Option<ResponseFormat>,
    /// How urgent it is: lower goes first, where the policy asks for priorities.
    #[serde(deserialize_with = "whole::option")]
    pub priority: Option<i64>,
    /// Keeps its cached blocks apart from those of requests with another salt: at most 512 bytes.
    #[schema(max_length = 512)]
    pub cache_salt: Option<String>,
    /// The longer job that it is a step of: at most 512 bytes.
    #[schema(max_length = 512)]
    pub job_id: Option<String>,
    /// Whether it is that job's last step.
    pub is_last_step: Option<bool>,
    /// Whether chunks and answers tell the ids of their tokens.
    pub return_token_ids: Option<bool>,
}

/// One text or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub enum Stop {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// What the events of a stream tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StreamOptions {
    /// End with an event that counts tokens.
    pub include_usage: Option<bool>,
    /// Count tokens in every event.
    pub continuous_usage_stats: Option<bool>,
}

/// vLLM's way to say what an answer must look like. At most one of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StructuredOutputs {
    /// A JSON schema, as an object or its text.
    #[serde(deserialize_with = "tree::option")]
    pub json: Option<Value>,
    /// Any JSON object.
    pub json_object: Option<bool>,
    /// A regular expression.
    pub regex: Option<String>,
    /// One of these texts.
    pub choice: Option<Vec<String>>,
    /// A grammar, in llguidance's dialect of Lark.
    pub grammar: Option<String>,
    /// Whether an object whose schema declares properties has no others, unless the schema says `additionalProperties`
    /// [default: what the server's operator chose, which is true unless changed].
    pub disable_additional_properties: Option<bool>,
    /// Refused: `x-guidance` within the schema says how white space is written.
    pub whitespace_pattern: Option<String>,
    /// Refused.
    #[serde(deserialize_with = "tree::option")]
    pub structural_tag: Option<Value>,
}

/// OpenAI's way to ask for JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Anything.
    Text,
    /// Any JSON object.
    JsonObject {
        /// What it looks like, for clients that say it here.
        #[serde(
            default,
            deserialize_with = "tree::option",
            skip_serializing_if = "Option::is_none"
        )]
        schema: Option<Value>,
    },
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema.
        json_schema: NamedSchema,
    },
}

/// A schema with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedSchema {
    /// Its name.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: Option<String>,
    /// The schema.
    #[serde(default, deserialize_with = "tree::option")]
    pub schema: Option<Value>,
    /// Whether it must be followed (always so here).
    #[serde(default)]
    pub strict: Option<bool>,
}

/// Tokens of a request, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Usage {
    /// Of the prompt; of several, together.
    pub prompt_tokens: usize,
    /// Of all answers.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// More about those of the prompt.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// More about the tokens of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Those that were in the cache.
    pub cached_tokens: usize,
}

impl Usage {
    /// Of a prompt of so many tokens, so many of which were cached, and its answers.
    pub fn new(prompt: usize, cached: usize, completion: usize) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: cached },
        }
    }
}
