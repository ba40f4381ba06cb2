//! One answer's text on its way to a client: thoughts, words and calls told apart.

use l4_sampler::philox::fresh_seed;

use crate::server::chat::reasoning::ReasoningParser;
use crate::server::chat::tools::{ToolEvent, ToolParser};
use crate::server::protocol::chat::{
    AssistantMessage, CalledFunction, Delta, FunctionDelta, ToolCall, ToolCallDelta,
};

/// Reads one answer, in pieces. The same reader reads answers that are told whole, so that both say the same.
#[derive(Clone, Debug)]
pub struct Reader {
    reasoning: ReasoningParser,
    /// Whether thoughts are told.
    thoughts: bool,
    tools: Option<ToolParser>,
    /// The most calls that are told.
    most_calls: usize,
    calls: usize,
    /// White space before words. Beside calls it says nothing, and is left out.
    blank: String,
    /// Whether words came since the last call.
    said: bool,
    events: Vec<ToolEvent>,
}

impl Reader {
    /// Of answers in which thoughts are told apart, and calls where there are tools.
    pub fn new(reasoning: ReasoningParser, thoughts: bool) -> Self {
        Self {
            reasoning,
            thoughts,
            tools: None,
            most_calls: 0,
            calls: 0,
            blank: String::new(),
            said: false,
            events: Vec::new(),
        }
    }

    /// The same for answers that may call, at most so many times.
    #[must_use]
    pub fn calling(self, tools: ToolParser, most_calls: usize) -> Self {
        Self { tools: Some(tools), most_calls, ..self }
    }

    /// Whether calls are looked for.
    pub fn looks_for_calls(&self) -> bool {
        self.tools.is_some()
    }

    /// Whether calls were found.
    pub fn called(&self) -> bool {
        self.calls > 0
    }

    /// The next piece of the answer's text; and the end, if it is the last.
    pub fn read(&mut self, text: &str, last: bool) -> Delta {
        let mut delta = Delta::default();
        let mut split = self.reasoning.push(text);
        if last {
            let rest = self.reasoning.finish();
            split.reasoning.push_str(&rest.reasoning);
            split.content.push_str(&rest.content);
        }
        if self.thoughts && !split.reasoning.is_empty() {
            delta.reasoning_content = Some(split.reasoning);
        }
        let Some(tools) = &mut self.tools else {
            delta.content = Some(split.content).filter(|text| !text.is_empty());
            return delta;
        };
        let mut events = std::mem::take(&mut self.events);
        tools.push(&split.content, &mut events);
        if last {
            tools.finish(&mut events);
        }
        for event in events.drain(..) {
            self.take(event, &mut delta);
        }
        self.events = events;
        if last && self.calls == 0 && !self.blank.is_empty() {
            delta.content.get_or_insert_default().push_str(&std::mem::take(&mut self.blank));
        }
        delta
    }

    fn take(&mut self, event: ToolEvent, delta: &mut Delta) {
        match event {
            ToolEvent::Text(text) => {
                if !self.said && text.trim().is_empty() {
                    self.blank.push_str(&text);
                    return;
                }
                let content = delta.content.get_or_insert_default();
                content.push_str(&std::mem::take(&mut self.blank));
                content.push_str(&text);
                self.said = true;
            }
            ToolEvent::Begin { index, name } if index < self.most_calls => {
                self.calls = index + 1;
                self.said = false;
                self.blank.clear();
                delta.tool_calls.push(ToolCallDelta {
                    index,
                    id: Some(format!("call_{:016x}", fresh_seed())),
                    kind: Some("function"),
                    function: FunctionDelta { name: Some(name), arguments: Some(String::new()) },
                });
            }
            ToolEvent::Arguments { index, delta: text } if index < self.most_calls => {
                let same = delta.tool_calls.last_mut().filter(|call| call.index == index);
                if let Some(call) = same {
                    call.function.arguments.get_or_insert_default().push_str(&text);
                    return;
                }
                let function = FunctionDelta { name: None, arguments: Some(text) };
                delta.tool_calls.push(ToolCallDelta { index, id: None, kind: None, function });
            }
            ToolEvent::Begin { .. } | ToolEvent::Arguments { .. } => {}
        }
    }

