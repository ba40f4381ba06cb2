//! Calls between `<tool_call>` tags.

use super::super::{ToolChoice, ToolFormat, ToolParser};
use super::{call, text, tools};
use crate::output::event::OutputEvent;

fn parse(said: &str) -> Vec<OutputEvent> {
    super::parse(ToolFormat::Hermes, [said])
}

const PARIS: &str = r#"{"city": "Paris", "days": [1, 2.5e3]}"#;

fn tagged(json: &str) -> String {
    format!("<tool_call>\n{json}\n</tool_call>")
}

fn weather(arguments: &str) -> String {
    tagged(&format!(r#"{{"name": "get_weather", "arguments": {arguments}}}"#))
}

#[test]
fn a_call_is_told_with_its_arguments_as_they_were_written() {
    assert_eq!(parse(&weather(PARIS)), call(0, "get_weather", PARIS));
    let strange = "{\"a\":\t[ ] ,\n \"é\\n\": \"</tool_call>\"}";
    assert_eq!(parse(&weather(strange)), call(0, "get_weather", strange));
}

#[test]
fn text_stands_before_and_behind_calls_without_the_blanks_between() {
    let said = format!(" Let me see.\n\n{}\n Done.\n", weather("{}"));
    let [begin, arguments] = call(0, "get_weather", "{}");
    assert_eq!(parse(&said), [text(" Let me see."), begin, arguments, text("\n Done.\n")]);
    assert_eq!(parse(&format!("\n\n{}\n", weather("{}"))), call(0, "get_weather", "{}"));
}

#[test]
fn several_calls_are_counted() {
    let now = r#"{"name": "now", "arguments": {}}"#;
    let both = [call(0, "get_weather", PARIS), call(1, "now", "{}")].concat();
    let first = weather(PARIS);
    assert_eq!(parse(&format!("{first}\n{}", tagged(now))), both);
    let alone = format!(r#"{{"name": "get_weather", "arguments": {PARIS}}}"#);
    assert_eq!(parse(&tagged(&format!("{alone}\n{now}"))), both, "in one pair of tags");
    assert_eq!(parse(&tagged(&format!("[{alone}, {now}]"))), both, "as a list");
    assert_eq!(parse(&format!("<tool_call>{alone}\n{}", tagged(now))), both, "an end tag too few");
}

#[test]
fn small_mistakes_around_the_arguments_are_forgiven() {
    let told = call(0, "get_weather", PARIS);
    for json in [
        format!(r#"{{"arguments": {PARIS}, "name": "get_weather"}}"#),
        format!(r#"{{"id": 7, "name": "get_weather", "arguments": {PARIS}, "more": [{{}}]}}"#),
        format!(r#"{{"name": "get_weather", "parameters": {PARIS}}}"#),
        format!(r#"{{"name": "get_weather", "arguments": {PARIS}"#),
        format!(r#"{{"name": "get_weather", "arguments": {}}}"#, serde_json::json!(PARIS)),
    ] {
        assert_eq!(parse(&tagged(&json)), told, "{json}");
    }
    for json in [r#"{"name": "now"}"#, r#"{"name": "now", "arguments": null}"#] {
        assert_eq!(parse(&tagged(json)), call(0, "now", "{}"), "{json}");
    }
}

#[test]
fn what_is_no_call_is_text() {
    for said in [
        "a < b and a <tool b",
        "<tool_call",
        "<tool_call></tool_call>",
        "<tool_call>get_weather(\"Paris\")</tool_call>",
        "<tool_call>\n{\"name\": 7, \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"now\", \"arguments\": [1]}\n</tool_call>",
        "<tool_call>\n{\"name\": \"now\", \"arguments\": \"{1}\"}\n</tool_call>",
        "<tool_call>\n{'name': 'now', 'arguments': {}}\n</tool_call>",
        "<tool_call>\n{\"arguments\": {\"a\": 1}}\n</tool_call>",
        "<tool_call>{}</tool_call> \n",
        "</tool_call>",
        "<tool_call>{\"name\": \"n",
        "\n",
    ] {
        assert_eq!(parse(said), [text(said)], "{said}");
    }
}

#[test]
fn a_call_behind_a_broken_one_is_found() {
    let [begin, arguments] = call(0, "now", "{}");
    let now = tagged(r#"{"name": "now", "arguments": {}}"#);
    let want = [text("<tool_call>\n{'name"), begin, arguments];
    assert_eq!(parse(&format!("<tool_call>\n{{'name{now}")), want);
}

#[test]
fn arguments_that_cease_to_be_json_are_told_as_they_are() {
    let said = weather("{\"city\": \"Paris\"; }") + "\nSorry.";
    let [begin, arguments] = call(0, "get_weather", "{\"city\": \"Paris\"; }}");
    assert_eq!(parse(&said), [begin, arguments, text("\nSorry.")]);
}

#[test]
fn an_answer_that_ends_within_arguments_has_told_what_there_was() {
    let said = "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"b";
    assert_eq!(parse(said), call(0, "now", "{\"a\": \"b"));
}

#[test]
fn what_stands_between_a_call_and_its_end_tag_is_text() {
    let [begin, arguments] = call(0, "now", "{}");
    let said = "<tool_call>{\"name\": \"now\", \"arguments\": {}}} oh\n</tool_call> yes";
    assert_eq!(parse(said), [begin, arguments, text("} oh yes")]);
}

#[test]
fn a_name_that_no_tool_has_is_told_for_the_client_to_judge() {
    let said = tagged(r#"{"name": "rm", "arguments": {}}"#);
    assert_eq!(parse(&said), call(0, "rm", "{}"));
}

#[test]
fn no_more_is_held_back_than_could_become_a_tag() {
    let mut parser = ToolParser::new(ToolFormat::Hermes, &tools(&["now"]), &ToolChoice::Auto);
    let mut push = |piece: &str| {
        let mut events = Vec::new();
        parser.push(piece, &mut events);
        events
    };
    assert_eq!(push("Well <"), [text("Well")]);
    assert_eq!(push("tool"), []);
    assert_eq!(push("s> "), [text(" <tools>")]);
    assert_eq!(push("it"), [text(" it")]);
    assert_eq!(push("<tool_call>{\"name\": \"now\", \"arg"), []);
    let [begin, arguments] = call(0, "now", "{\"a");
    assert_eq!(push("uments\": {\"a"), [begin, arguments]);
    let delta =
        |delta: &str| [OutputEvent::ToolCallArguments { index: 0, arguments: delta.to_owned() }];
    assert_eq!(push("\": \"<"), delta("\": \"<"));
    assert_eq!(push("\"}"), delta("\"}"));
    assert_eq!(push("}"), []);
}
