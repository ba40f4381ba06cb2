//! Output events as OpenAI's chat completions write them.

use l4_sampler::output::{FinishReason, OutputEvent, OutputUsage};
use l4_sampler::philox::fresh_seed;
use l4_sampler::stop::StopReason;

use crate::protocol::chat::{
    AssistantMessage, CalledFunction, Delta, FunctionDelta, ToolCall, ToolCallDelta,
};

/// The parts of a chunk that some events make.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Parts {
    /// Whether the choice begins here.
    pub starts: bool,
    /// Reasoning, text and tool calls.
    pub delta: Delta,
    /// Why the choice ended, what stopped it, and how often it called.
    pub end: Option<(FinishReason, Option<StopReason>, usize)>,
    /// Tokens of the choice so far.
    pub usage: OutputUsage,
}

impl Parts {
    /// Collects events of one choice.
    pub fn of(events: Vec<OutputEvent>) -> Self {
        let mut parts = Self::default();
        events.into_iter().for_each(|event| parts.take(event));
        parts
    }

    fn take(&mut self, event: OutputEvent) {
        let delta = &mut self.delta;
        match event {
            OutputEvent::Start => self.starts = true,
            OutputEvent::Reasoning(text) => {
                delta.reasoning_content.get_or_insert_default().push_str(&text);
            }
            OutputEvent::Text(text) => delta.content.get_or_insert_default().push_str(&text),
            OutputEvent::ToolCallStart { index, name } => delta.tool_calls.push(ToolCallDelta {
                index,
                id: Some(format!("call_{:016x}", fresh_seed())),
                kind: Some("function"),
                function: FunctionDelta { name: Some(name), arguments: Some(String::new()) },
            }),
            OutputEvent::ToolCallArguments { index, arguments } => {
                let same = delta.tool_calls.last_mut().filter(|call| call.index == index);
                if let Some(call) = same {
                    call.function.arguments.get_or_insert_default().push_str(&arguments);
                    return;
                }
                let function = FunctionDelta { name: None, arguments: Some(arguments) };
                delta.tool_calls.push(ToolCallDelta { index, id: None, kind: None, function });
            }
            OutputEvent::End { finish, stop, tool_calls } => {
                self.end = Some((finish, stop, tool_calls));
            }
            OutputEvent::Usage(usage) => self.usage = usage,
        }
    }
}

/// A choice's delta from its beginning to its end, as a message.
pub(super) fn message(delta: Delta) -> AssistantMessage {
    let mut tool_calls: Vec<ToolCall> = Vec::new();
    for call in delta.tool_calls {
        let arguments = call.function.arguments.unwrap_or_default();
        match (call.id, call.function.name, tool_calls.get_mut(call.index)) {
            (_, _, Some(begun)) => begun.function.arguments.push_str(&arguments),
            (Some(id), Some(name), None) => {
                let function = CalledFunction { name, arguments };
                tool_calls.push(ToolCall { id, kind: "function", function });
            }
            // A parser begins a call before it goes on with it.
            _ => {}
        }
    }
    // Beside reasoning or calls, no text is null; without any of them it is empty.
    let silent = !tool_calls.is_empty() || delta.reasoning_content.is_some();
    let content = delta.content.or_else(|| (!silent).then(String::new));
    AssistantMessage {
        role: "assistant",
        content,
        reasoning_content: delta.reasoning_content,
        refusal: None,
        tool_calls,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: usize, arguments: &[&str]) -> Vec<OutputEvent> {
        let start = OutputEvent::ToolCallStart { index, name: "f".into() };
        let arguments = arguments
            .iter()
            .map(|text| OutputEvent::ToolCallArguments { index, arguments: (*text).into() });
        std::iter::once(start).chain(arguments).collect()
    }

    #[test]
    fn a_message_has_the_text_and_the_calls_of_its_events() {
        let mut events = vec![OutputEvent::Start, OutputEvent::Reasoning("Hm.".into())];
        events.push(OutputEvent::Text("Look:".into()));
        events.extend(call(0, &["{", "}"]));
        events.extend(call(1, &[]));
        let message = message(Parts::of(events).delta);
        assert_eq!(message.reasoning_content.as_deref(), Some("Hm."));
        assert_eq!(message.content.as_deref(), Some("Look:"));
        let calls: Vec<_> =
            message.tool_calls.iter().map(|call| call.function.arguments.as_str()).collect();
        assert_eq!(calls, ["{}", ""]);
        assert_ne!(message.tool_calls[0].id, message.tool_calls[1].id);
    }

    #[test]
    fn a_message_without_text_is_null_beside_calls_and_empty_alone() {
        assert_eq!(message(Parts::of(call(0, &["{}"])).delta).content, None);
        assert_eq!(message(Parts::of(vec![OutputEvent::Start]).delta).content.as_deref(), Some(""));
    }

    #[test]
    fn arguments_of_a_call_that_has_begun_come_without_a_name() {
        let event = OutputEvent::ToolCallArguments { index: 2, arguments: "1}".into() };
        let delta = Parts::of(vec![event]).delta;
        let call = &delta.tool_calls[0];
        assert_eq!((call.index, &call.id, &call.function.name), (2, &None, &None));
        assert_eq!(call.function.arguments.as_deref(), Some("1}"));
    }
}
