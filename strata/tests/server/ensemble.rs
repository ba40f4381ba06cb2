//! `strata serve --ensemble`: several specialists behind one address.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::served::{Served, command, fixture};

/// An ensemble file of two tiny models, with these lines at its head.
fn file(head: &str) -> NamedTempFile {
    let (llama, qwen) = (fixture("tiny-llama"), fixture("tiny-qwen3"));
    let text = format!(
        r#"
        name = "pair"
        kv_memory = "64MiB"
        {head}
        [[specialist]]
        name = "one"
        model = {llama:?}
        block_size = 8
        intents = ["debug"]
        fallback = "two"
        [[specialist]]
        name = "two"
        model = {qwen:?}
        decoding_policy = "greedy"
        "#
    );
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// A server of that ensemble.
fn served(head: &str, args: &[&str]) -> Served {
    let file = file(head);
    let mut command = command();
    command.args(["--quiet", "serve", "--port", "0", "--ensemble"]).arg(file.path()).args(args);
    Served::run(command)
}

fn completion(more: Value) -> Value {
    let mut body = json!({"prompt": "int main() {", "max_tokens": 8, "seed": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const COMPLETIONS: &str = "/v1/completions";

#[test]
fn the_specialist_that_a_request_names_serves_it_and_is_named_everywhere() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("access.jsonl");
    let mut server = served("", &["--access-log", log.to_str().unwrap()]);
    for (body, name) in [
        (json!({"specialist": "one"}), "one"),
        (json!({"specialist": "two"}), "two"),
        (json!({"model": "two"}), "two"),
        (json!({"model": "pair", "specialist": "two", "stream": true}), "two"),
    ] {
        let response = server.post(COMPLETIONS, &completion(body.clone()));
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.header("x-strata-specialist"), Some(name), "{body}");
        assert_eq!(response.header("x-strata-model"), Some(name), "{body}");
        let model = match body["stream"].as_bool() {
            Some(true) => response.events()[0]["model"].clone(),
            _ => response.json()["model"].clone(),
        };
        assert_eq!(model, name);
    }
    let metrics = server.get("/metrics");
    let finished = |name: &str| {
        let labels = [format!("model_name=\"{name}\""), "finished_reason=\"length\"".to_owned()];
        let text = metrics.text();
        let mut lines = text.lines().filter(|line| {
            line.starts_with("vllm:request_success_total{")
                && labels.iter().all(|label| line.contains(label))
        });
        lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    assert_eq!((finished("one"), finished("two")), (Some(1), Some(3)));
    server.signal("TERM");
    assert!(server.ended(Duration::from_secs(60)).success());
    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let models: Vec<&Value> = lines
        .iter()
        .filter(|line| line["path"] == COMPLETIONS)
        .map(|line| &line["model"])
        .collect();
    assert_eq!(models, ["one", "two", "two", "two"]);
}

#[test]
fn a_specialist_has_the_tokens_of_a_server_of_its_own() {
    let ensemble = served("", &[]);
    for (model, name) in [("tiny-llama", "one"), ("tiny-qwen3", "two")] {
        let alone = Served::start::<&str>(model, []);
        let ask = |server: &Served, body| {
            let body = completion(body);
            server.post(COMPLETIONS, &body).json()["choices"].clone()
        };
        let temperature = 0.9;
        assert_eq!(
            ask(&ensemble, json!({"specialist": name, "temperature": temperature, "logprobs": 1})),
            ask(&alone, json!({"temperature": temperature, "logprobs": 1})),
            "{name}"
        );
    }
}

#[test]
fn models_and_specialists_that_do_not_exist_are_listed_beside_those_that_do() {
    let server = served("", &[]);
    let ids: Vec<Value> = server.get("/v1/models").json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["id"].clone())
        .collect();
    assert_eq!(ids, ["pair", "one", "two"]);
    let unknown = server.post(COMPLETIONS, &completion(json!({"model": "three"})));
    assert_eq!(unknown.status, 404);
    let message = unknown.value()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("pair") && message.contains("one, two"), "{message}");
    let unknown = server.post(COMPLETIONS, &completion(json!({"specialist": "three"})));
    assert_eq!((unknown.status, &unknown.value()["error"]["param"]), (400, &json!("specialist")));
    for (field, value) in [
        ("deadline_ms", json!(0)),
        ("deadline_ms", json!(-1)),
        ("intent", json!("x".repeat(65))),
        ("decoding_policy", json!("hot")),
    ] {
        let refused = server.post(COMPLETIONS, &completion(json!({field: value})));
        assert_eq!((refused.status, &refused.value()["error"]["param"]), (400, &json!(field)));
    }
    assert_eq!(server.get("/strata/state?specialist=two").json()["model"], "two");
    assert_eq!(server.get("/strata/state?specialist=three").status, 400);
}

#[test]
fn a_decoding_policy_is_the_default_of_requests_that_do_not_sample() {
    let server = served("", &[]);
    let text = |body: Value| {
        let body = completion(body);
        server.post(COMPLETIONS, &body).json()["choices"][0]["text"].clone()
    };
    let greedy = text(json!({"specialist": "two", "temperature": 0}));
    assert_eq!(text(json!({"specialist": "two", "seed": 5})), greedy, "the lane's policy");
    let own = json!({"specialist": "one", "decoding_policy": "greedy", "seed": 5});
    assert_eq!(text(own), text(json!({"specialist": "one", "temperature": 0})));
    let hot = |seed: u32| json!({"specialist": "two", "temperature": 1.5, "seed": seed});
    assert!((0..8).any(|seed| text(hot(seed)) != greedy), "the request's own temperature counts");
}

#[test]
fn all_errors_of_a_file_are_reported_and_nothing_is_loaded() {
    let bad = file("fallback = \"three\"\ncolour = 1\nkv_memory2 = 3");
    let output = command().args(["serve", "--ensemble"]).arg(bad.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    for part in ["`fallback`", "three", "`colour`", "`kv_memory2`"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    let both = command().args(["serve", "--ensemble", "demo", "--model", "x"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
    let missing = command().args(["ensemble", "check", "no-such-file.toml"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
}

#[test]
fn the_demo_is_valid_and_is_printed_with_its_defaults() {
    let output = command().args(["ensemble", "check", "demo"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["template", "stl", "algo", "memory", "concurrency", "systems", "build", "debug"] {
        assert!(text.lines().any(|line| line == name), "{name} is not in {text}");
    }
    let output =
        command().args(["serve", "--ensemble", "demo", "--print-config"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ensemble = \"demo\"") && text.contains("# concurrency"), "{text}");
}
