//! Structured output: JSON, a choice, a regular expression, a tool call.

use serde_json::{Value, json};

use crate::chat::{able, joined};
use crate::served::Served;

fn chat(server: &Served, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Go"}], "seed": 3});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/chat/completions", &body).json()["choices"][0].clone()
}

fn content(choice: &Value) -> &str {
    choice["message"]["content"].as_str().unwrap()
}

#[test]
fn an_answer_follows_what_is_asked_of_its_shape() {
    let server = able();
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["ok", "n"],
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    });
    let asked = json!({"name": "answer", "strict": true, "schema": schema});
    for more in [
        json!({"response_format": {"type": "json_schema", "json_schema": asked}}),
        json!({"structured_outputs": {"json": schema}}),
        json!({"structured_outputs": {"json": schema.to_string()}}),
        json!({"guided_json": schema}),
        json!({"response_format": {"type": "json_object", "schema": schema}}),
    ] {
        let choice = chat(&server, more);
        let value: Value = serde_json::from_str(content(&choice)).unwrap();
        assert!(value["ok"].is_boolean() && value["n"].is_u64(), "{value}");
        assert_eq!(choice["finish_reason"], "stop");
    }
    let choice = chat(&server, json!({"structured_outputs": {"regex": "a{3}b"}}));
    assert_eq!(content(&choice), "aaab");
    let choice = chat(&server, json!({"guided_choice": ["yes"]}));
    assert_eq!(content(&choice), "yes");
    let object =
        json!({"response_format": {"type": "json_object"}, "max_tokens": 40, "temperature": 0});
    let choice = chat(&server, object);
    assert!(content(&choice).trim_start().starts_with('{'), "{choice}");
}

