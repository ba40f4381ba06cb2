//! Finds tool calls that are written as JSON objects, between tags or alone, in streamed text.
//!
//! ```text
//! text --tag--> between --{--> call --}--> between --end tag--> text
//! ```
//!
//! No output is lost, except white space around tags. Text that looked like a call and is none becomes text, tags
//! included. If arguments turn out to be invalid JSON after a part of them was reported, the rest is reported
//! unchanged.

use super::envelope::{Envelope, Progress};
use crate::output::event::{OutputEvent, emit};

/// Tags around calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tags {
    /// Tag that begins calls, anywhere in the output.
    pub open: &'static str,
    /// Tag that ends them. `None`: they end at the end of the output, or at text that is no call.
    pub close: Option<&'static str>,
    /// Whether a call at the very beginning needs no tag, if its name is that of a tool.
    pub bare: bool,
}

/// Finds calls. See [`super::ToolParser`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JsonCalls {
    tags: Tags,
    /// Names of tools. `None`: any name is one.
    names: Option<Vec<String>>,
    state: State,
    /// Text that is not parsed yet.
    pending: String,
    /// Skipped text, such as a tag. It becomes text again if no call follows.
    skipped: String,
    /// Number of calls that have begun.
    calls: usize,
    /// Number of bytes of the last call's arguments that were reported.
    told: usize,
    /// Whether no text was reported since the last call.
    called: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// Only white space so far.
    Start,
    /// Text. `unclosed`: the end tag of the last call is missing, and could still come.
    Text { unclosed: bool },
    /// Before a call, or behind one.
    Between { first: bool, bare: bool },
    /// In a call.
    Call { envelope: Envelope, first: bool, bare: bool },
    /// In arguments that are not valid JSON.
    Raw,
    /// All further output is text.
    Rest,
}

impl JsonCalls {
    pub(super) fn new(tags: Tags, names: Option<Vec<String>>) -> Self {
        let state = if tags.bare { State::Start } else { State::Text { unclosed: false } };
        let (pending, skipped) = (String::new(), String::new());
        Self { tags, names, state, pending, skipped, calls: 0, told: 0, called: false }
    }

    pub(super) fn push(&mut self, text: &str, events: &mut Vec<OutputEvent>) {
        self.pending.push_str(text);
        while self.step(events) {}
    }

    pub(super) fn finish(&mut self, events: &mut Vec<OutputEvent>) {
        let mut rest = std::mem::take(&mut self.skipped);
        match &self.state {
            State::Call { envelope, .. } if self.told == 0 => rest.push_str(envelope.raw()),
            // The arguments so far were reported.
            State::Call { .. } => rest.clear(),
            State::Raw => {
                self.tell_raw(self.pending.len(), events);
                rest.clear();
            }
            // Neither a call nor text: separators, and a part of an end tag.
            State::Between { first: false, .. } => rest.clear(),
            _ => rest.push_str(&self.pending),
        }
        self.pending.clear();
        // White space behind a call is dropped.
        if !self.called || !blank(&rest) {
            emit(events, OutputEvent::Text(rest));
        }
        self.state = State::Rest;
    }

    /// Parses pending text up to the next change of state. Returns whether there may be more to parse.
    fn step(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        match std::mem::replace(&mut self.state, State::Rest) {
            State::Start => self.start(),
            State::Text { unclosed } => self.text(unclosed, events),
            State::Between { first, bare } => self.between(first, bare, events),
            State::Call { envelope, first, bare } => self.call(envelope, first, bare, events),
            State::Raw => self.raw(events),
            State::Rest => {
                emit(events, OutputEvent::Text(std::mem::take(&mut self.pending)));
                false
            }
        }
    }

    fn start(&mut self) -> bool {
        let begun = !blank(&self.pending);
        self.state = match self.pending.trim_start_matches(BLANKS).bytes().next() {
            None => State::Start,
            Some(b'{' | b'[') => State::Between { first: true, bare: true },
            Some(_) => State::Text { unclosed: false },
        };
        begun
    }

    fn text(&mut self, unclosed: bool, events: &mut Vec<OutputEvent>) -> bool {
        let end = self.tags.close.filter(|_| unclosed);
        let open = seek(&self.pending, self.tags.open);
        let close = end.map_or(Seek::No(self.pending.len()), |end| seek(&self.pending, end));
        match (open, close) {
            // The missing end tag, before any other.
            (open, Seek::At { from, to }) if close.from() < open.from() => {
                self.tell_text(from, events);
                self.pending.drain(..to - from);
                self.state = State::Text { unclosed: false };
                true
            }
            (Seek::At { from, to }, _) => {
                self.tell_text(from, events);
                self.skipped.extend(self.pending.drain(..to - from));
                self.state = State::Between { first: true, bare: false };
                true
            }
            (Seek::No(_), _) => {
                self.tell_text(open.from().min(close.from()), events);
                self.state = State::Text { unclosed };
                false
            }
        }
    }

