//! Fields of other servers that this server does not support.
//!
//! The rule: a field that would change the response is honoured, or rejected by name unless its value is neutral. Any
//! other unknown field is ignored, as OpenAI-compatible servers do: clients send fields of other servers and later
//! versions (`store`, `metadata`, `service_tier`, `safety_identifier`, ...) and expect the rest to work.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::ApiError;
use crate::json::part;

/// Neutral value of a field: one that changes nothing. Null always is neutral.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Neutral {
    /// Null only.
    Null,
    /// False, 0, an empty text, list or object.
    Empty,
    /// 1.
    One,
}

use Neutral::{Empty, Null, One};

/// Fields of completions and chats: name, neutral value, and what to do instead.
const EVERYWHERE: [(&str, Neutral, &str); 20] = [
    ("prompt_logprobs", Null, "this server has no log probabilities of prompts"),
    ("use_beam_search", Empty, "request several choices with `n`"),
    ("length_penalty", One, "it belongs to beam search"),
    ("early_stopping", Empty, "it belongs to beam search"),
    ("logits_processors", Empty, "send `logit_bias` or `allowed_token_ids`"),
    ("mm_processor_kwargs", Empty, "this server reads text only"),
    ("prompt_embeds", Empty, "send text or token ids"),
    ("bad_words", Empty, "send `logit_bias`"),
    ("thinking_token_budget", Null, "limit the completion with `max_tokens`"),
    ("guided_whitespace_pattern", Null, "send `x-guidance` within the schema"),
    (
        "grammar",
        Empty,
        "this server does not read GBNF: send `guided_grammar`, in llguidance's dialect of Lark",
    ),
    ("json_schema", Null, "send `response_format` or `structured_outputs`"),
    ("regex", Null, "send `structured_outputs`"),
    ("ebnf", Null, "send `guided_grammar`, in llguidance's dialect of Lark"),
    ("n_predict", Null, "send `max_tokens`"),
    ("repeat_penalty", One, "send `repetition_penalty`"),
    ("mirostat", Empty, "send `temperature`, `top_p`, `min_p` or `typical_p`"),
    ("dry_multiplier", Empty, "send `repetition_penalty` or `frequency_penalty`"),
    ("xtc_probability", Empty, "send `temperature` or `min_p`"),
    ("top_n_sigma", Null, "send `min_p`"),
];

/// Fields of chats.
const IN_CHATS: [(&str, Neutral, &str); 10] = [
    ("functions", Null, "send `tools`, which took its place"),
    ("function_call", Null, "send `tool_choice`, which took its place"),
    ("audio", Null, "this server generates text only"),
    ("chat_template", Null, "the server's operator chooses the template"),
    ("web_search_options", Null, "this server has no web search"),
    ("echo", Empty, "a message is continued with `continue_final_message`"),
    ("best_of", One, "request several choices with `n`"),
    ("truncate_prompt_tokens", Null, "leave out the oldest messages"),
    ("add_special_tokens", Empty, "the chat template writes them"),
    ("return_tokens_as_token_ids", Empty, "send `return_token_ids`"),
];

/// Rejects unsupported fields of a completion.
///
/// # Errors
/// [`ApiError`] with the field.
pub fn in_completion(body: &[u8]) -> Result<(), ApiError> {
    let UnsupportedFields { everywhere, .. } = part(body)?;
    reject(everywhere)
}

/// Rejects unsupported fields of a chat.
///
/// # Errors
/// [`ApiError`] with the field.
pub fn in_chat(body: &[u8]) -> Result<(), ApiError> {
    let UnsupportedFields { everywhere, in_chats, other_modality } = part(body)?;
    let modality = ("modalities", "this server generates text only");
    reject(in_chats.or(everywhere).or(other_modality.then_some(modality)))
}

fn reject(found: Option<(&'static str, &'static str)>) -> Result<(), ApiError> {
    let Some((field, instead)) = found else { return Ok(()) };
    Err(ApiError::param(field, format!("`{field}` is not supported by this server: {instead}")))
}

/// First unsupported field of each kind, and what to do instead.
#[derive(Debug, Default)]
struct UnsupportedFields {
    everywhere: Option<(&'static str, &'static str)>,
    in_chats: Option<(&'static str, &'static str)>,
    /// Whether a modality other than text is requested.
    other_modality: bool,
}

