//! One call in the JSON form of models: `{"name": ..., "arguments": {...}}`, read incrementally.

use std::ops::Range;

use serde_json::{Map, Value};

use super::scan::{Mark, Scanner};

/// The object around a call's arguments.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Envelope {
    /// All text so far.
    raw: String,
    /// Number of bytes read.
    read: usize,
    scanner: Scanner,
    /// Start of the last key or value of the outermost object.
    from: usize,
    /// Last key of the outermost object.
    key: String,
    name: Option<String>,
    arguments: Arguments,
}

/// State of a call's arguments.
#[derive(Clone, Debug, Default, PartialEq)]
enum Arguments {
    /// None yet.
    #[default]
    None,
    /// Begun at this byte.
    Open(usize),
    /// Complete, in this range of bytes.
    Whole(Range<usize>),
    /// Complete; written by the model as a JSON string, or as `null`.
    Written(String),
}

/// State of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The object continues.
    More,
    /// The object has ended.
    Done,
    /// The text is not JSON, or not a call.
    Broken,
}

impl Envelope {
    /// Appends text and reads it. Text behind the end, or behind the first invalid byte, stays
    /// [unread](Self::unread).
    pub(super) fn push(&mut self, text: &str) -> Progress {
        self.raw.push_str(text);
        while let Some(&byte) = self.raw.as_bytes().get(self.read) {
            let Ok(mark) = self.scanner.read(byte) else { return Progress::Broken };
            if self.outermost(mark, self.read).is_none() {
                return Progress::Broken;
            }
            self.read += 1;
            if self.scanner.done() {
                return Progress::Done;
            }
        }
        Progress::More
    }

    /// Handles a mark of the outermost object. Returns `None` if the object cannot become a call.
    fn outermost(&mut self, mark: Mark, at: usize) -> Option<()> {
        // A value has the depth of its surroundings; a list or an object counts from its first byte to its
        // last.
        let container = matches!(self.raw.as_bytes().get(at)?, b'{' | b'[');
        let depth = match mark {
            Mark::ValueStart if container => self.scanner.depth() - 1,
            _ => self.scanner.depth(),
        };
        if depth != 1 {
            return Some(());
        }
        match mark {
            Mark::KeyStart => self.from = at,
            Mark::KeyEnd => self.key = self.text(self.from..at + 1)?,
            Mark::ValueStart => {
                self.from = at;
                let first = *self.raw.as_bytes().get(at)?;
                match self.field() {
                    Field::Name if first != b'"' => return None,
                    Field::Arguments if first == b'{' => self.arguments = Arguments::Open(at),
                    Field::Arguments if !matches!(first, b'"' | b'n') => return None,
                    _ => {}
                }
            }
            Mark::ValueEnd => {
                let range = self.from..at + 1;
                match self.field() {
                    Field::Name => {
                        let name = self.text(range)?;
                        if name.is_empty() {
                            return None;
                        }
                        self.name = Some(name);
                    }
                    Field::Arguments => self.arguments = self.whole(range)?,
                    Field::Other => {}
                }
            }
            Mark::Within => {}
        }
        Some(())
    }

    /// Field of the last key. Only the first field of each kind counts: its value may have been sent already.
    fn field(&self) -> Field {
        let open = matches!(self.arguments, Arguments::None | Arguments::Open(_));
        match self.key.as_str() {
            "name" if self.name.is_none() => Field::Name,
            "arguments" | "parameters" if open => Field::Arguments,
            _ => Field::Other,
        }
    }

    fn whole(&self, range: Range<usize>) -> Option<Arguments> {
        if let Arguments::Open(_) = self.arguments {
            return Some(Arguments::Whole(range));
        }
        let text = self.raw.get(range.clone())?;
        if text == "null" {
            return Some(Arguments::Written("{}".into()));
        }
        // Arguments as a JSON string, as in OpenAI's own objects.
        let text = self.text(range)?;
        serde_json::from_str::<Map<String, Value>>(&text).ok()?;
        Some(Arguments::Written(text))
    }

    fn text(&self, range: Range<usize>) -> Option<String> {
        serde_json::from_str(self.raw.get(range)?).ok()
    }

    /// Name of the function, once it is complete.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Arguments so far; `None` before they begin.
    pub(super) fn arguments(&self) -> Option<&str> {
        match &self.arguments {
            Arguments::None => None,
            Arguments::Open(from) => self.raw.get(*from..self.read),
            Arguments::Whole(range) => self.raw.get(range.clone()),
            Arguments::Written(text) => Some(text),
        }
    }

    /// Whether the arguments are complete.
    pub(super) fn has_all_arguments(&self) -> bool {
        matches!(self.arguments, Arguments::Whole(_) | Arguments::Written(_))
    }

    /// Text behind the bytes read.
    pub(super) fn unread(&self) -> &str {
        self.raw.get(self.read..).unwrap_or_default()
    }

    /// The whole text.
    pub(super) fn raw(&self) -> &str {
        &self.raw
    }
}

/// A field of the outermost object.
enum Field {
    Name,
    Arguments,
    Other,
}
