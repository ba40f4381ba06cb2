//! `/tokenize`, `/detokenize` and `/v1/models`.

use serde_json::{Value, json};

use crate::served::Served;

#[test]
fn a_text_becomes_tokens_and_a_text_again() {
    let server = Served::start("tiny-llama", [""; 0]);
    let told =
        server.post("/tokenize", &json!({"prompt": "Once upon", "return_token_strs": true})).json();
    let tokens = told["tokens"].as_array().unwrap();
    assert_eq!(told["count"], tokens.len());
    assert_eq!(told["max_model_len"], 512);
    assert_eq!(told["token_strs"].as_array().unwrap().len(), tokens.len());
    assert_eq!(told["token_strs"][0], "<|begin_of_text|>");
    let bare = json!({"prompt": "Once upon", "add_special_tokens": false});
    let bare = server.post("/tokenize", &bare).json();
    assert_eq!(bare["tokens"], json!(tokens[1..]));
    assert_eq!(bare["token_strs"], Value::Null);
    let text = server.post("/detokenize", &json!({"tokens": bare["tokens"]})).json();
    assert_eq!(text["prompt"], "Once upon");
    // Longer than what is done on the spot.
    let long = "Once upon a time. ".repeat(2000);
    let told =
        server.post("/tokenize", &json!({"prompt": long, "add_special_tokens": false})).json();
    let text = server.post("/detokenize", &json!({"tokens": told["tokens"]})).json();
    assert_eq!(text["prompt"], long);
}

#[test]
fn a_conversation_is_the_tokens_that_its_chat_has_for_a_prompt() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let told = server.post("/tokenize", &json!({"messages": messages})).json();
    let chat = json!({"messages": messages, "max_tokens": 1});
    let chat = server.post("/v1/chat/completions", &chat).json();
    assert_eq!(chat["usage"]["prompt_tokens"], told["count"]);
    let open = json!({"messages": messages, "add_generation_prompt": false});
    let open = server.post("/tokenize", &open).json();
    assert!(open["count"].as_u64() < told["count"].as_u64());
    let text = server.post("/detokenize", &json!({"tokens": told["tokens"]})).json();
    let text = text["prompt"].as_str().unwrap();
    assert!(text.contains("<|im_start|>user\nHello<|im_end|>"), "{text}");
}

#[test]
fn tokens_that_are_none_are_named() {
    let server = Served::start("tiny-llama", [""; 0]);
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 7}), "prompt"),
        ("/tokenize", json!({"prompt": "a", "messages": []}), "messages"),
        ("/detokenize", json!({"tokens": [1, 70_000]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens[0]"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
    ] {
        let response = server.post(path, &body);
        assert_eq!(response.status, 400, "{body}: {}", response.text());
        assert_eq!(response.value()["error"]["param"], param, "{}", response.text());
    }
}

#[test]
fn every_name_of_the_model_is_listed_and_can_be_asked_for() {
    let server = Served::start("tiny-llama", ["--served-model-name", "org/tiny", "other"]);
    let list = server.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let ids: Vec<&Value> =
        list["data"].as_array().unwrap().iter().map(|card| &card["id"]).collect();
    assert!(ids.contains(&&json!("org/tiny")) && ids.contains(&&json!("other")), "{list}");
    assert_eq!(list["data"][0]["max_model_len"], 512);
    assert_eq!(server.get("/v1/models/org/tiny").json()["id"], "org/tiny");
    let unknown = server.get("/v1/models/unknown");
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.value()["error"]["code"], "model_not_found");
    let body = json!({"model": "other", "prompt": "a", "max_tokens": 1});
    let answer = server.post("/v1/completions", &body).json();
    assert_eq!(answer["model"], list["data"][0]["id"], "the first name is the one in responses");
}
