//! `/v1/chat/completions`: prompts of conversations, and the format of responses.

use serde_json::{Value, json};

use crate::served::Served;

/// A template in this directory.
pub fn template(name: &str) -> String {
    format!("{}/tests/server/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"))
}

/// A server of a model that thinks and calls.
pub fn able() -> Served {
    Served::start("tiny-qwen3", ["--chat-template", &template("thinks-and-calls")])
}

const CHAT: &str = "/v1/chat/completions";

/// Choices of a stream: for each the whole message, joined from its `delta`s, and its finish reason.
pub fn joined(events: &[Value]) -> Vec<Value> {
    let mut choices: Vec<Value> = Vec::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let at = choice["index"].as_u64().unwrap() as usize;
        while choices.len() <= at {
            choices.push(json!({"message": {}, "logprobs": null}));
        }
        let whole = &mut choices[at];
        for (field, value) in choice["delta"].as_object().unwrap() {
            match (field.as_str(), value) {
                ("tool_calls", Value::Array(calls)) => {
                    calls.iter().for_each(|call| join_call(&mut whole["message"], call));
                }
                (field, Value::String(text)) => {
                    let so_far = whole["message"][field].as_str().unwrap_or_default();
                    whole["message"][field] = (so_far.to_owned() + text).into();
                }
                other => panic!("{other:?}"),
            }
        }
        if let Some(told) = choice["logprobs"]["content"].as_array() {
            if whole["logprobs"].is_null() {
                whole["logprobs"] = json!({"content": []});
            }
            whole["logprobs"]["content"].as_array_mut().unwrap().extend(told.clone());
        }
        if !choice["finish_reason"].is_null() {
            assert!(whole["finish_reason"].is_null(), "an answer ends once");
            whole["finish_reason"] = choice["finish_reason"].clone();
        }
    }
    choices
}

fn join_call(message: &mut Value, part: &Value) {
    if message["tool_calls"].is_null() {
        message["tool_calls"] = json!([]);
    }
    let calls = message["tool_calls"].as_array_mut().unwrap();
    let arguments = part["function"]["arguments"].as_str().unwrap_or_default();
    match calls.get_mut(part["index"].as_u64().unwrap() as usize) {
        None => {
            assert!(part["id"].is_string(), "a call begins with its name: {part}");
            let name = &part["function"]["name"];
            calls.push(
                json!({"type": "function", "function": {"name": name, "arguments": arguments}}),
            );
        }
        Some(call) => {
            let so_far = call["function"]["arguments"].as_str().unwrap().to_owned();
            call["function"]["arguments"] = (so_far + arguments).into();
        }
    }
}

