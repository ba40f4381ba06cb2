//! Parses the text of one choice into output events: reasoning, text and tool calls.

use super::event::emit;
use super::{CallFormat, FinishReason, OutputEvent, OutputUsage, ReasoningParser, ToolParser};
use crate::stop::StopReason;

/// Parses one choice's output, delta by delta. The events, joined, do not depend on how the text is split into deltas,
/// so a streamed response has the same contents as one that is not streamed.
#[derive(Clone, Debug)]
pub struct OutputParser {
    reasoning: Option<ReasoningParser>,
    /// Whether reasoning is reported; else it is dropped.
    include_reasoning: bool,
    tools: Option<ToolParser>,
    max_tool_calls: usize,
    tool_calls: usize,
    /// White space before text; beside tool calls it is dropped.
    blank: String,
    /// Whether text came since the last call.
    has_text: bool,
    started: bool,
    usage: OutputUsage,
    /// Reused between deltas.
    parsed: Vec<OutputEvent>,
}

/// What a step added to one choice.
#[derive(Clone, Debug, Default)]
pub struct OutputDelta<'a> {
    /// New text, as far as it is certain.
    pub text: &'a str,
    /// Number of new tokens.
    pub tokens: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub cached_tokens: usize,
    /// With the last delta: why the choice ended, and what stopped it.
    pub end: Option<(FinishReason, Option<StopReason>)>,
}

impl OutputParser {
    /// Creates a parser for which everything is text.
    ///
    /// ```
    /// use l4_sampler::output::{FinishReason, OutputDelta, OutputEvent, OutputParser};
    ///
    /// let mut parser = OutputParser::plain(3);
    /// let mut events = Vec::new();
    /// let end = Some((FinishReason::Stop, None));
    /// parser.push(&OutputDelta { text: "Paris.", tokens: 2, end, ..OutputDelta::default() }, &mut events);
    /// assert_eq!(events[0], OutputEvent::Start);
    /// assert_eq!(events[1], OutputEvent::Text("Paris.".into()));
    /// assert!(matches!(events[2], OutputEvent::End { finish: FinishReason::Stop, .. }));
    /// assert!(matches!(events[3], OutputEvent::Usage(usage) if usage.completion_tokens == 2));
    /// ```
    pub fn plain(prompt_tokens: usize) -> Self {
        Self {
            reasoning: None,
            include_reasoning: true,
            tools: None,
            max_tool_calls: 0,
            tool_calls: 0,
            blank: String::new(),
            has_text: false,
            started: false,
            usage: OutputUsage { prompt_tokens, ..OutputUsage::default() },
            parsed: Vec::new(),
        }
    }

    /// Tells reasoning from text. It is reported if `include`, else dropped.
    #[must_use]
    pub fn with_reasoning(self, reasoning: ReasoningParser, include: bool) -> Self {
        Self { reasoning: Some(reasoning), include_reasoning: include, ..self }
    }

    /// Separates tool calls from text; at most `max_tool_calls` of them are reported, and the others dropped.
    #[must_use]
    pub fn with_tools(self, tools: ToolParser, max_tool_calls: usize) -> Self {
        Self { tools: Some(tools), max_tool_calls, ..self }
    }

    /// Whether tool calls are looked for.
    pub fn parses_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// How an output of this parser calls tools, for a [`CalledTool`](super::CalledTool). Where the parser looks for no
    /// calls, or for no reasoning, those of every known format count.
    pub fn call_format(&self) -> CallFormat {
        let reasoning = self.reasoning.clone().filter(ReasoningParser::may_find_reasoning);
        CallFormat { reasoning, tools: self.tools.clone() }
    }

