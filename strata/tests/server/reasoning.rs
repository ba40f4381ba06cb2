//! Reasoning, separated from content. A tiny model does not reason: a choice of one text scripts its output.

use serde_json::{Value, json};

use crate::chat::{able, joined};
use crate::served::Served;

fn script(text: &str) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Why?"}],
        "structured_outputs": {"choice": [text]},
    })
}

/// The message of a whole response, which must equal that of a stream.
fn message(server: &Served, mut body: Value) -> Value {
    let whole = server.post("/v1/chat/completions", &body).json();
    let message = whole["choices"][0]["message"].clone();
    body["stream"] = true.into();
    let streamed = joined(&server.post("/v1/chat/completions", &body).events());
    for field in ["content", "reasoning_content"] {
        let text = |of: &Value| of[field].as_str().unwrap_or_default().to_owned();
        assert_eq!(text(&streamed[0]["message"]), text(&message));
    }
    assert_eq!(streamed[0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    message
}

#[test]
fn a_thought_is_reported_beside_the_content() {
    let server = able();
    let mut body = script("<think>\nBecause, </thin>.\n</think>\n\nSo.");
    let told = message(&server, body.clone());
    assert_eq!(told["reasoning_content"], "Because, </thin>.");
    assert_eq!(told["content"], "So.");
    body["include_reasoning"] = false.into();
    let told = message(&server, body);
    assert_eq!((told.get("reasoning_content"), &told["content"]), (None, &json!("So.")));
    let told = message(&server, script("No <think> at the beginning."));
    assert_eq!(told["content"], "No <think> at the beginning.");
}

#[test]
fn an_answer_that_begins_within_a_thought_is_one_until_it_says_otherwise() {
    let server = able();
    let body = json!({
        "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 8, "temperature": 0,
        "ignore_eos": true, "chat_template_kwargs": {"enable_thinking": true},
    });
    let told = message(&server, body.clone());
    assert_eq!(told["content"], Value::Null, "{told}");
    assert!(!told["reasoning_content"].as_str().unwrap().is_empty());
    let mut body = body;
    body["chat_template_kwargs"]["enable_thinking"] = false.into();
    let told = message(&server, body);
    assert!(told.get("reasoning_content").is_none(), "{told}");

    let mut body = script(", yes.\n</think>\n\nSo.");
    let begun = json!({"role": "assistant", "content": "<think>\nWell"});
    body["messages"].as_array_mut().unwrap().push(begun);
    body["continue_final_message"] = true.into();
    let told = message(&server, body);
    assert_eq!((&told["reasoning_content"], &told["content"]), (&json!(", yes."), &json!("So.")));
}

#[test]
fn an_answer_to_a_guide_is_no_thought() {
    let server = able();
    let mut body = script("{}");
    body["chat_template_kwargs"] = json!({"enable_thinking": true});
    let told = message(&server, body);
    assert_eq!((told.get("reasoning_content"), &told["content"]), (None, &json!("{}")));
}
