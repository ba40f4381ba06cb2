//! Fields that completions and chats have in common.

use std::collections::BTreeMap;

use l5_scheduler::DraftCounts;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::whole;
use crate::json::tree;

/// Sampling, stopping and scheduling: fields of completions and chats. The default of a field is that of the model's
/// generation_config.json, or else OpenAI's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Sampling {
    /// Divisor of the logits. 0: greedy sampling.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Keep the likeliest tokens whose probabilities add up to this.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Keep this many of the likeliest tokens. 0 or -1: all.
    #[schema(minimum = -1)]
    #[serde(deserialize_with = "whole::option")]
    pub top_k: Option<i64>,
    /// Keep tokens at least this many times as likely as the likeliest.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Keep the tokens whose surprise is nearest to the expected one.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub typical_p: Option<f32>,
    /// Penalises tokens that are already in the output.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f32>,
    /// Penalises tokens by how often they are in the output.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f32>,
    /// Penalises tokens that are in prompt or output.
    #[schema(exclusive_minimum = 0)]
    pub repetition_penalty: Option<f32>,
    /// Added to the logits of tokens, by id; clamped to -100 to 100. Each token once.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Allowed token ids: at most as many as the vocabulary has.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Seed of all random numbers.
    #[serde(deserialize_with = "whole::option")]
    pub seed: Option<i64>,
    /// Number of choices for each prompt.
    #[schema(minimum = 1)]
    #[serde(deserialize_with = "whole::option")]
    pub n: Option<u32>,
    /// Number of choices of which the best `n` are returned.
    #[schema(minimum = 1)]
    #[serde(deserialize_with = "whole::option")]
    pub best_of: Option<u32>,
    /// Stop strings: at most 64, of 4,096 bytes together.
    pub stop: Option<Stop>,
    /// Stop tokens: at most 1,024.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Whether the stop string is part of the text.
    pub include_stop_str_in_output: Option<bool>,
    /// Minimum number of completion tokens.
    #[serde(deserialize_with = "whole::option")]
    pub min_tokens: Option<usize>,
    /// Whether generation continues past the model's end tokens.
    pub ignore_eos: Option<bool>,
    /// Whether special tokens are left out of the text [default: true]. The token that ends a choice is never part of
    /// it.
    pub skip_special_tokens: Option<bool>,
    /// Whether the response is a stream of server-sent events.
    pub stream: Option<bool>,
    /// Options of a stream.
    pub stream_options: Option<StreamOptions>,
    /// Structured output: a constraint on the text.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Older name of `structured_outputs.json`.
    #[serde(deserialize_with = "tree::option")]
    pub guided_json: Option<Value>,
    /// Older name of `structured_outputs.regex`.
    pub guided_regex: Option<String>,
    /// Older name of `structured_outputs.choice`.
    pub guided_choice: Option<Vec<String>>,
    /// Older name of `structured_outputs.grammar`.
    pub guided_grammar: Option<String>,
    /// OpenAI's structured output.
    pub response_format: Option<ResponseFormat>,
    /// Priority: a lower one is scheduled first, with a policy that has priorities.
    #[serde(deserialize_with = "whole::option")]
    pub priority: Option<i64>,
    /// Maximum number of drafts of this request in a step, where the server speculates (`--speculative-config`). 0: no
    /// speculation. A number above the server's maximum counts as that maximum. The field is ignored by a server that
    /// does not speculate, and for a model on another server.
    #[schema(minimum = 0)]
    #[serde(deserialize_with = "whole::option")]
    pub num_speculative_tokens: Option<usize>,
    /// Salt of the prefix cache: blocks are shared only between requests with the same one. At most 512 bytes.
    #[schema(max_length = 512)]
    pub cache_salt: Option<String>,
    /// Id of the agent's job that this request is a step of: 1 to 512 bytes. Steps of one job may overlap. Jobs of
    /// different API keys, or of different values of `cache_salt`, are different jobs.
    #[schema(min_length = 1, max_length = 512)]
    pub job_id: Option<String>,
    /// Whether this request is the job's last step: its KV cache is not kept for another one. Without a `job_id` it
    /// says nothing.
    pub is_last_step: Option<bool>,
    /// The job, for clients that do not merge their `extra_body` into the request.
    pub extra_body: Option<ExtraBody>,
    /// Whether token ids are returned.
    pub return_token_ids: Option<bool>,
}

/// An `extra_body` that was sent as it is. OpenAI's clients merge it into the request; with others it arrives as an
/// object. The step of a job is read from it, all other fields are ignored. Fields of the request take precedence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ExtraBody {
    /// As `job_id` of the request.
    #[schema(min_length = 1, max_length = 512)]
    pub job_id: Option<String>,
    /// As `is_last_step` of the request.
    pub is_last_step: Option<bool>,
}

