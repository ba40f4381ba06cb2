//! Tool calls in a model's output.
//!
//! Models write calls into their text, each family in its own format ([`ToolFormat`]). [`ToolParser`] finds them while
//! the text arrives; [`guide()`] is the grammar of an output that must call.

mod envelope;
mod forced;
mod guide;
mod json;
mod scan;
#[cfg(test)]
mod tests;

pub use guide::{ToolError, guide};

use serde_json::Value;

use forced::Arguments;
use json::{JsonCalls, Tags};

use super::event::{OutputEvent, emit};

/// Format of a model's tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolFormat {
    /// The model was not trained to call tools. With a required tool choice, a guide makes it: see [`guide`].
    #[default]
    None,
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `{"name": ..., "parameters": {...}}`, possibly after `<|python_tag|>`: Llama 3.1 and later.
    Llama3Json,
}

/// A function that the model may call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ToolDefinition<'a> {
    /// Name of the function.
    pub name: &'a str,
    /// JSON schema of its arguments. `None` or `null`: it takes none; `true`: any object.
    pub parameters: Option<&'a Value>,
}

/// Tool choice: whether the output must call a tool, and which one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// No tool may be called.
    None,
    /// The model decides.
    #[default]
    Auto,
    /// At least one tool must be called.
    Required,
    /// The function of this name must be called.
    Named(String),
}

impl ToolFormat {
    /// Detects the format of a model by its chat template.
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

const HERMES_TAGS: Tags = Tags { open: "<tool_call>", close: Some("</tool_call>"), bare: false };

/// The tag is a special token, and seldom part of the text.
const LLAMA3_TAGS: Tags = Tags { open: "<|python_tag|>", close: None, bare: true };

/// Finds tool calls in streamed text. The events, joined, do not depend on how the text is split, and no text is lost:
/// what looked like a call and is none becomes text.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolParser(Kind);

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// The whole output is text.
    Text,
    /// The output may contain calls.
    Calls(Box<JsonCalls>),
    /// The whole output is the arguments of one call.
    Arguments(Arguments),
}

impl ToolParser {
    /// Creates the parser of one choice. Without tools, the whole output is text.
    pub fn new(format: ToolFormat, tools: &[ToolDefinition<'_>], choice: &ToolChoice) -> Self {
        let tags = match (format, choice) {
            _ if tools.is_empty() => None,
            (ToolFormat::None, ToolChoice::Named(name)) => {
                return Self(Kind::Arguments(Arguments::of(name)));
            }
            // As Llama writes calls: no tag is required.
            (ToolFormat::None, ToolChoice::Required) => Some(LLAMA3_TAGS),
            (ToolFormat::None, _) => None,
            (ToolFormat::Hermes, _) => Some(HERMES_TAGS),
            (ToolFormat::Llama3Json, _) => Some(LLAMA3_TAGS),
        };
        let names = || Some(tools.iter().map(|tool| tool.name.to_owned()).collect());
        Self(tags.map_or(Kind::Text, |tags| Kind::Calls(JsonCalls::new(tags, names()).into())))
    }

    /// Parsers of all formats, for an output whose format and tools are not known: a call to any function counts.
    pub(super) fn any() -> Vec<Self> {
        let calls = |tags| Self(Kind::Calls(JsonCalls::new(tags, None).into()));
        [HERMES_TAGS, LLAMA3_TAGS].map(calls).into()
    }

    /// Parses the next text. Text that could still become a call is held back.
    pub fn push(&mut self, text: &str, events: &mut Vec<OutputEvent>) {
        match &mut self.0 {
            Kind::Text => emit(events, OutputEvent::Text(text.to_owned())),
            Kind::Calls(calls) => calls.push(text, events),
            Kind::Arguments(arguments) => arguments.push(text, events),
        }
    }

    /// Ends the output: text that was held back becomes text or a call.
    pub fn finish(&mut self, events: &mut Vec<OutputEvent>) {
        if let Kind::Calls(calls) = &mut self.0 {
            calls.finish(events);
        }
    }
}
