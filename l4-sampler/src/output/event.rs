//! Output events, of which the output of a request consists.

use super::FinishReason;
use crate::stop::StopReason;

/// A part of one choice's output, in the order in which it was generated. Whatever formats output for a client (chat
/// completions, completions) is a formatter over these.
///
/// ```text
/// Start (Reasoning | Text | ToolCallStart | ToolCallArguments | Usage)* End Usage
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// The choice begins: its first token was sampled.
    Start,
    /// Text of the model's reasoning.
    Reasoning(String),
    /// Text of the content.
    Text(String),
    /// A tool call begins.
    ToolCallStart {
        /// Number of the call in this choice, from 0.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// The arguments of a call go on. Joined they are JSON, unless the model wrote something else.
    ToolCallArguments {
        /// Number of the call in this choice, from 0.
        index: usize,
        /// Next part of the arguments.
        arguments: String,
    },
    /// The choice is complete.
    End {
        /// Why it ended.
        finish: FinishReason,
        /// Stop reason, if the output itself ended the choice.
        stop: Option<StopReason>,
        /// Number of tool calls in this choice.
        tool_calls: usize,
    },
    /// Tokens of this choice so far: after each part, as vLLM's continuous usage counts them.
    Usage(OutputUsage),
}

/// Token counts of one choice so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were hit in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens generated for this choice.
    pub completion_tokens: usize,
}

/// Appends an event, joined to the one before if that continues the same text. An event without content is dropped.
pub(super) fn emit(events: &mut Vec<OutputEvent>, event: OutputEvent) {
    match (events.last_mut(), event) {
        (_, OutputEvent::Text(text)) if text.is_empty() => {}
        (_, OutputEvent::ToolCallArguments { arguments, .. }) if arguments.is_empty() => {}
        (_, OutputEvent::Reasoning(text)) if text.is_empty() => {}
        (Some(OutputEvent::Text(last)), OutputEvent::Text(text)) => last.push_str(&text),
        (Some(OutputEvent::Reasoning(last)), OutputEvent::Reasoning(text)) => last.push_str(&text),
        (
            Some(OutputEvent::ToolCallArguments { index: last, arguments: so_far }),
            OutputEvent::ToolCallArguments { index, arguments },
        ) if *last == index => so_far.push_str(&arguments),
        (_, event) => events.push(event),
    }
}