impl Sampling {
    /// Id of the job that the request is a step of.
    pub fn job_id(&self) -> Option<&str> {
        let nested = || self.extra_body.as_ref()?.job_id.as_deref();
        self.job_id.as_deref().or_else(nested)
    }

    /// Whether the request says that it is the last step of its job.
    pub fn is_last_step(&self) -> bool {
        let nested = || self.extra_body.as_ref()?.is_last_step;
        self.is_last_step.or_else(nested) == Some(true)
    }

    /// Whether the client chooses among tokens itself, by a bias or a list.
    pub fn chooses_tokens(&self) -> bool {
        self.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty())
            || self.allowed_token_ids.is_some()
    }

    /// Whether a field asks for output that follows a guide.
    pub fn is_guided(&self) -> bool {
        self.guide_field().is_some()
    }

    /// The field that constrains the text, the first of several.
    pub fn guide_field(&self) -> Option<&'static str> {
        let format = &self.response_format;
        let fields = [
            ("structured_outputs", self.structured_outputs.is_some()),
            ("guided_json", self.guided_json.is_some()),
            ("guided_regex", self.guided_regex.is_some()),
            ("guided_choice", self.guided_choice.is_some()),
            ("guided_grammar", self.guided_grammar.is_some()),
            (
                "response_format",
                format.as_ref().is_some_and(|format| *format != ResponseFormat::Text),
            ),
        ];
        fields.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }
}

/// One stop string or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Stop {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StreamOptions {
    /// Whether the last event has the usage.
    pub include_usage: Option<bool>,
    /// Whether every event has the usage.
    pub continuous_usage_stats: Option<bool>,
}

/// vLLM's structured output. At most one constraint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StructuredOutputs {
    /// JSON schema, as an object or a string.
    #[serde(deserialize_with = "tree::option")]
    pub json: Option<Value>,
    /// Any JSON object.
    pub json_object: Option<bool>,
    /// Regular expression.
    pub regex: Option<String>,
    /// One of these texts.
    pub choice: Option<Vec<String>>,
    /// Grammar, in llguidance's dialect of Lark.
    pub grammar: Option<String>,
    /// Whether an object whose schema declares properties has no others, unless the schema says `additionalProperties`
    /// [default: what the server's operator chose, which is true unless changed].
    pub disable_additional_properties: Option<bool>,
    /// Not supported: use `x-guidance` within the schema.
    pub whitespace_pattern: Option<String>,
    /// Not supported.
    #[serde(deserialize_with = "tree::option")]
    pub structural_tag: Option<Value>,
}

/// OpenAI's structured output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Any text.
    Text,
    /// Any JSON object.
    JsonObject {
        /// JSON schema of the object, where clients send it with this type.
        #[serde(
            default,
            deserialize_with = "tree::option",
            skip_serializing_if = "Option::is_none"
        )]
        schema: Option<Value>,
    },
    /// JSON that a schema describes.
    JsonSchema {
        /// Schema with its name.
        json_schema: NamedSchema,
    },
}

/// A schema with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedSchema {
    /// Name of the schema.
    pub name: String,
    /// What the schema is for.
    #[serde(default)]
    pub description: Option<String>,
    /// The schema.
    #[serde(default, deserialize_with = "tree::option")]
    pub schema: Option<Value>,
    /// Whether the schema must be followed (always so here).
    #[serde(default)]
    pub strict: Option<bool>,
}

/// Token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Tokens of all choices.
    pub completion_tokens: usize,
    /// Sum of both.
    pub total_tokens: usize,
    /// Details of the prompt tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Details of the completion tokens, where the server speculates: in the usage of a whole request, not in that of
    /// single events of a stream (`continuous_usage_stats`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// Details of prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Tokens found in the prefix cache.
    pub cached_tokens: usize,
}

/// Details of completion tokens: drafts of all choices, under the names that OpenAI has for tokens of a prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Drafts that became completion tokens.
    pub accepted_prediction_tokens: usize,
    /// Drafts that did not. Unlike OpenAI's, they are not among the completion tokens.
    pub rejected_prediction_tokens: usize,
}

impl From<DraftCounts> for CompletionTokensDetails {
    fn from(drafts: DraftCounts) -> Self {
        Self {
            accepted_prediction_tokens: drafts.accepted,
            rejected_prediction_tokens: drafts.rejected(),
        }
    }
}

impl Usage {
    /// Usage of prompts, their cached tokens, and all choices.
    pub fn new(prompt: usize, cached: usize, completion: usize) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: cached },
            completion_tokens_details: None,
        }
    }
}
