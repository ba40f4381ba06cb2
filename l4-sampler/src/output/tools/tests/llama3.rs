//! Calls as Llama writes them: JSON that stands alone.

use super::super::ToolFormat;
use super::{call, text};
use crate::output::event::OutputEvent;

fn parse(said: &str) -> Vec<OutputEvent> {
    super::parse(ToolFormat::Llama3Json, [said])
}

const PARIS: &str = r#"{"city": "Paris"}"#;

#[test]
fn an_answer_that_is_a_call_is_told_as_one() {
    let json = format!(r#"{{"name": "get_weather", "parameters": {PARIS}}}"#);
    for said in [json.clone(), format!("\n {json}\n"), format!("<|python_tag|>{json}")] {
        assert_eq!(parse(&said), call(0, "get_weather", PARIS), "{said}");
    }
    let typed = format!(r#"{{"type": "function", "name": "get_weather", "parameters": {PARIS}}}"#);
    assert_eq!(parse(&typed), call(0, "get_weather", PARIS));
}

#[test]
fn several_calls_are_separated_by_semicolons_or_stand_in_a_list() {
    let first = format!(r#"{{"name": "get_weather", "parameters": {PARIS}}}"#);
    let second = r#"{"name": "now", "parameters": {}}"#;
    let both = [call(0, "get_weather", PARIS), call(1, "now", "{}")].concat();
    for said in [
        format!("{first}; {second}"),
        format!("{first}\n{second}"),
        format!("[{first}, {second}]"),
        format!("<|python_tag|>{first};{second};"),
    ] {
        assert_eq!(parse(&said), both, "{said}");
    }
}

#[test]
fn json_that_calls_no_tool_is_text() {
    for said in [
        r#"{"name": "Ada", "parameters": {}}"#,
        r#"{"name": "now"}"#,
        r#"{"city": "Paris"} it is"#,
        "[1, 2, 3]",
        "{ not json",
        "It is {\"name\": \"now\", \"parameters\": {}}",
        " \n",
    ] {
        assert_eq!(parse(said), [text(said)], "{said}");
    }
}

#[test]
fn text_may_stand_before_a_tag_and_behind_calls() {
    let [begin, arguments] = call(0, "now", "{}");
    let json = r#"{"name": "now", "parameters": {}}"#;
    let said = format!("I look. <|python_tag|>{json}; and so on");
    assert_eq!(parse(&said), [text("I look."), begin, arguments, text("; and so on")]);
}

#[test]
fn arguments_that_cease_to_be_json_are_told_to_the_end() {
    let said = r#"{"name": "now", "parameters": {"a": b}} or so"#;
    assert_eq!(parse(said), call(0, "now", "{\"a\": b}} or so"));
}
