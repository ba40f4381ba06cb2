//! Calls of tools in an answer's text.
//!
//! Models write calls into their text, each family in its own way ([`ToolFormat`]). [`ToolParser`] finds them while the
//! text comes; [`guide`] makes a model call what it must call.

mod envelope;
mod forced;
mod guide;
mod json;
mod scan;
#[cfg(test)]
mod tests;

pub use guide::guide;

use forced::Arguments;
use json::{JsonCalls, Tags};

use crate::server::protocol::chat::{Tool, ToolChoice, ToolMode};

/// How a model writes calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolFormat {
    /// It was not taught to. It calls what a request requires all the same, since a guide makes it: see [`guide`].
    #[default]
    None,
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `{"name": ..., "parameters": {...}}`, possibly after `<|python_tag|>`: Llama 3.1 and later.
    Llama3Json,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text beside calls.
    Text(String),
    /// A call begins. Calls are counted from 0.
    Begin {
        /// Which call.
        index: usize,
        /// What is called.
        name: String,
    },
    /// The arguments of a call go on: together they are JSON, unless the model wrote something else.
    Arguments {
        /// Which call.
        index: usize,
        /// The next piece.
        delta: String,
    },
}

impl ToolFormat {
    /// What a chat template shows of it.
    pub fn detect(template: &str) -> Self {
        let says = |text| template.contains(text);
        if says("<tool_call>") {
            // Qwen3-Coder writes the same tag around another language.
            if says("<function=") { Self::None } else { Self::Hermes }
        } else if says("<|python_tag|>") || says("\"parameters\": dictionary") {
            Self::Llama3Json
        } else {
            Self::None
        }
    }
}

/// Finds calls in text that comes in pieces. However it is cut, what comes out is the same when joined, and nothing is lost:
/// what looked like a call and is none comes out as text.
#[derive(Clone, Debug)]
pub struct ToolParser(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// Everything is text.
    Text,
    /// There may be calls.
    Calls(Box<JsonCalls>),
    /// Everything is the arguments of one call.
    Arguments(Arguments),
}

impl ToolParser {
    /// For one answer of a model that may call these, and of which the request says whether it must. Where there is
    /// nothing to call, everything is text.
    pub fn new(format: ToolFormat, tools: &[Tool], choice: Option<&ToolChoice>) -> Self {
        let tags = match (format, choice) {
            _ if tools.is_empty() => None,
            (ToolFormat::None, Some(ToolChoice::Named(named))) => {
                return Self(Kind::Arguments(Arguments::of(&named.function.name)));
            }
            // As Llama writes calls, without a tag of which the model might know.
            (ToolFormat::None, Some(ToolChoice::Mode(ToolMode::Required))) => {
                Some(Tags { open: "<|python_tag|>", close: None, bare: true })
            }
            (ToolFormat::None, _) => None,
            (ToolFormat::Hermes, _) => {
                Some(Tags { open: "<tool_call>", close: Some("</tool_call>"), bare: false })
            }
            // The tag is a special token, and seldom part of the text.
            (ToolFormat::Llama3Json, _) => {
                Some(Tags { open: "<|python_tag|>", close: None, bare: true })
            }
        };
        let names = || tools.iter().map(|tool| tool.function.name.clone()).collect();
        Self(tags.map_or(Kind::Text, |tags| Kind::Calls(JsonCalls::new(tags, names()).into())))
    }

    /// The next piece of text. What could still become a call is held back.
    pub fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        match &mut self.0 {
            Kind::Text => emit(events, ToolEvent::Text(text.to_owned())),
            Kind::Calls(calls) => calls.push(text, events),
            Kind::Arguments(arguments) => arguments.push(text, events),
        }
    }

    /// There is no more text: what was held back is what it looks like.
    pub fn finish(&mut self, events: &mut Vec<ToolEvent>) {
        if let Kind::Calls(calls) = &mut self.0 {
            calls.finish(events);
        }
    }
}

/// Add an event: to the one before, if that goes on with the same. Nothing new is no event.
fn emit(events: &mut Vec<ToolEvent>, event: ToolEvent) {
    match (events.last_mut(), event) {
        (_, ToolEvent::Text(text)) if text.is_empty() => {}
        (_, ToolEvent::Arguments { delta, .. }) if delta.is_empty() => {}
        (Some(ToolEvent::Text(last)), ToolEvent::Text(text)) => last.push_str(&text),
        (
            Some(ToolEvent::Arguments { index: last, delta: so_far }),
            ToolEvent::Arguments { index, delta },
        ) if *last == index => so_far.push_str(&delta),
        (_, event) => events.push(event),
    }
}
