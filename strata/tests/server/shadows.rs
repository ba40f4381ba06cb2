//! Shadows, the calibration stream and freshness of `strata serve --ensemble`.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::served::{Response, Served, command, fixture};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A server of two specialists between which the built-in classifier divides requests; `two` has this model.
fn served(head: &str, two: &str, args: &[&str]) -> Served {
    let (one, two) = (fixture("tiny-llama"), fixture(two));
    let text = format!(
        r#"
        name = "pair"
        kv_memory = "64MiB"
        {head}
        [[specialist]]
        name = "one"
        model = {one:?}
        classes = ["debug", "memory", "build"]
        intents = ["debug"]
        fallback = "two"
        [[specialist]]
        name = "two"
        model = {two:?}
        classes = ["stl", "template", "algo", "systems", "concurrency"]
        "#
    );
    let template = crate::chat::template("thinks-and-calls");
    Served::ensemble(&text, |command| {
        command.args(["--api-key", "secret", "--chat-template", &template]).args(args);
    })
}

/// Shadows of demoted lanes only, and all of them.
const ONLY_DEMOTED: &str = "[shadow]\ndemoted_fraction = 1.0\nfresh_fraction = 0.0";

fn post(server: &Served, path: &str, body: &Value) -> Response {
    server.with_key(path, Some(body))
}

/// Changes a lane, or the escalation.
fn change(server: &Served, body: &Value) {
    let response = post(server, "/strata/lanes", body);
    assert_eq!(response.status, 200, "{}", response.text());
}

fn lanes(server: &Served) -> Value {
    server.with_key("/strata/lanes", None).json()
}