    /// Parses the next delta and appends its events. Text that could still become a tag is held back.
    pub fn push(&mut self, delta: &OutputDelta<'_>, events: &mut Vec<OutputEvent>) {
        if !std::mem::replace(&mut self.started, true) {
            events.push(OutputEvent::Start);
        }
        let last = delta.end.is_some();
        match &mut self.reasoning {
            None => self.text(delta.text, last, events),
            Some(parser) => {
                let mut split = parser.push(delta.text);
                if last {
                    let rest = parser.finish();
                    split.reasoning.push_str(&rest.reasoning);
                    split.content.push_str(&rest.content);
                }
                if self.include_reasoning {
                    emit(events, OutputEvent::Reasoning(split.reasoning));
                }
                self.text(&split.content, last, events);
            }
        }
        if let Some((finish, stop)) = delta.end.clone() {
            events.push(OutputEvent::End { finish, stop, tool_calls: self.tool_calls });
        }
        self.usage.completion_tokens += delta.tokens;
        self.usage.cached_tokens = delta.cached_tokens;
        events.push(OutputEvent::Usage(self.usage));
    }

    /// Text that is no reasoning.
    fn text(&mut self, text: &str, last: bool, events: &mut Vec<OutputEvent>) {
        let Some(tools) = &mut self.tools else {
            emit(events, OutputEvent::Text(text.to_owned()));
            return;
        };
        let mut parsed = std::mem::take(&mut self.parsed);
        tools.push(text, &mut parsed);
        if last {
            tools.finish(&mut parsed);
        }
        for event in parsed.drain(..) {
            self.take(event, events);
        }
        self.parsed = parsed;
        if last && self.tool_calls == 0 {
            emit(events, OutputEvent::Text(std::mem::take(&mut self.blank)));
        }
    }

