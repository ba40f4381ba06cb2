//! Server-sent events of a response.
//!
//! The client shares its machine with the server that it measures, so it reads only whether a chunk has tokens, and the
//! usage at the end. No text is kept, and no tree of JSON is built.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// Maximum length of a line in bytes.
const LONGEST_LINE: usize = 16 << 20;

/// Bytes of an incomplete line.
#[derive(Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
}

/// A line that exceeds the maximum length.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endless;

impl Lines {
    /// Hand on what each line of data holds. OpenAI's servers write an event as one `data:` line; names of events,
    /// comments that keep a connection alive and empty lines are passed over.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        mut data: impl FnMut(&[u8]),
    ) -> Result<(), Endless> {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, after) = bytes.split_at(end);
            if self.rest.is_empty() {
                of_line(line, &mut data);
            } else {
                self.rest.extend_from_slice(line);
                of_line(&self.rest, &mut data);
                self.rest.clear();
            }
            bytes = after.get(1..).unwrap_or_default();
        }
        if self.rest.len() + bytes.len() > LONGEST_LINE {
            return Err(Endless);
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }
}

fn of_line(line: &[u8], data: &mut impl FnMut(&[u8])) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if let Some(value) = line.strip_prefix(b"data:") {
        data(value.strip_prefix(b" ").unwrap_or(value));
    }
}

/// One event of a completion or of a chat.
#[derive(Deserialize)]
pub(super) struct Event {
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    /// Counted tokens, in the last event or in all of them.
    pub usage: Option<Usage>,
    /// An error after the stream had begun.
    pub error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Filled,
    delta: Option<Delta>,
    finish_reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Delta {
    role: Option<IgnoredAny>,
    #[serde(default)]
    content: Filled,
    #[serde(default)]
    reasoning_content: Filled,
    #[serde(default)]
    reasoning: Filled,
    #[serde(default)]
    tool_calls: Filled,
}

/// Tokens as the server counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Usage {
    /// Of the prompt.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Of the completion.
    #[serde(default)]
    pub completion_tokens: u64,
    /// Of the prompt, and in the cache.
    pub prompt_tokens_details: Option<Details>,
}

/// More about the tokens of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Details {
    /// Those in the cache.
    pub cached_tokens: Option<u64>,
}

impl Event {
    /// Whether it belongs to the response, and not only to its usage.
    pub(super) fn has_tokens(&self) -> bool {
        self.choices.as_ref().is_some_and(|choices| !choices.is_empty())
    }

    /// Whether it has a finish reason.
    pub(super) fn finished(&self) -> bool {
        self.choices.iter().flatten().any(|choice| choice.finish_reason.is_some())
    }

    /// Returns whether the chunk has tokens: text, or a token whose text follows later. The chunk with the role and the
    /// one with the finish reason have none.
    pub(super) fn brings(&self) -> bool {
        self.choices.iter().flatten().any(Choice::brings)
    }
}

impl Choice {
    fn brings(&self) -> bool {
        let (filled, opens) = match &self.delta {
            None => (self.text.0, false),
            Some(delta) => (delta.filled(), delta.role.is_some()),
        };
        filled || (!opens && self.finish_reason.is_none())
    }
}

impl Delta {
    fn filled(&self) -> bool {
        self.content.0 || self.reasoning_content.0 || self.reasoning.0 || self.tool_calls.0
    }
}

/// Whether a text or a list holds anything. It is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Filled(bool);

impl<'de> Deserialize<'de> for Filled {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
            type Value = Filled;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list or null")
            }

            fn visit_str<E>(self, text: &str) -> Result<Filled, E> {
                Ok(Filled(!text.is_empty()))
            }

            fn visit_unit<E>(self) -> Result<Filled, E> {
                Ok(Filled(false))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Filled, A::Error> {
                let mut some = false;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    some = true;
                }
                Ok(Filled(some))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Filled, A::Error> {
                let mut some = false;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    some = true;
                }
                Ok(Filled(some))
            }
        }
        from.deserialize_any(Look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(chunks: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut all) = (Lines::default(), Vec::new());
        for chunk in chunks {
            let keep = |data: &[u8]| all.push(String::from_utf8_lossy(data).into_owned());
            lines.feed(chunk, keep).unwrap();
        }
        all
    }

    #[test]
    fn events_come_out_whole_however_their_bytes_are_cut() {
        let text =
            b": hello\r\nevent: x\r\ndata: {\"a\":1}\r\n\r\ndata:{}\n\nid: 3\ndata: [DONE]\n\n";
        let whole = read(&[text]);
        assert_eq!(whole, ["{\"a\":1}", "{}", "[DONE]"]);
        for cut in 0..text.len() {
            let (a, b) = text.split_at(cut);
            assert_eq!(read(&[a, b]), whole, "cut at {cut}");
        }
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(read(&single), whole);
    }

    #[test]
    fn a_line_that_never_ends_is_given_up() {
        let mut lines = Lines::default();
        let chunk = vec![b'x'; 1 << 20];
        let fed: Vec<_> = (0..20).map(|_| lines.feed(&chunk, |_| ())).collect();
        assert!(fed[0].is_ok());
        assert_eq!(fed[19], Err(Endless));
    }

    #[track_caller]
    fn event(json: &str) -> Event {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn only_chunks_that_bring_tokens_are_counted() {
        for (json, brings) in [
            (r#"{"choices":[{"text":"a","finish_reason":null}]}"#, true),
            // A token that is no text yet.
            (r#"{"choices":[{"text":"","finish_reason":null}]}"#, true),
            // The last chunk may come with the reason of the end, or without a text.
            (r#"{"choices":[{"text":"a","finish_reason":"stop"}]}"#, true),
            (r#"{"choices":[{"text":"","finish_reason":"stop"}]}"#, false),
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
                false,
            ),
            (r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#, false),
            (r#"{"choices":[{"delta":{"role":"assistant","content":"a"}}]}"#, true),
            (r#"{"choices":[{"delta":{"content":"\u00e9\n"}}]}"#, true),
            (r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#, true),
            (r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#, true),
            (r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, false),
            (r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#, false),
        ] {
            assert_eq!(event(json).brings(), brings, "{json}");
        }
    }

    #[test]
    fn counts_and_errors_are_read_where_they_are() {
        let counted = event(
            r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}}}"#,
        );
        assert!(!counted.has_tokens());
        let details = Some(Details { cached_tokens: Some(2) });
        let usage =
            Usage { prompt_tokens: 3, completion_tokens: 4, prompt_tokens_details: details };
        assert_eq!(counted.usage, Some(usage));
        let uncounted = event(r#"{"choices":[{"text":"a"}],"usage":null,"error":null}"#);
        assert!(uncounted.has_tokens() && uncounted.usage.is_none() && uncounted.error.is_none());
        assert!(event(r#"{"error":{"message":"no"}}"#).error.is_some());
    }
}
