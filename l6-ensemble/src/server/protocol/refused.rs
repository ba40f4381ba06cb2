//! Fields that this server knows of and does not have.
//!
//! The rule: a field that would change the response is honoured, or refused with its name unless its value asks for
//! nothing. Any other unknown field is ignored, as OpenAI-compatible servers do: clients send fields of other servers and
//! later versions (`store`, `metadata`, `service_tier`, `safety_identifier`, ...) and expect the rest to work.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::server::error::ApiError;
use crate::server::json::part;

/// Which value of a field asks for nothing. Null always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Neutral {
    /// No other.
    Null,
    /// False, 0, an empty text, list or object.
    Empty,
    /// 1.
    One,
}

use Neutral::{Empty, Null, One};

/// Of completions and chats. The last word of a row says what to do instead.
const EVERYWHERE: [(&str, Neutral, &str); 20] = [
    ("prompt_logprobs", Null, "there are no log probabilities of prompts here"),
    ("use_beam_search", Empty, "ask for several answers with `n`"),
    ("length_penalty", One, "it belongs to beam search, which is not here"),
    ("early_stopping", Empty, "it belongs to beam search, which is not here"),
    ("logits_processors", Empty, "send `logit_bias` or `allowed_token_ids`"),
    ("mm_processor_kwargs", Empty, "this server reads text only"),
    ("prompt_embeds", Empty, "send text or token ids"),
    ("bad_words", Empty, "send `logit_bias`"),
    ("thinking_token_budget", Null, "limit the whole answer with `max_tokens`"),
    ("guided_whitespace_pattern", Null, "send `x-guidance` within the schema"),
    (
        "grammar",
        Empty,
        "GBNF is not read here: send `guided_grammar`, in llguidance's dialect of Lark",
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

/// Of chats.
const IN_CHATS: [(&str, Neutral, &str); 10] = [
    ("functions", Null, "send `tools`, which took its place"),
    ("function_call", Null, "send `tool_choice`, which took its place"),
    ("audio", Null, "this server's answers are text"),
    ("chat_template", Null, "the server's operator chooses the template"),
    ("web_search_options", Null, "this server searches nothing"),
    ("echo", Empty, "a message is continued with `continue_final_message`"),
    ("best_of", One, "ask for several answers with `n`"),
    ("truncate_prompt_tokens", Null, "leave out the oldest messages"),
    ("add_special_tokens", Empty, "the chat template writes them"),
    ("return_tokens_as_token_ids", Empty, "send `return_token_ids`"),
];

/// Refuse what a completion asks for and does not get.
///
/// # Errors
/// [`ApiError`] with the field.
pub fn in_completion(body: &[u8]) -> Result<(), ApiError> {
    let Asked { everywhere, .. } = part(body)?;
    refuse(everywhere)
}

/// Refuse what a chat asks for and does not get.
///
/// # Errors
/// [`ApiError`] with the field.
pub fn in_chat(body: &[u8]) -> Result<(), ApiError> {
    let Asked { everywhere, in_chats, other_modality } = part(body)?;
    let modality = ("modalities", "this server's answers are text");
    refuse(in_chats.or(everywhere).or(other_modality.then_some(modality)))
}

fn refuse(asked: Option<(&'static str, &'static str)>) -> Result<(), ApiError> {
    let Some((field, instead)) = asked else { return Ok(()) };
    Err(ApiError::param(field, format!("{field}: not supported: {instead}")))
}

/// The first field of each kind that asks for something, and what to do instead.
#[derive(Debug, Default)]
struct Asked {
    everywhere: Option<(&'static str, &'static str)>,
    in_chats: Option<(&'static str, &'static str)>,
    /// Whether something other than text is asked for.
    other_modality: bool,
}

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Asked;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asked, A::Error> {
                let mut asked = Asked::default();
                while let Some(field) = map.next_key::<String>()? {
                    let row = |rows: &[(&'static str, Neutral, &'static str)]| {
                        rows.iter().find(|(name, ..)| *name == field).copied()
                    };
                    if field == "modalities" {
                        let kinds = map.next_value::<Option<Vec<String>>>()?;
                        asked.other_modality = kinds.iter().flatten().any(|kind| kind != "text");
                    } else if let Some((name, neutral, instead)) = row(&EVERYWHERE) {
                        if map.next_value::<Given>()?.asks(neutral) {
                            asked.everywhere.get_or_insert((name, instead));
                        }
                    } else if let Some((name, neutral, instead)) = row(&IN_CHATS) {
                        if map.next_value::<Given>()?.asks(neutral) {
                            asked.in_chats.get_or_insert((name, instead));
                        }
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(asked)
            }
        }
        from.deserialize_map(Fields)
    }
}

/// As much of a value as [`Neutral`] asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Null,
    Empty,
    One,
    Something,
}

impl Given {
    fn asks(self, neutral: Neutral) -> bool {
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
        assert!(error.message.contains("not supported: "), "{error}");
        error.param
    }

    #[test]
    fn a_field_is_refused_unless_its_value_asks_for_nothing() {
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
    fn answers_are_text() {
        assert_eq!(refused(in_chat, &json!({"modalities": ["text"]})), None);
        let both = json!({"modalities": ["text", "audio"]});
        assert_eq!(refused(in_chat, &both).as_deref(), Some("modalities"));
        assert_eq!(refused(in_completion, &both), None);
    }
}