/// The text of the prompt that a request becomes.
fn prompt(server: &Served, mut body: Value) -> String {
    body["max_tokens"] = 1.into();
    body["return_token_ids"] = true.into();
    let answer = server.post(CHAT, &body).json();
    let tokens = json!({"tokens": answer["prompt_token_ids"]});
    server.post("/detokenize", &tokens).json()["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn a_stream_says_what_whole_answers_say() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let mut body = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "n": 2, "seed": 7,
        "max_completion_tokens": 12, "temperature": 0.8, "logprobs": true, "top_logprobs": 2,
        "ignore_eos": true, "return_token_ids": true,
    });
    let whole = server.post(CHAT, &body).json();
    assert_eq!(whole["object"], "chat.completion");
    assert!(whole["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(whole["usage"]["completion_tokens"], 24);
    let choices = whole["choices"].as_array().unwrap();
    assert_ne!(choices[0]["message"]["content"], choices[1]["message"]["content"]);

    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let events = server.post(CHAT, &body).events();
    let (last, events) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    // The second time, the prompt's first block is there already.
    let cached = |of: &Value| of["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!((cached(&whole), cached(last)), (json!(0), json!(16)));
    assert!(events.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(events[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    for (streamed, whole) in joined(events).iter().zip(choices) {
        assert_eq!(streamed["message"]["content"], whole["message"]["content"]);
        assert_eq!(streamed["finish_reason"], whole["finish_reason"]);
        assert_eq!(streamed["logprobs"], whole["logprobs"]);
        let told = whole["logprobs"]["content"].as_array().unwrap();
        assert_eq!(told.len(), 12);
        assert!(told.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
        let bytes = told.iter().flat_map(|token| token["bytes"].as_array().unwrap());
        let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(
            text.contains(
                whole["message"]["content"].as_str().unwrap().trim_end_matches('\u{fffd}')
            )
        );
    }
}

#[test]
fn usage_is_told_with_every_event_to_who_wants_it_so() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let body = json!({
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "ignore_eos": true,
        "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    let events = server.post(CHAT, &body).events();
    let counts: Vec<u64> =
        events.iter().map(|e| e["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted() && *counts.last().unwrap() == 6, "{counts:?}");
}

/// As vLLM counts: an event is about one choice, and so is its usage; the last one is about the request.
#[test]
fn usage_of_an_event_is_that_of_its_choice() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let mut chat = json!({"messages": [{"role": "user", "content": "Hello"}]});
    let mut completion = json!({"prompt": ["Hello", "Hello you"]});
    for (path, body, choices) in [(CHAT, &mut chat, 3), ("/v1/completions", &mut completion, 6)] {
        body["n"] = 3.into();
        body["max_tokens"] = 6.into();
        body["ignore_eos"] = true.into();
        body["stream"] = true.into();
        body["stream_options"] = options.clone();
        let mut events = server.post(path, body).events();
        let usage = |event: &Value, field: &str| event["usage"][field].as_u64().unwrap();
        let total = events.pop().unwrap();
        assert_eq!(total["choices"], json!([]));
        assert_eq!(usage(&total, "completion_tokens"), 6 * choices, "{path}");
        let mut last = vec![(0, 0); choices as usize];
        for event in &events {
            let choice = &mut last[event["choices"][0]["index"].as_u64().unwrap() as usize];
            let tokens = usage(event, "completion_tokens");
            assert!(choice.1 <= tokens && tokens <= 6, "{path}: {event}");
            *choice = (usage(event, "prompt_tokens"), tokens);
        }
        assert!(last.iter().all(|choice| choice.1 == 6), "{path}: {last:?}");
        // Prompts are counted once in the total, however many choices they have.
        let prompts: u64 = last.iter().step_by(3).map(|choice| choice.0).sum();
        assert_eq!(usage(&total, "prompt_tokens"), prompts, "{path}");
    }
}

#[test]
fn a_conversation_becomes_the_prompt_that_the_template_writes() {
    let server = able();
    let call = |arguments: Value| json!([{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}]);
    let said = json!({"messages": [
        // A template that knows no developers has them as the system.
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}], "name": null},
        {"role": "assistant", "content": null, "tool_calls": call("{\"a\": [1, 2]}".into())},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "assistant", "tool_calls": call("".into()), "refusal": null},
    ]});
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n\
                    <|im_start|>user\nOne\ntwo<|im_end|>\n\
                    <|im_start|>assistant\n<tool_call>add {\"a\": [1, 2]}</tool_call><|im_end|>\n\
                    <|im_start|>tool\n3<|im_end|>\n\
                    <|im_start|>assistant\n<tool_call>add {}</tool_call><|im_end|>\n";
    let head = "<|im_start|>assistant\n";
    assert_eq!(prompt(&server, said.clone()), format!("{expected}{head}"));

    let with = |field: &str, value: Value| {
        let mut body = said.clone();
        body[field] = value;
        prompt(&server, body)
    };
    assert_eq!(with("add_generation_prompt", false.into()), expected);
    let thinks = json!({"enable_thinking": true});
    assert_eq!(with("chat_template_kwargs", thinks), format!("{expected}{head}<think>\n"));
    let tools = json!([{"type": "function", "function": {"name": "add"}}]);
    let told = "<|im_start|>system\nTools: add\nAnswer <tool_call>{...}</tool_call>.<|im_end|>\n";
    assert_eq!(with("tools", tools.clone()), format!("{told}{expected}{head}"));

    // With `tool_choice` none, the prompt has no tools.
    let mut body = said.clone();
    body["tools"] = tools;
    body["tool_choice"] = "none".into();
    assert_eq!(prompt(&server, body), format!("{expected}{head}"));
}

#[test]
fn a_template_gets_what_it_knows_of() {
    let template = "{% for m in messages %}{{ '[' + m.role + ']' }}{% endfor %}{# developer #}\
                    {{ reasoning_effort }}{{ documents[0].title }}{{ more }}";
    let server = Served::start("tiny-qwen3", ["--chat-template", template]);
    let body = json!({
        "messages": [{"role": "developer", "content": "x"}], "reasoning_effort": "low",
        "documents": [{"title": "A"}], "chat_template_kwargs": {"more": 5, "messages": []},
    });
    assert_eq!(prompt(&server, body), "[developer]lowA5");
}

#[test]
fn a_prompt_begins_once() {
    let bare = "{% for m in messages %}{{ m.content }}{% endfor %}";
    for args in [vec![], vec!["--chat-template", bare]] {
        let server = Served::start("tiny-llama", args);
        let begin = server.post("/tokenize", &json!({"prompt": "x"})).json()["tokens"][0].clone();
        let messages = json!([{"role": "user", "content": "Hello"}]);
        let body = json!({"messages": messages, "return_token_ids": true, "max_tokens": 1});
        let prompt = server.post(CHAT, &body).json()["prompt_token_ids"].clone();
        let prompt = prompt.as_array().unwrap();
        assert_eq!(prompt[0], begin);
        assert_eq!(prompt.iter().filter(|id| **id == begin).count(), 1, "{prompt:?}");
    }
}

#[test]
fn tokenize_says_what_a_conversation_costs() {
    let server = able();
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hello"}], "return_token_ids": true, "max_tokens": 1,
        "tools": [{"type": "function", "function": {"name": "add"}}],
    });
    let tokens = server.post("/tokenize", &body).json()["tokens"].clone();
    body["temperature"] = 0.into();
    assert_eq!(server.post(CHAT, &body).json()["prompt_token_ids"], tokens);
}

#[test]
fn the_last_message_can_be_continued() {
    let server = able();
    let said = |content: &str| json!([{"role": "user", "content": "Count"}, {"role": "assistant", "content": content}]);
    let body = json!({"messages": said("One, two, "), "continue_final_message": true});
    let begun = "<|im_start|>user\nCount<|im_end|>\n<|im_start|>assistant\nOne, two, ";
    assert_eq!(prompt(&server, body), begun);
    // The same tokens as a text that is continued give the same answer.
    let body = json!({
        "messages": said("One, two, "), "continue_final_message": true, "max_tokens": 8,
        "temperature": 0, "ignore_eos": true, "return_token_ids": true,
    });
    let chat = server.post(CHAT, &body).json();
    let prompt = &chat["prompt_token_ids"];
    let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    let text = server.post("/v1/completions", &body).json();
    assert_eq!(chat["choices"][0]["message"]["content"], text["choices"][0]["text"]);
}

#[test]
fn what_cannot_be_meant_is_told_by_its_path() {
    let server = able();
    let user = json!({"role": "user", "content": "Hello"});
    let call =
        |function: Value| json!({"role": "assistant", "tool_calls": [{"function": function}]});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let cases = [
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [user, {"content": "x"}]}), "messages[1].role"),
        (json!({"messages": [user, {"role": 5, "content": "x"}]}), "messages[1].role"),
        (json!({"messages": [user, {"role": "user", "content": 5}]}), "messages[1].content"),
        (json!({"messages": [user, {"role": "user"}]}), "messages[1].content"),
        (
            json!({"messages": [user, {"role": "assistant", "content": null}]}),
            "messages[1].content",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}),
            "messages[0].content[0].text",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": "data:,"}},
            ]}]}),
            "messages[0].content[1].type",
        ),
        (
            json!({"messages": [user, call(json!({"name": "f", "arguments": 5}))]}),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            json!({"messages": [user, call(json!({"arguments": "{}"}))]}),
            "messages[1].tool_calls[0].function.name",
        ),
        (json!({"messages": [user], "max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"messages": [user], "max_tokens": -1}), "max_tokens"),
        (json!({"messages": [user], "logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"messages": [user], "top_logprobs": 2}), "top_logprobs"),
        (json!({"messages": [user], "tools": {}}), "tools"),
        (json!({"messages": [user], "tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"messages": [user], "tools": [tool("f"), tool("f")]}), "tools[1].function.name"),
        (json!({"messages": [user], "tool_choice": "required"}), "tool_choice"),
        (json!({"messages": [user], "tools": [tool("f")], "tool_choice": "maybe"}), "tool_choice"),
        (
            json!({"messages": [user], "tools": [tool("f")], "tool_choice": tool("g")}),
            "tool_choice.function.name",
        ),
        (
            json!({"messages": [user], "tools": [tool("f")], "tool_choice": "required",
                "response_format": {"type": "json_object"}}),
            "tool_choice",
        ),
        (json!({"messages": [user, {"role": "robot", "content": "x"}]}), "messages[1].role"),
        (json!({"messages": [user], "echo": true}), "echo"),
        (json!({"messages": [user], "best_of": 2}), "best_of"),
        (json!({"messages": [user], "prompt_logprobs": 1}), "prompt_logprobs"),
        (json!({"messages": [user], "grammar": "root ::= \"a\""}), "grammar"),
        (
            json!({"messages": [user], "structured_outputs": {"structural_tag": {"a": 1}}}),
            "structured_outputs.structural_tag",
        ),
        (json!({"messages": [user], "functions": []}), "functions"),
        (json!({"messages": [user], "modalities": ["text", "audio"]}), "modalities"),
        (json!({"messages": [user], "chat_template": "x"}), "chat_template"),
        (json!({"messages": [user], "continue_final_message": true}), "messages[0].role"),
        (
            json!({"messages": [user], "continue_final_message": true, "add_generation_prompt": true}),
            "add_generation_prompt",
        ),
        (json!({"messages": [{"role": "user", "content": "long ".repeat(600)}]}), "messages"),
        (json!({"messages": [{"role": "user", "content": "longer ".repeat(90_000)}]}), "messages"),
    ];
    for (body, param) in cases {
        let response = server.post(CHAT, &body);
        let error = &response.value()["error"];
        assert_eq!(response.status, 400, "{body}");
        assert_eq!(error["param"], param, "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{body}: {error}");
    }
    let response = server.post(CHAT, &json!({"model": "other", "messages": [user]}));
    assert_eq!(
        (response.status, &response.value()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[test]
fn fields_that_ask_for_nothing_and_fields_of_other_servers_are_no_obstacle() {
    let server = able();
    let plain =
        json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 1});
    let content = |more: Value| {
        let mut body = plain.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(CHAT, &body).json()["choices"][0]["message"]["content"].clone()
    };
    let with = content(json!({
        "use_beam_search": false, "length_penalty": 1.0, "early_stopping": false, "best_of": 1,
        "prompt_logprobs": null, "logits_processors": [], "mm_processor_kwargs": {}, "grammar": "",
        "echo": false, "modalities": ["text"], "store": true, "metadata": {"a": "b"},
        "service_tier": "auto", "safety_identifier": "x", "user": "y", "verbosity": "low",
    }));
    assert_eq!(with, content(json!({})));
}

#[test]
fn a_call_that_was_cut_off_can_be_replayed() {
    let cut = |arguments: &str| {
        let call = json!({"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}});
        json!({"messages": [
            {"role": "user", "content": "Go"}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "That was cut off."},
        ]})
    };
    let server = able();
    // The model sees what it wrote, as the template writes a text.
    let text = prompt(&server, cut("{\"a\": [1, "));
    assert!(text.contains(r#"<tool_call>add "{\"a\": [1, "</tool_call>"#), "{text}");
    assert!(prompt(&server, cut("[1]")).contains(r#"add "[1]""#));
    // A template that walks through arguments finds none.
    let walks = "{% for m in messages %}{% for c in m.tool_calls or [] %}\
                 {{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %})\
                 {% endfor %}{% endfor %}";
    let server = Served::start("tiny-qwen3", ["--chat-template", walks]);
    assert_eq!(prompt(&server, cut("{\"a\": [1, ")), "add()");
    assert_eq!(prompt(&server, cut("{\"a\": 1}")), "add(a=1)");
}

#[test]
fn a_role_that_the_template_names_may_speak() {
    let template = "{% for m in messages %}{% if m.role == 'ipython' %}[py]{% endif %}{{ m.content }}{% endfor %}";
    let server = Served::start("tiny-qwen3", ["--chat-template", template]);
    let said = |role: &str| json!({"messages": [{"role": role, "content": "x"}]});
    assert_eq!(prompt(&server, said("ipython")), "[py]x");
    let response = server.post(CHAT, &said("robot"));
    let message = response.value()["error"]["message"].clone();
    assert_eq!(response.status, 400);
    assert!(
        message.as_str().unwrap().contains("system, developer, user, assistant, tool"),
        "{message}"
    );
}

#[test]
fn special_tokens_are_shown_to_who_asks_for_them() {
    let server = able();
    let end =
        server.post("/tokenize", &json!({"prompt": "<|im_end|>"})).json()["tokens"][0].clone();
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "ignore_eos": true,
        "logit_bias": {end.to_string(): 100}, "logprobs": true, "return_token_ids": true,
    });
    let hidden = server.post(CHAT, &body).json();
    assert_eq!(hidden["choices"][0]["message"]["content"], "");
    body["skip_special_tokens"] = false.into();
    let shown = server.post(CHAT, &body).json();
    let choice = &shown["choices"][0];
    assert_eq!(choice["token_ids"], json!([end, end, end]));
    assert_eq!(choice["message"]["content"], "<|im_end|>".repeat(3));
    let told = choice["logprobs"]["content"].as_array().unwrap();
    assert!(told.iter().all(|token| token["token"] == "<|im_end|>"), "{choice}");
    body["stream"] = true.into();
    let streamed = joined(&server.post(CHAT, &body).events());
    assert_eq!(streamed[0]["message"]["content"], choice["message"]["content"]);
    // The token that ends the answer is no part of it.
    body["ignore_eos"] = false.into();
    let ended = joined(&server.post(CHAT, &body).events());
    assert_eq!(
        (&ended[0]["message"]["content"], &ended[0]["finish_reason"]),
        (&json!(""), &json!("stop"))
    );
}

#[test]
fn a_template_may_refuse_a_conversation() {
    let template = "{{ raise_exception('Roles must alternate.') }}";
    let server = Served::start("tiny-qwen3", ["--chat-template", template]);
    let response = server.post(CHAT, &json!({"messages": [{"role": "user", "content": "x"}]}));
    assert_eq!(response.status, 400);
    assert!(response.text().contains("Roles must alternate."), "{}", response.text());
}

#[test]
fn what_is_not_here_says_so() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    for path in ["/v1/embeddings", "/v1/responses", "/v1/messages"] {
        let response = server.post(path, &json!({"input": "x"}));
        assert_eq!(response.status, 404);
        assert_eq!(response.value()["error"]["code"], "unsupported_endpoint", "{path}");
    }
}