    fn between(&mut self, first: bool, bare: bool, events: &mut Vec<OutputEvent>) -> bool {
        let blanks = self.pending.len() - self.pending.trim_start_matches(BLANKS).len();
        self.skipped.extend(self.pending.drain(..blanks));
        let end = self.tags.close.filter(|_| !first && !bare);
        match self.pending.bytes().next() {
            None => {}
            Some(b'{') => {
                self.told = 0;
                self.state = State::Call { envelope: Envelope::default(), first, bare };
                return true;
            }
            // A list of calls.
            Some(b'[') if first && !self.skipped.ends_with('[') => return self.skip(first, bare),
            Some(b',' | b';' | b']') if !first => return self.skip(first, bare),
            Some(_) => {
                if let Some(end) = end.filter(|end| self.pending.starts_with(end)) {
                    self.pending.drain(..end.len());
                    self.skipped.clear();
                    self.state = State::Text { unclosed: false };
                    return true;
                }
                if end.is_none_or(|end| !end.starts_with(&self.pending)) {
                    return self.no_call(first, bare, String::new(), events);
                }
            }
        }
        self.state = State::Between { first, bare };
        false
    }

    /// Skips a byte between calls.
    fn skip(&mut self, first: bool, bare: bool) -> bool {
        self.skipped.extend(self.pending.drain(..1));
        self.state = State::Between { first, bare };
        true
    }

    fn call(
        &mut self,
        mut envelope: Envelope,
        first: bool,
        bare: bool,
        events: &mut Vec<OutputEvent>,
    ) -> bool {
        let mut progress = envelope.push(&std::mem::take(&mut self.pending));
        if let Some(name) = envelope.name() {
            if bare && self.names.as_ref().is_some_and(|all| !all.iter().any(|own| own == name)) {
                progress = Progress::Broken;
            } else if let Some(arguments) = envelope.arguments() {
                self.tell_call(name, arguments, events);
            } else if progress == Progress::Done && !bare {
                // The call has no arguments.
                self.tell_call(name, "{}", events);
            }
        }
        let told = self.told > 0;
        match progress {
            Progress::More => {
                self.state = State::Call { envelope, first, bare };
                false
            }
            // If only the last brace is missing, the arguments are still valid.
            Progress::Done | Progress::Broken
                if told && (progress == Progress::Done || envelope.has_all_arguments()) =>
            {
                self.pending = envelope.unread().to_owned();
                self.skipped.clear();
                self.state = State::Between { first: false, bare };
                true
            }
            Progress::Broken if told => {
                self.pending = envelope.unread().to_owned();
                self.skipped.clear();
                self.state = State::Raw;
                true
            }
            Progress::Done | Progress::Broken => {
                self.no_call(first, bare, envelope.raw().to_owned(), events)
            }
        }
    }

    /// Reports skipped text as text, and parses what follows it again, since it may contain calls.
    fn no_call(
        &mut self,
        first: bool,
        bare: bool,
        back: String,
        events: &mut Vec<OutputEvent>,
    ) -> bool {
        let skipped = std::mem::take(&mut self.skipped);
        self.pending.insert_str(0, &back);
        if first {
            self.called = false;
            emit(events, OutputEvent::Text(skipped));
        } else {
            self.pending.insert_str(0, &skipped);
        }
        let unclosed = !first && self.tags.close.is_some();
        self.state = if bare { State::Rest } else { State::Text { unclosed } };
        true
    }

    fn raw(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        self.state = State::Raw;
        let Some(end) = self.tags.close else {
            self.tell_raw(self.pending.len(), events);
            return false;
        };
        match seek(&self.pending, end) {
            Seek::No(upto) => {
                self.tell_raw(upto, events);
                false
            }
            Seek::At { from, to } => {
                self.tell_raw(from, events);
                self.pending.drain(..to - from);
                self.state = State::Text { unclosed: false };
                true
            }
        }
    }

    fn tell_text(&mut self, upto: usize, events: &mut Vec<OutputEvent>) {
        self.called &= upto == 0;
        emit(events, OutputEvent::Text(self.pending.drain(..upto).collect()));
    }

    fn tell_raw(&mut self, upto: usize, events: &mut Vec<OutputEvent>) {
        let arguments = self.pending.drain(..upto).collect();
        let index = self.calls.saturating_sub(1);
        emit(events, OutputEvent::ToolCallArguments { index, arguments });
    }

    fn tell_call(&mut self, name: &str, arguments: &str, events: &mut Vec<OutputEvent>) {
        if self.told == 0 {
            events.push(OutputEvent::ToolCallStart { index: self.calls, name: name.to_owned() });
            self.calls += 1;
            self.called = true;
        }
        let new = arguments.get(self.told..).unwrap_or_default().to_owned();
        self.told = arguments.len();
        emit(events, OutputEvent::ToolCallArguments { index: self.calls - 1, arguments: new });
    }
}

/// White space, as JSON has it.
const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

fn blank(text: &str) -> bool {
    text.trim_start_matches(BLANKS).is_empty()
}

/// Where a tag is, with the white space before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seek {
    /// Here.
    At { from: usize, to: usize },
    /// Nowhere yet; what is behind this place could become one.
    No(usize),
}

impl Seek {
    /// Where it is or could be.
    fn from(self) -> usize {
        match self {
            Self::At { from, .. } | Self::No(from) => from,
        }
    }
}

fn seek(text: &str, tag: &str) -> Seek {
    let without_blanks = |upto| text.get(..upto).map_or(0, |t| t.trim_end_matches(BLANKS).len());
    if let Some(at) = text.find(tag) {
        return Seek::At { from: without_blanks(at), to: at + tag.len() };
    }
    let begins = |n: &usize| tag.get(..*n).is_some_and(|part| text.ends_with(part));
    let part = (1..tag.len()).rev().find(begins).unwrap_or(0);
    Seek::No(without_blanks(text.len() - part))
}
