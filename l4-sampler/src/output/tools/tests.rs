//! Parsers against texts cut in every way, and guides against parsers.

mod cuts;
mod forced;
mod hermes;
mod llama3;

use super::{ToolChoice, ToolDefinition, ToolFormat, ToolParser};
use crate::output::event::{OutputEvent, emit};

/// Tools by these names, with no description.
fn tools<'a>(names: &[&'a str]) -> Vec<ToolDefinition<'a>> {
    names.iter().map(|name| ToolDefinition { name, parameters: None }).collect()
}

/// What comes of a text that comes in these pieces, joined.
fn parse<'a>(format: ToolFormat, pieces: impl IntoIterator<Item = &'a str>) -> Vec<OutputEvent> {
    let mut parser = ToolParser::new(format, &tools(&["get_weather", "now"]), &ToolChoice::Auto);
    let mut joined = Vec::new();
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut events);
        events.drain(..).for_each(|event| emit(&mut joined, event));
    }
    parser.finish(&mut events);
    events.drain(..).for_each(|event| emit(&mut joined, event));
    joined
}

fn text(text: &str) -> OutputEvent {
    OutputEvent::Text(text.to_owned())
}

/// A call, as its two events.
fn call(index: usize, name: &str, arguments: &str) -> [OutputEvent; 2] {
    let begin = OutputEvent::ToolCallStart { index, name: name.to_owned() };
    [begin, OutputEvent::ToolCallArguments { index, arguments: arguments.to_owned() }]
}

#[test]
fn a_template_shows_the_format() {
    for (template, format) in [
        ("{{ '<tool_call>\\n' }}", ToolFormat::Hermes),
        ("{{ '<|python_tag|>' + call }}", ToolFormat::Llama3Json),
        (r#"{"name": function name, "parameters": dictionary of"#, ToolFormat::Llama3Json),
        ("<tool_call>\n<function=name>", ToolFormat::None),
        ("{{ messages }}", ToolFormat::None),
    ] {
        assert_eq!(ToolFormat::detect(template), format, "{template}");
    }
}

#[test]
fn without_tools_or_a_format_everything_is_text() {
    let said = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call> ";
    assert_eq!(parse(ToolFormat::None, [said]), [text(said)]);
    let mut parser = ToolParser::new(ToolFormat::Hermes, &[], &ToolChoice::Auto);
    let mut events = Vec::new();
    parser.push(said, &mut events);
    assert_eq!(events, [text(said)], "nothing of it is held back");
}
