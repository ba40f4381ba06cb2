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

/// The history of a server's leases, when it has ended.
fn history(server: &mut Served, file: &std::path::Path) -> Vec<Value> {
    server.signal("TERM");
    assert_eq!(server.ended(crate::wire::PATIENCE).code(), Some(0));
    let contents: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(contents["dropped"], 0);
    contents["pinned_requests"].as_array().unwrap().clone()
}

#[test]
fn a_history_says_which_blocks_were_held_for_how_long_and_of_what_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jobs.json");
    let file = path.to_str().unwrap();
    let args = ["--policy", "adaptive", "--job-history", file, "--api-key", "one", "two"];
    let mut server = Served::start("tiny-llama", args);
    let ask = |key: &str, prompt: &[u32], job: &str, last: bool| {
        let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": true,
                          "job_id": job, "is_last_step": last});
        let request =
            ureq::post(server.url(COMPLETIONS)).header("authorization", format!("Bearer {key}"));
        let response = request.send_json(&body).unwrap();
        assert_eq!(response.status(), 200);
    };
    let prompt: Vec<u32> = (0..100).map(|at| 3 + at * 7 % 300).collect();
    ask("one", &prompt[..40], "a", false);
    ask("two", &prompt[..40], "a", false);
    ask("one", &prompt, "a", true);
    let all = history(&mut server, &path);
    assert_eq!(all.len(), 2, "the last step leaves no lease: {all:?}");
    let (ended, open) = (&all[0], &all[1]);
    // 42 tokens are computed of the first step, which are two full blocks of 16.
    assert_eq!((&ended["blocks"], &ended["hit_length"]), (&json!(2), &json!(32)));
    assert_eq!((&ended["job_id"], &ended["reason"]), (&json!("a"), &json!("job_over")));
    let time = |pin: &Value, name: &str| pin[name].as_f64().unwrap();
    assert!(time(ended, "pinned_time") < time(ended, "unpinned_time"), "{ended}");
    // That of the other tenant's job of the same name still holds its blocks.
    assert_eq!((&open["job_id"], &open["blocks"]), (&json!("a"), &json!(2)));
    assert_eq!((&open["unpinned_time"], &open["reason"]), (&Value::Null, &Value::Null));
    assert_eq!(open["hit_length"], 0, "no hit of the job of another tenant");
    let tenant = |pin: &Value| pin["tenant"].as_str().unwrap().to_owned();
    assert_ne!(tenant(ended), tenant(open));
    assert_eq!(tenant(open).len(), 16, "a digest");
}

#[test]
fn a_history_that_cannot_be_written_is_an_error_at_once() {
    let mut command = crate::served::command();
    command.args(["serve", "--port", "0", "--job-history", "/nowhere/jobs.json", "--model"]);
    let output = command.arg(crate::served::fixture("tiny-llama")).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("/nowhere/jobs.json"), "{text}");
}
