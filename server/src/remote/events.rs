//! Reads server-sent events, whatever a server sends.

use super::error::RemoteError;
use super::wire::{Decoder, Event, malformed};

/// Maximum number of bytes of a line.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Bytes of a response beside those of its tokens.
const BASE_BYTES: usize = 1 << 20;

/// Maximum number of bytes of a response for each token: an event with a long token, and comments between events.
const BYTES_PER_TOKEN: usize = 4 << 10;

/// Splits what arrives into events, and decodes them. Its memory is bounded by the longest line.
pub(super) struct EventReader {
    decoder: Box<dyn Decoder>,
    line: Vec<u8>,
    left: usize,
}

impl EventReader {
    /// Reader of a response of at most `max_tokens` tokens.
    pub fn new(decoder: Box<dyn Decoder>, max_tokens: usize) -> Self {
        let left = max_tokens.saturating_mul(BYTES_PER_TOKEN).saturating_add(BASE_BYTES);
        Self { decoder, line: Vec::new(), left }
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
            let event = match data(&self.line) {
                Ok(Some(data)) => self.decoder.decode(data),
                Ok(None) => Ok(None),
                Err(why) => Err(why),
            };
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

/// Data of a line. Comments, blank lines and fields other than `data` have none.
fn data(line: &[u8]) -> Result<Option<&[u8]>, RemoteError> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let fields: [&[u8]; 3] = [b"event:", b"id:", b"retry:"];
    if line.is_empty() || line[0] == b':' || fields.iter().any(|field| line.starts_with(field)) {
        return Ok(None);
    }
    match line.strip_prefix(b"data:") {
        Some(data) => Ok(Some(data.trim_ascii())),
        None => Err(malformed("it has lines that are no server-sent events")),
    }
}

#[cfg(test)]
mod tests {
    use l5_scheduler::FinishReason;
    use l6_ensemble::RemoteApi;
    use proptest::prelude::*;

    use super::super::wire::wire;
    use super::*;

    fn reader(api: RemoteApi, max_tokens: usize) -> EventReader {
        EventReader::new(wire(api, None).decoder(), max_tokens)
    }

    fn read(bytes: &[u8]) -> Result<Vec<Event>, RemoteError> {
        let mut events = Vec::new();
        reader(RemoteApi::OpenAi, 16).push(bytes, &mut events).map(|()| events)
    }

    const STREAM: &str = "event: x\r\ndata: {\"choices\":[{\"index\":0,\"text\":\"\u{fc}\",\"token_ids\":[5,6],\
        \"finish_reason\":null}]}\r\n\r\n: keep-alive\n\ndata: {\"choices\":[{\"text\":\"\",\"token_ids\":[],\
        \"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n";

    fn events() -> Vec<Event> {
        vec![
            Event::Tokens(vec![5, 6], None),
            Event::Tokens(vec![], Some(FinishReason::Stop)),
            Event::Done,
        ]
    }

    #[test]
    fn a_stream_is_its_events() {
        assert_eq!(read(STREAM.as_bytes()), Ok(events()));
    }

    #[test]
    fn what_is_no_stream_is_an_error_that_says_so() {
        assert!(matches!(read(b"hello\n"), Err(RemoteError::Malformed(_))));
        assert!(matches!(read(b"data: {\n"), Err(RemoteError::Malformed(_))));
    }

    #[test]
    fn lines_and_responses_have_a_maximum_length() {
        let mut long = reader(RemoteApi::OpenAi, 1 << 20);
        let (mib, mut events) = (vec![b'x'; MAX_LINE_BYTES], Vec::new());
        long.push(&mib, &mut events).unwrap();
        assert!(matches!(long.push(b"x", &mut events), Err(RemoteError::Malformed(_))));
        let mut empty = reader(RemoteApi::OpenAi, 0);
        empty.push(&b":\n".repeat(BASE_BYTES / 2), &mut events).unwrap();
        assert!(matches!(empty.push(b":\n", &mut events), Err(RemoteError::Malformed(_))));
    }

    proptest! {
        /// However a stream is cut, its events are the same.
        #[test]
        fn cuts_do_not_matter(cuts in prop::collection::vec(0usize..STREAM.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let (mut reader, mut got) = (reader(RemoteApi::OpenAi, 16), Vec::new());
            for pair in cuts.windows(2) {
                reader.push(&STREAM.as_bytes()[pair[0]..pair[1]], &mut got).unwrap();
            }
            prop_assert_eq!(got, events());
        }

        /// No bytes make a reader panic.
        #[test]
        fn any_bytes_are_events_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for api in [RemoteApi::OpenAi, RemoteApi::LlamaServer] {
                let _ = reader(api, 16).push(&bytes, &mut Vec::new());
                let line = [b"data: ".as_slice(), &bytes, b"\n"].concat();
                let _ = reader(api, 16).push(&line, &mut Vec::new());
            }
        }
    }
}