fn chat(text: &str, more: &Value) -> Value {
    let messages = json!([{"role": "user", "content": text}]);
    let mut body = json!({"messages": messages, "max_tokens": 8, "seed": 1, "intent": "debug"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Value of the series of `/metrics` that has all these parts; 0 if there is none.
fn metric(server: &Served, parts: &[&str]) -> u64 {
    let metrics = server.with_key("/metrics", None);
    let text = metrics.text();
    let mut lines = text.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
    let value = lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    value.unwrap_or_default() as u64
}

/// Waits until so many shadows of a specialist are complete; none of them may end otherwise.
fn wait_for_shadows(server: &Served, specialist: &str, count: u64) {
    let specialist = format!("specialist=\"{specialist}\"");
    let ended = |end: &str| {
        let end = format!("end=\"{end}\"");
        metric(server, &["strata:shadows_ended_total{", &specialist, &end])
    };
    wait(|| {
        for end in ["primary", "refused", "waited", "clients", "stopped", "failed"] {
            assert_eq!(ended(end), 0, "shadows that ended as {end}");
        }
        ended("completed") == count
    });
}

fn wait(until: impl Fn() -> bool) {
    let began = Instant::now();
    while !until() {
        assert!(began.elapsed() < Duration::from_secs(60), "it did not happen in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends a server, and waits for its end.
fn end(mut server: Served) {
    server.signal("TERM");
    assert!(server.ended(Duration::from_secs(60)).success());
}

#[test]
fn a_request_of_an_unsure_route_has_a_shadow_that_its_client_does_not_notice() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("access.jsonl");
    let server = served(ONLY_DEMOTED, "tiny-qwen3", &["--access-log", log.to_str().unwrap()]);
    let ask = |more: &Value| {
        let response = post(&server, CHAT, &chat("Hello", more));
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.header("x-strata-specialist"), Some("one"));
        response
    };
    let sampled = json!({"temperature": 0.9, "logprobs": true});
    let alone = ask(&sampled);
    assert_eq!(alone.header("x-strata-shadow"), None, "no stream reads what it would show");
    change(&server, &json!({"lane": "one", "shadow_below": 1.0}));
    let shadowed = ask(&sampled);
    assert_eq!(shadowed.header("x-strata-shadow"), Some("two"));
    assert_eq!(shadowed.json()["choices"], alone.json()["choices"]);
    assert_eq!(shadowed.json()["usage"]["completion_tokens"], 8);
    // A lane that still runs a shadow has no room for another one.
    wait_for_shadows(&server, "two", 1);
    let stream = post(&server, CHAT, &chat("Hello", &json!({"stream": true})));
    assert_eq!(stream.header("x-strata-shadow"), Some("two"));
    wait_for_shadows(&server, "two", 2);
    let text = json!({"prompt": "int main() {", "intent": "debug", "max_tokens": 4});
    assert_eq!(post(&server, COMPLETIONS, &text).header("x-strata-shadow"), Some("two"));
    wait_for_shadows(&server, "two", 3);
    // Each of these has a reason against a shadow; the last one is not routed.
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let ids = json!({"prompt": [1, 2, 3], "intent": "debug", "max_tokens": 4});
    for (path, body, reason) in [
        (CHAT, chat("Hello", &json!({"tools": tool})), "tools"),
        (CHAT, chat("Hello", &json!({"n": 2})), "several_choices"),
        (CHAT, chat("Hello", &json!({"guided_regex": "[a-z]"})), "guided"),
        (COMPLETIONS, ids, "unsuitable"),
        (CHAT, chat("Hello", &json!({"specialist": "one"})), ""),
    ] {
        let response = post(&server, path, &body);
        assert_eq!((response.status, response.header("x-strata-shadow")), (200, None), "{body}");
        let label = format!("reason=\"{reason}\"");
        let skipped = metric(&server, &["strata:shadows_skipped_total{", &label]);
        assert_eq!(skipped, u64::from(!reason.is_empty()), "{reason}");
    }
    let two = "model_name=\"two\"";
    assert_eq!(metric(&server, &["strata:shadows_total{", "\"two\"", "\"low_score\""]), 3);
    assert_eq!(metric(&server, &["strata:routes_total{", two, "declared_intent"]), 0);
    for family in [
        "vllm:request_success_total{",
        "vllm:generation_tokens_total{",
        "vllm:prompt_tokens_total{",
        "vllm:time_to_first_token_seconds_count{",
        "vllm:e2e_request_latency_seconds_count{",
        "vllm:prefix_cache_queries_total{",
        "vllm:request_params_n_count{",
        "strata:quotes{",
    ] {
        assert_eq!(metric(&server, &[family, two]), 0, "{family} counts clients' requests");
    }
    assert!(metric(&server, &["strata:steps_total{", two]) > 0, "the shadows ran");
    let slo = server.with_key("/strata/slo", None).json();
    assert_eq!(
        (&slo[1]["ttft_ms"]["count"], &slo[1]["preempted_once"]["total"]),
        (&json!(0), &json!(0))
    );
    end(server);
    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shadows: Vec<&Value> =
        lines.iter().filter(|line| line["path"] == CHAT).map(|line| &line["shadow"]).collect();
    assert_eq!(shadows[..3], [&Value::Null, &json!("two"), &json!("two")]);
}

#[test]
fn escalation_ends_shadows_also_those_that_a_client_asks_for() {
    let server = served(ONLY_DEMOTED, "tiny-llama", &[]);
    let shadow = || {
        let response = post(&server, CHAT, &chat("Hello", &json!({"high_stakes": true})));
        response.header("x-strata-shadow").map(str::to_owned)
    };
    assert_eq!(shadow().as_deref(), Some("two"));
    change(&server, &json!({"escalation_level": 2}));
    assert_eq!(shadow(), None);
    assert_eq!(metric(&server, &["strata:shadows_skipped_total{", "\"escalation\""]), 1);
    assert_eq!(metric(&server, &["strata:shadows_total{", "\"two\"", "\"high_stakes\""]), 1);
}

#[test]
fn a_demoted_lane_gets_verdicts_from_shadows_of_what_its_fallback_serves() {
    // Both specialists are the same model, and greedy: their responses agree.
    let server = served(ONLY_DEMOTED, "tiny-llama", &[]);
    change(&server, &json!({"lane": "one", "breaker": "open"}));
    for count in 1..=3 {
        let response = post(&server, CHAT, &chat("Hello", &json!({"temperature": 0})));
        assert_eq!(response.header("x-strata-specialist"), Some("two"));
        assert_eq!(response.header("x-strata-shadow"), Some("one"));
        wait_for_shadows(&server, "one", count);
    }
    let state = lanes(&server);
    let breaker = |at: usize| state["lanes"][at]["breaker"].clone();
    assert_eq!((&breaker(0)["samples"], &breaker(0)["pass_rate"]), (&json!(3), &json!(1.0)));
    assert_eq!(breaker(1)["samples"], 0, "a lane that serves is judged by its own responses");
    assert_eq!(metric(&server, &["strata:shadows_total{", "\"one\"", "\"demoted\""]), 3);
}

#[test]
fn the_calibration_stream_has_a_record_of_each_routed_request_that_tune_reads() {
    let directory = TempDir::new().unwrap();
    let stream = directory.path().join("stream");
    let keep = ["--calibration-dir", stream.to_str().unwrap()];
    let ask = |server: &Served, text: &str, more: &Value| {
        assert_eq!(post(server, CHAT, &chat(text, more)).status, 200);
    };
    let server = served(ONLY_DEMOTED, "tiny-llama", &keep);
    change(&server, &json!({"lane": "one", "shadow_below": 1.0}));
    ask(&server, "A secret text", &json!({"temperature": 0}));
    wait_for_shadows(&server, "two", 1);
    change(&server, &json!({"lane": "one", "shadow_below": 0.0}));
    ask(&server, "Another text", &json!({}));
    ask(&server, "Not routed", &json!({"specialist": "two"}));
    let written = ["strata:calibration_records_total{", "\"written\""];
    wait(|| metric(&server, &written) == 2);
    end(server);
    let server = served(ONLY_DEMOTED, "tiny-llama", &[&keep[..], &["--store-prompts"]].concat());
    ask(&server, "A secret text", &json!({"temperature": 0}));
    end(server);
    let records = records(&stream);
    let [first, second, third] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(first["primary"]["lane"], "one");
    assert_eq!(first["primary"]["output_tokens"], 8);
    assert!(first["primary"]["ttft_ms"].as_f64() <= first["primary"]["total_ms"].as_f64());
    assert_eq!(first["shadow"]["lane"], "two");
    assert_eq!(first["shadow"]["reason"], "low_score");
    assert_eq!(first["shadow"]["agreement"]["exact"], true);
    assert_eq!((&first["decided_by"], &first["intent"]), (&json!("intent"), &json!("debug")));
    assert!((0.0..1.0).contains(&first["score"].as_f64().unwrap()));
    assert_eq!(first["scores"][1][0], "two");
    assert_eq!((&second["shadow"], &second["prompt"]), (&Value::Null, &Value::Null));
    assert_eq!((&first["prompt"], &third["prompt"]), (&Value::Null, &json!("A secret text")));
    assert_eq!(first["digest"], third["digest"], "the directory keeps the salt");
    assert_ne!(first["digest"], second["digest"]);
    let tuned = command().args(["router", "tune", "--json"]).arg(&stream).output().unwrap();
    assert!(tuned.status.success(), "{}", String::from_utf8_lossy(&tuned.stderr));
    let report: Value = serde_json::from_slice(&tuned.stdout).unwrap();
    assert_eq!(
        (&report["lines"]["records"], &report["lines"]["malformed"]),
        (&json!(3), &json!(0))
    );
    assert_eq!(report["intents"]["debug"]["records"], 3);
}

/// All records of a stream.
fn records(directory: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(directory.join("calibration-00000001.jsonl")).unwrap();
    // A process begins on a line of its own.
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn prompts_are_stored_only_in_a_stream_and_a_stream_only_of_an_ensemble() {
    let directory = TempDir::new().unwrap();
    let stream = directory.path().to_str().unwrap();
    for args in [
        &["--ensemble", "demo", "--store-prompts"][..],
        &["--model", "x", "--calibration-dir", stream],
    ] {
        let output = command().arg("serve").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_lane_is_fresh_until_it_has_its_verdicts_also_over_a_restart() {
    let directory = TempDir::new().unwrap();
    let state = directory.path().join("state");
    let stream = directory.path().join("stream");
    let keep =
        ["--state-dir", state.to_str().unwrap(), "--calibration-dir", stream.to_str().unwrap()];
    let head =
        "[shadow]\nfresh_fraction = 1.0\nfresh_samples = 2\n[intents.debug]\nshadow_below = 0.0";
    let server = served(head, "tiny-llama", &keep);
    let ask = |server: &Served, text: &str| {
        post(server, CHAT, &chat(text, &json!({}))).header("x-strata-shadow").map(str::to_owned)
    };
    let freshness = |server: &Served| {
        let state = lanes(server);
        let of = |at: usize| state["lanes"][at]["freshness"].clone();
        let verdicts = |at| (of(at)["verdicts"].as_u64().unwrap(), of(at)["fresh"] == true);
        (verdicts(0), verdicts(1))
    };
    assert_eq!(freshness(&server), ((0, true), (0, true)));
    assert_eq!(ask(&server, "One").as_deref(), Some("two"));
    wait(|| freshness(&server) == ((1, true), (1, true)));
    end(server);
    let server = served(head, "tiny-llama", &keep);
    assert_eq!(freshness(&server), ((1, true), (1, true)), "the same version goes on");
    assert_eq!(ask(&server, "Two").as_deref(), Some("two"));
    wait(|| freshness(&server) == ((2, false), (2, false)));
    assert_eq!(ask(&server, "Three"), None, "both have their verdicts");
    end(server);
    let server = served(head, "tiny-qwen3", &keep);
    assert_eq!(freshness(&server), ((2, false), (0, true)), "another model");
    end(server);
    let server = served(&head.replace("= 0.0", "= 0.1"), "tiny-qwen3", &keep);
    assert_eq!(freshness(&server), ((0, true), (0, true)), "other thresholds");
    end(server);
}