    /// A whole answer.
    pub fn read_whole(&mut self, text: &str) -> AssistantMessage {
        let delta = self.read(text, true);
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
        // Without a word beside thoughts or calls there is no text; without any of them there is an empty one.
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
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::server::chat::reasoning::ReasoningFormat;
    use crate::server::chat::tools::ToolFormat;
    use crate::server::protocol::chat::Tool;

    fn reader(most_calls: usize) -> Reader {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let tools: Vec<Tool> = vec![serde_json::from_value(tool).unwrap()];
        let thoughts = ReasoningParser::new(ReasoningFormat::ThinkTags, "");
        Reader::new(thoughts, true)
            .calling(ToolParser::new(ToolFormat::Hermes, &tools, None), most_calls)
    }

    /// Thoughts, words, and calls without their ids.
    type Told = (String, String, Vec<(String, String)>);

    fn in_pieces(mut reader: Reader, text: &str, size: usize) -> Told {
        let chars: Vec<char> = text.chars().collect();
        let mut told = Told::default();
        let pieces = chars.chunks(size).map(|piece| (piece.iter().collect::<String>(), false));
        for (piece, last) in pieces.chain([(String::new(), true)]) {
            let delta = reader.read(&piece, last);
            told.0.push_str(&delta.reasoning_content.unwrap_or_default());
            told.1.push_str(&delta.content.unwrap_or_default());
            for call in delta.tool_calls {
                let FunctionDelta { name, arguments } = call.function;
                if let Some(name) = name {
                    assert_eq!((call.index, call.id.is_some()), (told.2.len(), true));
                    told.2.push((name, String::new()));
                }
                told.2[call.index].1.push_str(&arguments.unwrap_or_default());
            }
        }
        told
    }

    fn whole(mut reader: Reader, text: &str) -> Told {
        let message = reader.read_whole(text);
        let calls = message.tool_calls.into_iter();
        (
            message.reasoning_content.unwrap_or_default(),
            message.content.unwrap_or_default(),
            calls.map(|call| (call.function.name, call.function.arguments)).collect(),
        )
    }

    const CALL: &str = r#"<tool_call>{"name": "f", "arguments": {"a": "</think>"}}</tool_call>"#;

    #[test]
    fn whole_answers_and_pieces_say_the_same() {
        for text in [
            format!("<think>\nHm.\n</think>\n\nLook: {CALL}\n{CALL}\n"),
            format!("\n{CALL}"),
            format!("<think>{CALL}</think>So."),
            "\n \n".to_owned(),
            "Only <tool words".to_owned(),
        ] {
            for most in [1, 9] {
                let expected = whole(reader(most), &text);
                for size in 1..text.len() {
                    assert_eq!(in_pieces(reader(most), &text, size), expected, "{text:?}, {size}");
                }
            }
        }
    }

    #[test]
    fn white_space_beside_calls_is_no_text() {
        let message = reader(9).read_whole(&format!("\n{CALL}\n{CALL}\n"));
        assert_eq!((message.content, message.tool_calls.len()), (None, 2));
        assert_eq!(reader(9).read_whole("\n \n").content.as_deref(), Some("\n \n"));
        assert_eq!(reader(9).read_whole("").content.as_deref(), Some(""));
    }

    #[test]
    fn only_as_many_calls_are_told_as_may_be() {
        let message = reader(1).read_whole(&format!("{CALL}{CALL}"));
        assert_eq!(message.tool_calls.len(), 1);
    }

    #[test]
    fn thoughts_can_be_kept_back() {
        let thoughts = ReasoningParser::new(ReasoningFormat::ThinkTags, "");
        let message = Reader::new(thoughts, false).read_whole("<think>Hm</think>So");
        assert_eq!((message.reasoning_content, message.content.as_deref()), (None, Some("So")));
    }
}