impl<'de> Deserialize<'de> for UnsupportedFields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = UnsupportedFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<UnsupportedFields, A::Error> {
                let mut found = UnsupportedFields::default();
                while let Some(field) = map.next_key::<String>()? {
                    let row = |rows: &[(&'static str, Neutral, &'static str)]| {
                        rows.iter().find(|(name, ..)| *name == field).copied()
                    };
                    if field == "modalities" {
                        let kinds = map.next_value::<Option<Vec<String>>>()?;
                        found.other_modality = kinds.iter().flatten().any(|kind| kind != "text");
                    } else if let Some((name, neutral, instead)) = row(&EVERYWHERE) {
                        if map.next_value::<Given>()?.differs_from(neutral) {
                            found.everywhere.get_or_insert((name, instead));
                        }
                    } else if let Some((name, neutral, instead)) = row(&IN_CHATS) {
                        if map.next_value::<Given>()?.differs_from(neutral) {
                            found.in_chats.get_or_insert((name, instead));
                        }
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(found)
            }
        }
        from.deserialize_map(Fields)
    }
}

/// Kind of a value, as far as [`Neutral`] distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Null,
    Empty,
    One,
    Something,
}

impl Given {
    fn differs_from(self, neutral: Neutral) -> bool {
        match self {
            Self::Null => false,
            Self::Empty => neutral != Empty,
            Self::One => neutral != One,
            Self::Something => true,
        }
    }

    fn empty_if(empty: bool) -> Self {
        if empty { Self::Empty } else { Self::Something }
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Given;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: Error>(self) -> Result<Given, E> {
                Ok(Given::Null)
            }

            fn visit_bool<E: Error>(self, on: bool) -> Result<Given, E> {
                Ok(Given::empty_if(!on))
            }

            fn visit_u64<E: Error>(self, n: u64) -> Result<Given, E> {
                Ok(if n == 1 { Given::One } else { Given::empty_if(n == 0) })
            }

            fn visit_i64<E: Error>(self, n: i64) -> Result<Given, E> {
                Ok(Given::empty_if(n == 0))
            }

            fn visit_f64<E: Error>(self, x: f64) -> Result<Given, E> {
                Ok(if x == 1.0 { Given::One } else { Given::empty_if(x == 0.0) })
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Given, E> {
                Ok(Given::empty_if(text.is_empty()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Given, A::Error> {
                let mut empty = true;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    empty = false;
                }
                Ok(Given::empty_if(empty))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given, A::Error> {
                let mut empty = true;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    empty = false;
                }
                Ok(Given::empty_if(empty))
            }
        }
        from.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(check: fn(&[u8]) -> Result<(), ApiError>, body: &Value) -> Option<String> {
        let error = check(body.to_string().as_bytes()).err()?;
        assert!(error.message.contains("is not supported by this server: "), "{error}");
        error.param
    }

    #[test]
    fn a_field_is_rejected_unless_its_value_is_neutral() {
        for (field, neutral, _) in EVERYWHERE.into_iter().chain(IN_CHATS) {
            let everywhere = EVERYWHERE.iter().any(|(name, ..)| *name == field);
            for (value, kind) in [
                (json!(null), None),
                (json!(false), Some(Empty)),
                (json!(0), Some(Empty)),
                (json!(""), Some(Empty)),
                (json!([]), Some(Empty)),
                (json!({}), Some(Empty)),
                (json!(1), Some(One)),
                (json!(1.0), Some(One)),
                (json!(true), Some(Null)),
                (json!(-2), Some(Null)),
                (json!(0.5), Some(Null)),
                (json!("x"), Some(Null)),
                (json!([0]), Some(Null)),
                (json!({"a": 1}), Some(Null)),
            ] {
                let mut body = json!({"model": "m", "store": true});
                body[field] = value;
                let asks = kind.is_some_and(|kind| kind == Null || kind != neutral);
                let expected = asks.then(|| field.to_owned());
                assert_eq!(refused(in_chat, &body), expected, "{body}");
                assert_eq!(
                    refused(in_completion, &body),
                    expected.filter(|_| everywhere),
                    "{body}"
                );
            }
        }
    }

    #[test]
    fn only_the_modality_text_is_supported() {
        assert_eq!(refused(in_chat, &json!({"modalities": ["text"]})), None);
        let both = json!({"modalities": ["text", "audio"]});
        assert_eq!(refused(in_chat, &both).as_deref(), Some("modalities"));
        assert_eq!(refused(in_completion, &both), None);
    }
}