#[test]
fn an_object_has_declared_properties_only_unless_the_schema_the_request_or_the_operator_says_otherwise()
 {
    let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]});
    let open = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": true});
    let server = able();
    let comma = server.post("/tokenize", &json!({"prompt": ","})).json()["tokens"][0].to_string();
    // Wherever a comma may come, it does.
    let text = |server: &Served, mut more: Value| {
        more["logit_bias"] = json!({comma.clone(): 100});
        more["max_tokens"] = 12.into();
        content(&chat(server, more)).to_owned()
    };
    let format = |schema: &Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    let outputs = |schema: &Value| json!({"structured_outputs": {"json": schema}});
    let guided = |schema: &Value| json!({"guided_json": schema});
    for more in [format(&schema), outputs(&schema), guided(&schema)] {
        assert_eq!(text(&server, more), r#"{"a":1}"#);
    }
    for more in [format(&open), outputs(&open), guided(&open)] {
        assert!(text(&server, more.clone()).starts_with(r#"{"a":1,"#), "{more}");
    }
    let mut more = outputs(&schema);
    more["structured_outputs"]["disable_additional_properties"] = false.into();
    assert!(text(&server, more).starts_with(r#"{"a":1,"#), "as the request says");
    let template = crate::chat::template("thinks-and-calls");
    let server = Served::start(
        "tiny-qwen3",
        [
            "--chat-template",
            &template,
            "--structured-outputs-config.disable_additional_properties=false",
        ],
    );
    assert!(text(&server, format(&schema)).starts_with(r#"{"a":1,"#), "as the operator says");
    let mut more = outputs(&schema);
    more["structured_outputs"]["disable_additional_properties"] = true.into();
    assert_eq!(text(&server, more), r#"{"a":1}"#);
}

#[test]
fn a_keyword_that_cannot_be_enforced_is_no_obstacle() {
    let server = able();
    let schema = json!({
        "type": "array", "uniqueItems": true, "minItems": 1, "maxItems": 2,
        "items": {"type": "string", "format": "password", "maxLength": 2, "not": {"const": "x"}},
    });
    let choice = chat(&server, json!({"guided_json": schema, "max_tokens": 40}));
    assert_eq!(choice["finish_reason"], "stop");
    let values: Vec<String> = serde_json::from_str(content(&choice)).unwrap();
    assert!((1..=2).contains(&values.len()), "{values:?}");
}

#[test]
fn texts_that_would_take_a_lexers_memory_are_refused_with_the_limit() {
    let server = able();
    let long = "x".repeat(1 << 20);
    for (more, says) in [
        (json!({"guided_choice": [long]}), "1048576 bytes in one choice, more than 4096"),
        (json!({"guided_json": {"const": long}}), "1048578 bytes in one `const`, more than 4096"),
        (
            json!({"guided_json": {"enum": ["a", long]}}),
            "bytes in one value of an `enum`, more than 4096",
        ),
        (json!({"guided_grammar": format!("start: \"{long}\"")}), "more than"),
        (
            json!({"guided_regex": "(abcdefghij){100000}"}),
            "its first step takes more work than is allowed",
        ),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "Go"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response = server.post("/v1/chat/completions", &body);
        let error = &response.value()["error"];
        assert_eq!(response.status, 400, "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn a_stop_text_ends_the_answer_and_is_told() {
    let server = able();
    let script = json!({"structured_outputs": {"choice": ["one two three"]}, "stop": ["two"]});
    let choice = chat(&server, script);
    assert_eq!(content(&choice), "one ");
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!("two")));
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "add", "parameters": {
            "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {"a": {"enum": [1, 2]}},
        }}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

/// The choice of a whole response, which must equal that of a stream.
fn both(server: &Served, mut more: Value) -> Value {
    let mut whole = chat(server, more.clone());
    more["messages"] = json!([{"role": "user", "content": "Go"}]);
    more["seed"] = 3.into();
    more["stream"] = true.into();
    let streamed = joined(&server.post("/v1/chat/completions", &more).events());
    assert_eq!(streamed[0]["finish_reason"], whole["finish_reason"]);
    let mut calls = whole["message"]["tool_calls"].clone();
    for call in calls.as_array_mut().into_iter().flatten() {
        let id = call.as_object_mut().unwrap().remove("id").unwrap();
        assert!(id.as_str().unwrap().starts_with("call_"), "{id}");
    }
    assert_eq!(streamed[0]["message"]["tool_calls"], calls);
    let text = |of: &Value| of["message"]["content"].as_str().unwrap_or_default().to_owned();
    assert_eq!(text(&streamed[0]), text(&whole));
    whole["message"]["tool_calls"] = calls;
    whole
}

#[test]
fn calls_are_found_in_what_a_model_says() {
    let server = able();
    let one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let two = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let script = |text: &str| json!({"tools": tools(), "structured_outputs": {"choice": [text]}});
    let choice = both(&server, script(&format!("<think>Hm</think>Let me see.{one}\n{two}")));
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["reasoning_content"], "Hm");
    assert_eq!(content(&choice).trim_end(), "Let me see.");
    assert_eq!(
        choice["message"]["tool_calls"],
        json!([
            {"type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}},
            {"type": "function", "function": {"name": "now", "arguments": "{}"}},
        ])
    );

    let choice = both(&server, script(one));
    assert_eq!(choice["message"]["content"], Value::Null);

    let mut body = script(&format!("{one}\n{two}"));
    body["parallel_tool_calls"] = false.into();
    assert_eq!(both(&server, body)["message"]["tool_calls"].as_array().unwrap().len(), 1);

    let mut body = script(one);
    body["tool_choice"] = "none".into();
    let choice = both(&server, body);
    assert_eq!((content(&choice), &choice["finish_reason"]), (one, &json!("stop")));

    let choice = both(&server, script("No call."));
    assert_eq!((content(&choice), &choice["finish_reason"]), ("No call.", &json!("stop")));
}

#[test]
fn a_model_calls_what_it_must() {
    let server = able();
    let named = json!({"type": "function", "function": {"name": "add"}});
    let choice = both(&server, json!({"tools": tools(), "tool_choice": named}));
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "add");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["a"].is_u64(), "{arguments}");
    // As at OpenAI: who names the call knows that it comes.
    assert_eq!(choice["finish_reason"], "stop");

    let required = json!({
        "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false,
        "chat_template_kwargs": {"enable_thinking": true},
    });
    let choice = both(&server, required);
    assert_eq!(choice["finish_reason"], "tool_calls");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert!(
        matches!(calls[0]["function"]["name"].as_str(), Some("add" | "now")) && calls.len() == 1
    );
}

#[test]
fn a_model_that_was_not_taught_to_call_says_so() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let body = json!({"messages": [{"role": "user", "content": "Go"}], "tools": tools()});
    let response = server.post("/v1/chat/completions", &body);
    let error = &response.value()["error"];
    assert_eq!((response.status, &error["code"]), (400, &json!("tools_not_supported")), "{error}");
}
