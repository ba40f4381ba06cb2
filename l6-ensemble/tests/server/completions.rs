//! `/v1/completions`.

use serde_json::json;

use crate::served::Served;

#[test]
fn a_stream_says_what_a_whole_answer_says() {
    let server = Served::start("tiny-llama", [""; 0]);
    let mut body =
        json!({"model": "tiny", "prompt": "Once upon", "max_tokens": 12, "temperature": 0});
    let whole = server.post("/v1/completions", &body).json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    body["stream"] = true.into();
    let events = server.post("/v1/completions", &body).events();
    let streamed: String =
        events.iter().map(|e| e["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, text);
}
