//! Calls of tools in an answer's text.

use l4_sampler::guide::GuideSpec;

use crate::server::error::ApiError;
use crate::server::protocol::chat::{Tool, ToolChoice};

/// How a model writes calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolFormat {
    /// It was not taught to.
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
    /// The arguments of a call go on: together they are JSON.
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
        if template.contains("<tool_call>") {
            Self::Hermes
        } else if template.contains("<|python_tag|>") || template.contains("\"parameters\"") {
            Self::Llama3Json
        } else {
            Self::None
        }
    }
}

/// Finds calls in text that comes in pieces.
#[derive(Clone, Debug)]
pub struct ToolParser {
    format: ToolFormat,
}

impl ToolParser {
    /// For one answer of a model that may call these.
    pub fn new(format: ToolFormat, tools: &[Tool]) -> Self {
        let _ = tools;
        Self { format }
    }

    /// The next piece of text. What could still become a call is held back.
    pub fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        let _ = self.format;
        events.push(ToolEvent::Text(text.to_owned()));
    }

    /// There is no more text: what was held back is what it looks like.
    pub fn finish(&mut self, events: &mut Vec<ToolEvent>) {
        let _ = events;
    }
}

/// What the answer must look like so that it calls what it must call. `None`: it may look like anything.
///
/// # Errors
/// [`ApiError`]: a model that was not taught to call, a tool that is not there.
pub fn guide(
    format: ToolFormat,
    tools: &[Tool],
    choice: Option<&ToolChoice>,
    parallel: bool,
) -> Result<Option<GuideSpec>, ApiError> {
    let _ = (format, tools, choice, parallel);
    Ok(None)
}
