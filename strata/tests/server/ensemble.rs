//! `strata serve --ensemble`: several specialists behind one address.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::remote::remote;
use crate::scripted::{Scripted, Then, stream};
use crate::served::{Served, command, fixture};
use crate::wire::until;

/// Text of an ensemble file of two tiny models, with these lines at its head.
fn file(head: &str) -> String {
    let (llama, qwen) = (fixture("tiny-llama"), fixture("tiny-qwen3"));
    format!(
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
    )
}

/// A server of that ensemble.
pub fn served(head: &str, args: &[&str]) -> Served {
    Served::ensemble(&file(head), |command| {
        command.args(args);
    })
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
    let finished = |name: &str| {
        let labels = [format!("model_name=\"{name}\""), "finished_reason=\"length\"".to_owned()];
        let metrics = server.get("/metrics");
        let text = metrics.text();
        let mut lines = text.lines().filter(|line| {
            line.starts_with("vllm:request_success_total{")
                && labels.iter().all(|label| line.contains(label))
        });
        lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    // A client has its response before the step that ended it is counted.
    until("the responses are counted", || (finished("one"), finished("two")) == (Some(1), Some(3)));
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
    assert!(message.contains("`pair`") && message.contains("`one`, `two`"), "{message}");
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
    let mut bad = NamedTempFile::new().unwrap();
    bad.write_all(file("fallback = \"three\"\ncolour = 1\nkv_memory2 = 3").as_bytes()).unwrap();
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
fn the_start_names_each_model_once_and_each_lane_in_a_line() {
    let mut bytes = NamedTempFile::new().unwrap();
    let one_model = file("").replace("tiny-qwen3", "tiny-llama");
    bytes.write_all(one_model.as_bytes()).unwrap();
    let start = |quiet: bool| {
        let mut command = command();
        command.args(quiet.then_some("--quiet")).args(["serve", "--port", "0", "--ensemble"]);
        command.arg(bytes.path()).stderr(std::process::Stdio::piped());
        let mut server = Served::run(command);
        let mut stderr = server.stderr();
        server.signal("TERM");
        assert!(server.ended(Duration::from_secs(20)).success());
        let mut said = String::new();
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        said
    };
    let said = start(false);
    let count = |part: &str| said.lines().filter(|line| line.contains(part)).count();
    assert_eq!(count("strata: lane "), 2, "{said}");
    assert_eq!(count("weights "), 1, "both have one model: {said}");
    assert_eq!(count("classifier builtin, min_score 0.2"), 1, "{said}");
    assert_eq!(count("shut down"), 1, "{said}");
    let quiet = start(true);
    assert!(!quiet.contains("INFO"), "{quiet}");
}

#[test]
fn the_demo_is_valid_and_is_printed_with_its_defaults() {
    let output = command().args(["ensemble", "check", "demo"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["template", "stl", "algo", "memory", "concurrency", "systems", "build", "debug"] {
        let title = format!("[[specialist]] {name}");
        assert!(text.lines().any(|line| line == title), "{name} is not in {text}");
    }
    let output =
        command().args(["serve", "--ensemble", "demo", "--print-config"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("ensemble = \"demo\"") && text.contains("# [[specialist]] concurrency"),
        "{text}"
    );
}

/// A chat that tiny models can serve: the template of a tiny model is none, so it is given.
fn chats(head: &str, args: &[&str]) -> Served {
    let template = crate::chat::template("thinks-and-calls");
    served(head, &[&["--chat-template", &template], args].concat())
}

fn chat(text: &str, more: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": text}], "max_tokens": 4, "seed": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const CHAT: &str = "/v1/chat/completions";

/// A report that the rules of the router know.
const SANITIZER: &str = "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010\n\
                         #0 0x4f in main a.cpp:5";

#[test]
fn a_request_without_a_specialist_goes_where_intent_and_rules_send_it() {
    // Specialist `one` claims the intent debug, and the class of its name only.
    let server = chats("fallback = \"two\"\n[router]\nclassifier = \"off\"", &[]);
    for (body, name, why) in [
        (chat("Hello", json!({"intent": "debug"})), "one", "intent debug"),
        (chat("Hello", json!({"intent": "codegen"})), "two", "no rule"),
        (chat("Hello", json!({})), "two", "no rule"),
        (chat("Hello", json!({"model": "pair"})), "two", "no rule"),
    ] {
        let response = server.post(CHAT, &body);
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.header("x-strata-specialist"), Some(name), "{body}");
        let route = response.header("x-strata-route").unwrap();
        assert!(route.contains(why), "{route}");
    }
    let unknown = server.post(CHAT, &chat("Hello", json!({"intent": "cooking"})));
    assert_eq!((unknown.status, &unknown.value()["error"]["param"]), (400, &json!("intent")));
    let metrics = server.get("/metrics");
    let routes = |name: &str, by: &str| {
        let labels = [format!("model_name=\"{name}\""), format!("by=\"{by}\"")];
        let mut lines = metrics.text().lines().filter(|line| {
            line.starts_with("strata:routes_total{")
                && labels.iter().all(|label| line.contains(label))
        });
        lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    assert_eq!(routes("one", "declared_intent"), Some(1));
    assert_eq!(routes("two", "unrouted"), Some(3));
}

#[test]
fn a_rule_decides_by_what_the_request_contains() {
    let text = file("[router]\nclassifier = \"off\"");
    let text = text.replace("name = \"two\"", "name = \"two\"\nclasses = [\"debug\"]");
    let template = crate::chat::template("thinks-and-calls");
    let server = Served::ensemble(&text, |command| {
        command.args(["--chat-template", &template]);
    });
    let response = server.post(CHAT, &chat(SANITIZER, json!({})));
    assert_eq!(response.header("x-strata-specialist"), Some("two"), "{}", response.text());
    assert!(response.header("x-strata-route").unwrap().starts_with("rule "));
    // Nothing decides, and the file has no fallback.
    let rejected = server.post(CHAT, &chat("Hello", json!({})));
    assert_eq!(rejected.status, 422, "{}", rejected.text());
    assert_eq!(rejected.value()["error"]["code"], "no_specialist");
}

/// Status and body of the response to a request with the key `secret`.
fn post_with_key(server: &Served, path: &str, body: &Value) -> (u16, Value) {
    let request = ureq::post(server.url(path))
        .config()
        .http_status_as_error(false)
        .build()
        .header("authorization", "Bearer secret")
        .header("content-type", "application/json");
    let response = request.send(body.to_string().as_bytes()).unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().read_to_string().unwrap();
    (status, serde_json::from_str(&body).unwrap())
}

#[test]
fn an_operator_demotes_a_lane_and_its_fallback_serves() {
    let key = ["--api-key", "secret"];
    let server = chats("[router]\nclassifier = \"off\"", &key);
    let change = |body: Value| post_with_key(&server, "/strata/lanes", &body);
    let specialist = || {
        let body = chat("Hello", json!({"intent": "debug"}));
        let request = ureq::post(server.url(CHAT)).header("authorization", "Bearer secret");
        let response = request.header("content-type", "application/json");
        let response = response.send(body.to_string().as_bytes()).unwrap();
        let header = |name| response.headers().get(name).unwrap().to_str().unwrap().to_owned();
        (header("x-strata-specialist"), header("x-strata-route"))
    };
    assert_eq!(server.post("/strata/lanes", &json!({})).status, 401, "it needs a key");
    assert_eq!(specialist().0, "one");
    let (status, state) = change(json!({"lane": "one", "breaker": "open"}));
    assert_eq!((status, &state["lanes"][0]["role"]), (200, &json!("shadow_only")), "{state}");
    let (name, why) = specialist();
    assert_eq!(name, "two");
    assert!(why.contains("fallback of one, which is demoted"), "{why}");
    let (status, _) = change(json!({"lane": "one", "breaker": "auto"}));
    assert_eq!((status, specialist().0.as_str()), (200, "one"));
    for (body, status) in [
        (json!({"lane": "three", "breaker": "open"}), 400),
        (json!({"lane": "one", "colour": 1}), 400),
        (json!({"lane": "one"}), 400),
        (json!({"escalation_level": 99}), 400),
        (json!({"escalation_level": 1}), 200),
        (json!({"escalation_level": null}), 200),
    ] {
        assert_eq!(change(body.clone()).0, status, "{body}");
    }
}

#[test]
fn lanes_cannot_be_changed_on_a_server_without_keys() {
    let server = served("", &[]);
    let change = json!({"lane": "one", "breaker": "open"});
    assert_eq!(server.post("/strata/lanes", &change).status, 403);
    let state = server.get("/strata/lanes").json();
    assert_eq!(state["lanes"][1]["lane"], "two");
    assert_eq!(state["escalation"]["level"], 0);
}

#[test]
fn service_levels_are_published_for_each_lane_and_survive_a_restart() {
    let directory = TempDir::new().unwrap();
    let keep = ["--state-dir", directory.path().to_str().unwrap()];
    let count = |server: &Served, at: usize| {
        let slo = server.get("/strata/slo").json();
        assert_eq!(slo[at]["specialist"], ["one", "two"][at]);
        slo[at]["preempted_once"]["total"].as_u64().unwrap()
    };
    let mut server = served("", &keep);
    assert_eq!((count(&server, 0), count(&server, 1)), (0, 0));
    for _ in 0..3 {
        server.post(COMPLETIONS, &completion(json!({"specialist": "two"}))).json();
    }
    assert_eq!((count(&server, 0), count(&server, 1)), (0, 3));
    let slo = server.get("/strata/slo").json();
    assert_eq!(slo[1]["ttft_ms"]["count"], 3);
    assert!(slo[1]["ttft_ms"]["p95"].as_f64().unwrap() > 0.0);
    let response = server.post(COMPLETIONS, &completion(json!({"specialist": "two"})));
    assert!(response.header("x-strata-slo-ttft-p95-ms").is_some());
    let metrics = server.get("/metrics");
    let labels = ["strata:slo_latency_seconds{", "model_name=\"two\"", "quantile=\"0.95\""];
    let published = |line: &str| labels.iter().all(|label| line.contains(label));
    assert!(metrics.text().lines().any(published), "{}", metrics.text());
    server.signal("TERM");
    server.ended(Duration::from_secs(60));
    let server = served("", &keep);
    assert_eq!((count(&server, 0), count(&server, 1)), (0, 4), "of the process before");
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_with_the_quote() {
    let server = served("", &[]);
    // Rates are known after the first steps.
    let long = json!({"specialist": "two", "max_tokens": 200, "ignore_eos": true});
    server.post(COMPLETIONS, &completion(long)).json();
    let late =
        json!({"specialist": "two", "max_tokens": 200, "ignore_eos": true, "deadline_ms": 1});
    let refused = server.post(COMPLETIONS, &completion(late));
    assert_eq!(refused.status, 429, "{}", refused.text());
    let error = &refused.value()["error"];
    assert_eq!(error["code"], "deadline_unreachable");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("even without other requests"), "{message}");
    let seconds: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=120).contains(&seconds), "{seconds}");
    let enough = json!({"specialist": "two", "max_tokens": 5, "deadline_ms": 600_000});
    server.post(COMPLETIONS, &completion(enough)).json();
    let value = |labels: &[&str]| {
        let metrics = server.get("/metrics");
        let mut lines =
            metrics.text().lines().filter(|line| labels.iter().all(|label| line.contains(label)));
        lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    let two = "model_name=\"two\"";
    let refusals = ["strata:refusals_total{", two, "code=\"deadline_unreachable\""];
    assert_eq!(value(&refusals), Some(1.0));
    // The request with enough time; the first had no quote. It is counted behind the step that ended the response.
    let quotes = ["strata:quotes{", two, "promise=\"done\""];
    until("the quote is counted", || value(&quotes).is_some_and(|quotes| quotes > 0.0));
    assert_eq!(value(&quotes), Some(1.0));
}

#[test]
fn a_priority_floor_refuses_less_urgent_requests() {
    let server = served("", &["--api-key", "secret"]);
    let post = |path: &str, body: Value| post_with_key(&server, path, &body);
    let ask = |priority: i64| {
        post(COMPLETIONS, completion(json!({"specialist": "one", "priority": priority})))
    };
    assert_eq!(ask(5).0, 200);
    assert_eq!(post("/strata/lanes", json!({"lane": "one", "priority_floor": 0})).0, 200);
    let (status, error) = ask(5);
    assert_eq!((status, &error["error"]["code"]), (429, &json!("priority_floor")));
    assert_eq!(ask(0).0, 200);
    assert_eq!(post("/strata/lanes", json!({"lane": "one", "priority_floor": null})).0, 200);
    assert_eq!(ask(5).0, 200);
}

/// A server whose completions are this text, by the tokens that the model has for it.
fn says(tokenizer: &Served, text: &str) -> Scripted {
    let body = json!({"prompt": text, "add_special_tokens": false});
    let tokens = tokenizer.post("/tokenize", &body).json()["tokens"].clone();
    let event = json!({"choices": [{"text": text, "token_ids": tokens, "finish_reason": "stop"}]});
    let response = format!("{}data: {event}\n\ndata: [DONE]\n\n", stream!(""));
    Scripted::new(response.leak(), Then::Close)
}

/// Needs g++, as the tests of the kernels do. Other servers write the code: a client that makes a model write it says
/// nothing about the model.
#[cfg(target_os = "linux")]
#[test]
fn code_in_responses_is_checked_and_counts_for_the_specialist() {
    let tokenizer = Served::start::<&str>("tiny-llama", []);
    let code = |end: &str| format!("```cpp\n#include <string>\nint f() {{ return 1{end} }}\n```");
    let (good, bad) = (code(";"), code(""));
    let servers = [&good, &bad, "no code"].map(|text| says(&tokenizer, text));
    let mut text = "kv_memory = \"64MiB\"\n[router]\nclassifier = \"off\"\n".to_owned();
    for (name, server) in ["good", "bad", "prose"].into_iter().zip(&servers) {
        let remote = remote(&server.address, "");
        text += &format!(
            "[[specialist]]\nname = \"{name}\"\nmodel = {:?}\nreplicas = 0\nremotes = [{remote}]\n",
            fixture("tiny-llama")
        );
    }
    let server = Served::ensemble(&text, |command| {
        command.args(["--compile-check", "g++", "--compile-check-fraction", "1"]);
    });
    for (specialist, stream) in [("good", false), ("bad", true), ("prose", false)] {
        let body = json!({
            "model": specialist, "prompt": "Write f.", "max_tokens": 400, "stream": stream,
        });
        let response = server.post("/v1/completions", &body);
        assert_eq!(response.status, 200, "{}", response.text());
    }
    // What the client dictates is not checked.
    let dictated = json!({
        "model": "good", "prompt": "Write f.", "max_tokens": 400, "logit_bias": {"5": 1.0},
    });
    assert_eq!(server.post("/v1/completions", &dictated).status, 200);
    let checks = |at: usize| server.get("/strata/slo").json()[at]["compile_pass"].clone();
    let began = std::time::Instant::now();
    while checks(0)["total"] != 1 || checks(1)["total"] != 1 {
        assert!(began.elapsed() < Duration::from_secs(120), "{} {}", checks(0), checks(1));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((&checks(0)["count"], &checks(1)["count"]), (&json!(1), &json!(0)));
    let lanes = server.get("/strata/lanes").json();
    let samples = [0, 1, 2].map(|at: usize| lanes["lanes"][at]["breaker"]["samples"].clone());
    assert_eq!(samples, [1, 1, 0], "{lanes}");
    for (outcome, count) in [("pass", 1), ("fail", 1), ("no_code", 1), ("dropped", 0)] {
        let line = format!("strata:compile_checks_total{{outcome=\"{outcome}\"}} {count}");
        // A check is counted a moment after its verdict.
        while !server.get("/metrics").text().lines().any(|own| own == line) {
            assert!(began.elapsed() < Duration::from_secs(120), "no {line}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
