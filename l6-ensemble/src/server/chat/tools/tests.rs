//! Parsers against texts cut in every way, and guides against parsers.

mod cuts;
mod forced;
mod hermes;
mod llama3;

use serde_json::{Value, json};

use super::{ToolEvent, ToolFormat, ToolParser, emit};
use crate::server::protocol::chat::Tool;

/// Tools by these names, with no description.
fn tools(names: &[&str]) -> Vec<Tool> {
    let tool = |name: &&str| json!({"type": "function", "function": {"name": name}});
    serde_json::from_value(Value::Array(names.iter().map(tool).collect())).unwrap()
}

/// What comes of a text that comes in these pieces, joined.
fn parse<'a>(format: ToolFormat, pieces: impl IntoIterator<Item = &'a str>) -> Vec<ToolEvent> {
    let mut parser = ToolParser::new(format, &tools(&["get_weather", "now"]), None);
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

fn text(text: &str) -> ToolEvent {
    ToolEvent::Text(text.to_owned())
}

/// A call, as its two events.
fn call(index: usize, name: &str, arguments: &str) -> [ToolEvent; 2] {
    let begin = ToolEvent::Begin { index, name: name.to_owned() };
    [begin, ToolEvent::Arguments { index, delta: arguments.to_owned() }]
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
    let mut parser = ToolParser::new(ToolFormat::Hermes, &[], None);
    let mut events = Vec::new();
    parser.push(said, &mut events);
    assert_eq!(events, [text(said)], "nothing of it is held back");
}