    fn take(&mut self, event: OutputEvent, events: &mut Vec<OutputEvent>) {
        match event {
            OutputEvent::Text(text) if !self.has_text && text.trim().is_empty() => {
                self.blank.push_str(&text);
            }
            OutputEvent::Text(text) => {
                emit(events, OutputEvent::Text(std::mem::take(&mut self.blank)));
                emit(events, OutputEvent::Text(text));
                self.has_text = true;
            }
            OutputEvent::ToolCallStart { index, name } if index < self.max_tool_calls => {
                self.tool_calls = index + 1;
                self.has_text = false;
                self.blank.clear();
                events.push(OutputEvent::ToolCallStart { index, name });
            }
            OutputEvent::ToolCallArguments { index, arguments } if index < self.max_tool_calls => {
                emit(events, OutputEvent::ToolCallArguments { index, arguments });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CalledTool, ReasoningFormat, ToolChoice, ToolDefinition, ToolFormat};
    use super::*;

    fn parser(max_tool_calls: usize) -> OutputParser {
        let tools = [ToolDefinition { name: "f", parameters: None }];
        let tools = ToolParser::new(ToolFormat::Hermes, &tools, &ToolChoice::Auto);
        let reasoning = ReasoningParser::new(ReasoningFormat::ThinkTags, "");
        OutputParser::plain(7).with_reasoning(reasoning, true).with_tools(tools, max_tool_calls)
    }

    /// The events of a text that arrives in deltas of `size` characters, joined.
    fn parse(mut parser: OutputParser, text: &str, size: usize) -> Vec<OutputEvent> {
        let chars: Vec<char> = text.chars().collect();
        let mut joined = Vec::new();
        let mut events = Vec::new();
        let end = Some((FinishReason::Stop, None));
        let deltas = chars.chunks(size).map(|piece| (piece.iter().collect::<String>(), None));
        for (text, end) in deltas.chain([(String::new(), end)]) {
            parser
                .push(&OutputDelta { text: &text, tokens: 1, cached_tokens: 3, end }, &mut events);
            let Some(OutputEvent::Usage(usage)) = events.pop() else { panic!("{events:?}") };
            assert_eq!((usage.prompt_tokens, usage.cached_tokens), (7, 3));
            assert!(usage.completion_tokens > 0);
            events.drain(..).for_each(|event| emit(&mut joined, event));
        }
        joined
    }

    fn text(text: &str) -> OutputEvent {
        OutputEvent::Text(text.into())
    }

    fn end(tool_calls: usize) -> OutputEvent {
        OutputEvent::End { finish: FinishReason::Stop, stop: None, tool_calls }
    }

    fn call(index: usize) -> [OutputEvent; 2] {
        let arguments = r#"{"a": "</think>"}"#.into();
        [
            OutputEvent::ToolCallStart { index, name: "f".into() },
            OutputEvent::ToolCallArguments { index, arguments },
        ]
    }

    const CALL: &str = r#"<tool_call>{"name": "f", "arguments": {"a": "</think>"}}</tool_call>"#;

    #[test]
    fn whole_outputs_and_deltas_say_the_same() {
        for text in [
            format!("<think>\nHm.\n</think>\n\nLook: {CALL}\n{CALL}\n"),
            format!("\n{CALL}"),
            format!("<think>{CALL}</think>So."),
            "\n \n".to_owned(),
            "Only <tool words".to_owned(),
        ] {
            for max in [1, 9] {
                let whole = parse(parser(max), &text, usize::MAX);
                for size in 1..text.len() {
                    assert_eq!(parse(parser(max), &text, size), whole, "{text:?}, {size}");
                }
            }
        }
    }

    #[test]
    fn reasoning_text_and_calls_are_told_apart() {
        let said = format!("<think>\nHm.\n</think>\n\nLook: {CALL}");
        let [start, arguments] = call(0);
        let reasoning = OutputEvent::Reasoning("Hm.".into());
        let expected = [OutputEvent::Start, reasoning, text("Look:"), start, arguments, end(1)];
        assert_eq!(parse(parser(9), &said, usize::MAX), expected);
    }

    #[test]
    fn white_space_beside_calls_is_no_text() {
        let both = [call(0), call(1)].concat();
        let expected = [&[OutputEvent::Start][..], &both, &[end(2)]].concat();
        assert_eq!(parse(parser(9), &format!("\n{CALL}\n{CALL}\n"), usize::MAX), expected);
        let blank = [OutputEvent::Start, text("\n \n"), end(0)];
        assert_eq!(parse(parser(9), "\n \n", usize::MAX), blank);
        assert_eq!(parse(parser(9), "", usize::MAX), [OutputEvent::Start, end(0)]);
    }

    #[test]
    fn at_most_max_tool_calls_are_reported() {
        let expected = [&[OutputEvent::Start][..], &call(0), &[end(1)]].concat();
        assert_eq!(parse(parser(1), &format!("{CALL}{CALL}"), usize::MAX), expected);
    }

    #[test]
    fn the_called_tool_is_found_by_the_parsers_of_the_response() {
        let name = |parser: &OutputParser, text: &str| {
            let mut called = CalledTool::new(&parser.call_format(), "");
            called.push(text);
            called.finish().map(|called| called.tool)
        };
        assert_eq!(name(&parser(9), CALL).as_deref(), Some("f"));
        let llama = r#"{"name": "g", "parameters": {}}"#;
        assert_eq!(name(&parser(9), llama), None, "no call in this model's format");
        // A parser that looks for neither: all that is known.
        let none = ReasoningParser::new(ReasoningFormat::None, "");
        let plain = OutputParser::plain(7).with_reasoning(none, true);
        let considered = r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#;
        let thought = format!("<think>{considered}</think>{llama}");
        assert_eq!(name(&plain, &thought).as_deref(), Some("g"));
    }

    #[test]
    fn reasoning_can_be_dropped() {
        let reasoning = ReasoningParser::new(ReasoningFormat::ThinkTags, "");
        let parser = OutputParser::plain(7).with_reasoning(reasoning, false);
        let expected = [OutputEvent::Start, text("So"), end(0)];
        assert_eq!(parse(parser, "<think>Hm</think>So", usize::MAX), expected);
    }

    #[test]
    fn usage_counts_the_tokens_of_this_choice() {
        let mut parser = OutputParser::plain(7);
        let mut counted = Vec::new();
        for tokens in [2, 0, 3] {
            let mut events = Vec::new();
            parser.push(&OutputDelta { tokens, ..OutputDelta::default() }, &mut events);
            if let Some(OutputEvent::Usage(usage)) = events.pop() {
                counted.push(usage.completion_tokens);
            }
        }
        assert_eq!(counted, [2, 2, 5]);
    }
}
