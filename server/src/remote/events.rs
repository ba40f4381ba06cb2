//! Reads server-sent events of a completion, whatever a server sends.

use serde::Deserialize;
use serde_json::Value;

use super::error::RemoteError;

/// Maximum number of bytes of a line.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Bytes of a response beside those of its tokens.
const BASE_BYTES: usize = 1 << 20;

/// Maximum number of bytes of a response for each token: an event with a long token, and comments between events.
const BYTES_PER_TOKEN: usize = 4 << 10;

/// Maximum number of characters of a remote message that an error repeats.
const MAX_MESSAGE_CHARS: usize = 300;

/// What an event says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// New tokens, and how the response ended, if it has.
    Tokens(Vec<u32>, Option<String>),
    /// `[DONE]`.
    Done,
}

impl Event {
    /// Whether it has tokens.
    pub fn has_tokens(&self) -> bool {
        matches!(self, Self::Tokens(tokens, _) if !tokens.is_empty())
    }
}

/// Splits what arrives into events. Its memory is bounded by the longest line.
#[derive(Debug)]
pub(super) struct EventReader {
    line: Vec<u8>,
    left: usize,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    finish_reason: Option<String>,
}

impl EventReader {
    /// Reader of a response of at most `max_tokens` tokens.
    pub fn new(max_tokens: usize) -> Self {
        let left = max_tokens.saturating_mul(BYTES_PER_TOKEN).saturating_add(BASE_BYTES);
        Self { line: Vec::new(), left }
    }

    /// Adds bytes, and appends the events that they complete.
    ///
    /// # Errors
    /// [`RemoteError`]: a line or a response that is too long, or is no completion.
    pub fn push(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), RemoteError> {
        let left = self.left.checked_sub(bytes.len());
        self.left = left.ok_or_else(|| malformed("it is longer than its tokens explain"))?;
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = rest.split_at(end);
            rest = &tail[1..];
            self.extend(head)?;
            let event = parse(&self.line);
            self.line.clear();
            events.extend(event?);
        }
        self.extend(rest)
    }

    fn extend(&mut self, part: &[u8]) -> Result<(), RemoteError> {
        if self.line.len() + part.len() > MAX_LINE_BYTES {
            return Err(malformed("it has a line of more than 1 MiB"));
        }
        self.line.extend_from_slice(part);
        Ok(())
    }
}

/// Event of a line. Comments, blank lines and fields other than `data` have none.
fn parse(line: &[u8]) -> Result<Option<Event>, RemoteError> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let fields: [&[u8]; 3] = [b"event:", b"id:", b"retry:"];
    if line.is_empty() || line[0] == b':' || fields.iter().any(|field| line.starts_with(field)) {
        return Ok(None);
    }
    let Some(data) = line.strip_prefix(b"data:") else {
        return Err(malformed("it has lines that are no server-sent events"));
    };
    let data = data.trim_ascii();
    if data == b"[DONE]" {
        return Ok(Some(Event::Done));
    }
    let chunk: Chunk = serde_json::from_slice(data)
        .map_err(|why| malformed(&format!("an event is no completion: {why}")))?;
    if let Some(error) = &chunk.error {
        return Err(RemoteError::Failed(message(error)));
    }
    // The last event of a stream with usage has no choice.
    let Some(choice) = chunk.choices.into_iter().next() else { return Ok(None) };
    let has_text = choice.text.is_some_and(|text| !text.is_empty());
    match (choice.token_ids, choice.finish_reason) {
        (None, _) if has_text => Err(RemoteError::NoTokenIds),
        (ids, finish) => Ok(Some(Event::Tokens(ids.unwrap_or_default(), finish))),
    }
}

/// Message of an error object of OpenAI's kind, or the object itself, shortened.
pub(super) fn message(error: &Value) -> String {
    let inner = error.get("error").unwrap_or(error);
    let text = inner.get("message").and_then(Value::as_str).map(str::to_owned);
    let text = text.or_else(|| inner.as_str().map(str::to_owned));
    shortened(&text.unwrap_or_else(|| inner.to_string()))
}

/// The beginning of a text.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((at, _)) => format!("{}..", &text[..at]),
        None => text.to_owned(),
    }
}

fn malformed(what: &str) -> RemoteError {
    RemoteError::Malformed(what.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Event>, RemoteError> {
        let mut events = Vec::new();
        EventReader::new(16).push(bytes, &mut events).map(|()| events)
    }

    const STREAM: &str = "event: x\r\ndata: {\"choices\":[{\"index\":0,\"text\":\"\u{fc}\",\"token_ids\":[5,6],\
        \"finish_reason\":null}]}\r\n\r\n: keep-alive\n\ndata: {\"choices\":[{\"text\":\"\",\"token_ids\":[],\
        \"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n";

    fn events() -> Vec<Event> {
        vec![
            Event::Tokens(vec![5, 6], None),
            Event::Tokens(vec![], Some("stop".into())),
            Event::Done,
        ]
    }

    #[test]
    fn a_stream_is_its_events() {
        assert_eq!(read(STREAM.as_bytes()), Ok(events()));
    }

    #[test]
    fn what_is_no_completion_is_an_error_that_says_so() {
        let error = |text: &str| read(text.as_bytes()).unwrap_err();
        assert!(matches!(error("hello\n"), RemoteError::Malformed(_)));
        assert!(matches!(error("data: {\n"), RemoteError::Malformed(_)));
        assert!(matches!(error("data: 7\n"), RemoteError::Malformed(_)));
        let ids = "data: {\"choices\":[{\"token_ids\":[-1]}]}\n";
        assert!(matches!(error(ids), RemoteError::Malformed(_)));
        assert_eq!(error("data: {\"choices\":[{\"text\":\"a\"}]}\n"), RemoteError::NoTokenIds);
        let failed = error("data: {\"error\":{\"message\":\"no memory\",\"code\":7}}\n");
        assert_eq!(failed, RemoteError::Failed("no memory".into()));
    }

    #[test]
    fn lines_and_responses_have_a_maximum_length() {
        let mut reader = EventReader::new(1 << 20);
        let (mib, mut events) = (vec![b'x'; MAX_LINE_BYTES], Vec::new());
        reader.push(&mib, &mut events).unwrap();
        assert!(matches!(reader.push(b"x", &mut events), Err(RemoteError::Malformed(_))));
        let mut reader = EventReader::new(0);
        reader.push(&b":\n".repeat(BASE_BYTES / 2), &mut events).unwrap();
        assert!(matches!(reader.push(b":\n", &mut events), Err(RemoteError::Malformed(_))));
    }

    proptest! {
        /// However a stream is cut, its events are the same.
        #[test]
        fn cuts_do_not_matter(cuts in prop::collection::vec(0usize..STREAM.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let (mut reader, mut got) = (EventReader::new(16), Vec::new());
            for pair in cuts.windows(2) {
                reader.push(&STREAM.as_bytes()[pair[0]..pair[1]], &mut got).unwrap();
            }
            prop_assert_eq!(got, events());
        }

        /// No bytes make the reader panic.
        #[test]
        fn any_bytes_are_events_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            let _ = read(&[b"data: ".as_slice(), &bytes, b"\n"].concat());
        }
    }
}
