//! Steps of agents' jobs over HTTP.

use serde_json::{Value, json};

use crate::served::Served;
use crate::wire::until;

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";

fn completion(more: Value) -> Value {
    merged(json!({"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}), more)
}

fn chat(more: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    merged(json!({"messages": messages, "max_tokens": 3, "temperature": 0}), more)
}

fn merged(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_step_of_a_job_is_named_at_the_top_or_in_a_nested_extra_body() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let plain = |path, body: &Value| server.post(path, body).json()["choices"].clone();
    let before = [plain(COMPLETIONS, &completion(json!({}))), plain(CHATS, &chat(json!({})))];
    for more in [
        json!({"job_id": "a"}),
        json!({"job_id": "a", "is_last_step": true}),
        json!({"extra_body": {"job_id": "a", "is_last_step": true, "top_k": 3}}),
        json!({"extra_body": {}}),
        json!({"is_last_step": true}),
    ] {
        let bodies = [completion(more.clone()), chat(more.clone())];
        let now = [plain(COMPLETIONS, &bodies[0]), plain(CHATS, &bodies[1])];
        assert_eq!(now, before, "a job changes no response: {more}");
    }
    let longer = "j".repeat(513);
    for (more, param, why) in [
        (json!({"job_id": longer}), "job_id", "at most 512 bytes"),
        (json!({"job_id": ""}), "job_id", "must not be empty"),
        (json!({"extra_body": {"job_id": longer}}), "extra_body.job_id", "at most 512 bytes"),
        (json!({"extra_body": {"job_id": ""}}), "extra_body.job_id", "must not be empty"),
    ] {
        for (path, body) in [(COMPLETIONS, completion(more.clone())), (CHATS, chat(more.clone()))] {
            let response = server.post(path, &body);
            assert_eq!(response.status, 400, "{}", response.text());
            let error = &serde_json::from_str::<Value>(response.text()).unwrap()["error"];
            assert_eq!(error["param"], param, "{error}");
            assert!(error["message"].as_str().unwrap().contains(why), "{error}");
        }
    }
    for wrong in [json!({"job_id": 7}), json!({"extra_body": "job_id"}), json!({"is_last_step": 1})]
    {
        assert_eq!(server.post(COMPLETIONS, &completion(wrong.clone())).status, 400, "{wrong}");
    }
}

#[test]
fn overlapping_steps_of_one_job_are_legal() {
    let server = Served::start("tiny-llama", [""; 0]);
    let body = completion(json!({"job_id": "a", "max_tokens": 200, "ignore_eos": true, "n": 3}));
    std::thread::scope(|scope| {
        let send = |last: bool| {
            let body = merged(body.clone(), json!({"is_last_step": last}));
            scope.spawn(|| {
                let body = body;
                server.post(COMPLETIONS, &body)
            })
        };
        let all = [send(false), send(true), send(false)];
        until("several run", || server.metric("vllm:num_requests_running") > 3.0);
        for response in all.map(|sent| sent.join().unwrap()) {
            assert_eq!(response.status, 200, "{}", response.text());
            assert_eq!(response.json()["usage"]["completion_tokens"], 600);
        }
    });
}
