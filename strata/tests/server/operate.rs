//! What an operator of `strata serve --ensemble` sees: refusals, changes of lanes, and what is left of them.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::served::{Response, Served, fixture};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A server of two tiny models, of which `one` falls back to `two`, with these lines at the head of its file.
fn served(head: &str, args: &[&str], stderr: Stdio) -> Served {
    let (llama, qwen) = (fixture("tiny-llama"), fixture("tiny-qwen3"));
    let text = format!(
        r#"
        name = "pair"
        kv_memory = "64MiB"
        {head}
        [router]
        classifier = "off"
        [[specialist]]
        name = "one"
        model = {llama:?}
        intents = ["debug"]
        fallback = "two"
        system_prompt = "You find errors."
        [[specialist]]
        name = "two"
        model = {qwen:?}
        "#
    );
    let template = crate::chat::template("thinks-and-calls");
    Served::ensemble(&text, |command| {
        // --quiet leaves warnings, and these tests read what is logged of changes.
        command.env("RUST_LOG", "strata=info");
        command.args(["--api-key", "secret", "--chat-template", &template]).args(args);
        command.stderr(stderr);
    })
}

fn post(server: &Served, path: &str, body: Value) -> Response {
    server.with_key(path, Some(&body))
}

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn end(server: &mut Served) {
    server.signal("TERM");
    assert!(server.ended(Duration::from_secs(60)).success());
}

#[test]
fn a_refusal_has_its_quote_its_route_and_its_code_in_the_access_log() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("access.jsonl");
    let args = ["--access-log", log.to_str().unwrap()];
    let mut server = served("", &args, Stdio::inherit());
    // Before rates are measured there is no quote.
    assert_eq!(
        post(&server, "/strata/lanes", json!({"lane": "one", "priority_floor": 0})).status,
        200
    );
    let urgent = |priority: i64| {
        let body =
            json!({"intent": "debug", "max_tokens": 100, "ignore_eos": true, "priority": priority});
        post(&server, CHAT, chat(body))
    };
    let refused = urgent(5).value()["error"].clone();
    assert_eq!((&refused["code"], refused.get("quote")), (&json!("priority_floor"), None));
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("at most 0") && message.contains("this one has 5"), "{message}");
    assert_eq!(urgent(0).status, 200);
    let late = json!({"intent": "debug", "max_tokens": 100, "ignore_eos": true, "deadline_ms": 3});
    let refused = post(&server, CHAT, chat(late));
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.header("x-strata-specialist"), Some("one"));
    assert!(refused.header("x-strata-route").unwrap().contains("intent debug"));
    let error = refused.value()["error"].clone();
    assert_eq!(error["code"], "deadline_unreachable");
    let quote = |field: &str| error["quote"][field].as_u64().unwrap();
    assert!(quote("queue") <= quote("first_token") && quote("first_token") <= quote("done"));
    assert!(quote("done") <= quote("done_late") && quote("alone") <= quote("done"), "{error}");
    // A hundred tokens take longer than three milliseconds.
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("even without other requests"), "{message}");
    end(&mut server);
    let log = std::fs::read_to_string(log).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let codes: Vec<Value> =
        lines.filter(|line| line["path"] == CHAT).map(|line| line["code"].clone()).collect();
    assert_eq!(codes, [json!("priority_floor"), Value::Null, json!("deadline_unreachable")]);
}

#[test]
fn a_demoted_lane_whose_fallback_is_demoted_says_that_it_serves() {
    let mut server = served("fallback = \"two\"", &[], Stdio::piped());
    let mut log = BufReader::new(server.stderr()).lines().map(|line| line.unwrap());
    let route = |server: &Served| {
        let response = post(server, CHAT, chat(json!({"intent": "debug"})));
        let header = |name| response.header(name).unwrap().to_owned();
        (header("x-strata-specialist"), header("x-strata-route"))
    };
    let change = |server: &Served, lane: &str, breaker: &str| {
        let state = post(server, "/strata/lanes", json!({"lane": lane, "breaker": breaker})).json();
        let lanes = state["lanes"].as_array().unwrap().clone();
        let own = lanes.iter().find(|own| own["lane"] == lane).unwrap();
        (own["breaker"]["mode"].clone(), own["breaker"]["state"].clone())
    };
    let why = route(&server).1;
    assert!(why.contains("intent debug"), "{why}");
    assert_eq!(change(&server, "one", "open"), (json!("open"), json!("open")));
    let demoted = log.find(|line| line.contains("lane one: breaker auto -> open")).unwrap();
    assert!(demoted.contains("WARN") && demoted.contains("POST /strata/lanes"), "{demoted}");
    assert_eq!(route(&server).0, "two");
    change(&server, "two", "open");
    let serves = log.find(|line| line.contains("lane one is demoted and goes on serving")).unwrap();
    assert!(serves.contains("WARN"), "{serves}");
    let (name, why) = route(&server);
    assert_eq!(name, "one");
    assert!(why.starts_with("one is demoted and has no fallback that can serve; "), "{why}");
    assert_eq!(change(&server, "two", "close"), (json!("closed"), json!("closed")));
    log.find(|line| line.contains("lane one no longer serves")).unwrap();
    assert_eq!(route(&server).0, "two");
    let nothing = post(&server, CHAT, chat(json!({})));
    let why = nothing.header("x-strata-route").unwrap();
    assert!(why.starts_with("fallback of the ensemble: no rule decided"), "{why}");
    end(&mut server);
    let rest: Vec<String> = log.collect();
    assert!(!rest.iter().any(|line| line.contains("goes on serving")), "once per change: {rest:?}");
}

#[test]
fn what_an_operator_set_survives_a_restart_with_a_state_directory() {
    let directory = TempDir::new().unwrap();
    let keep = ["--state-dir", directory.path().to_str().unwrap()];
    let mut server = served("", &keep, Stdio::inherit());
    let change =
        json!({"lane": "one", "breaker": "open", "shadow_below": 0.25, "priority_floor": 7});
    post(&server, "/strata/lanes", change).json();
    let before = post(&server, "/strata/lanes", json!({"escalation_level": 1})).json();
    // It is written with the change, and not at the end of the process.
    server.signal("KILL");
    server.ended(Duration::from_secs(60));
    let file = directory.path().join("overrides.json");
    let stored: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let with_gone = json!({"lane": "gone", "breaker": "open"});
    let mut more = stored.clone();
    more["lanes"].as_array_mut().unwrap().push(with_gone);
    std::fs::write(&file, more.to_string()).unwrap();
    let mut server = served("", &keep, Stdio::piped());
    let mut log = BufReader::new(server.stderr()).lines().map(|line| line.unwrap());
    let after = server.with_key("/strata/lanes", None).json();
    assert_eq!(after["escalation"], before["escalation"]);
    for field in ["/breaker/mode", "/breaker/state", "/role", "/overrides"] {
        let of = |state: &Value| state["lanes"][0].pointer(field).cloned().unwrap();
        assert_eq!(of(&after), of(&before), "{field}");
    }
    let gone = log.find(|line| line.contains("`gone`")).unwrap();
    assert!(gone.contains("WARN") && gone.contains("no such lane"), "{gone}");
    post(&server, "/strata/lanes", json!({"escalation_level": null})).json();
    let now: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((&now["escalation_level"], &now["lanes"]), (&Value::Null, &stored["lanes"]));
    end(&mut server);
}

#[test]
fn a_chat_is_tokenized_with_the_system_prompt_of_its_specialist() {
    let server = served("", &[], Stdio::inherit());
    let messages = json!([{"role": "user", "content": "Hello"}]);
    for name in ["one", "two"] {
        let body = json!({"model": name, "messages": messages});
        let count = post(&server, "/tokenize", body.clone()).json()["count"].clone();
        let served = post(&server, CHAT, chat(body)).json();
        assert_eq!(served["usage"]["prompt_tokens"], count, "{name}");
    }
}

#[test]
fn a_snapshot_names_the_lane_that_it_is_of() {
    let server = served("", &[], Stdio::inherit());
    let get = |query: &str| server.with_key(&format!("/strata/state{query}"), None);
    for (query, name) in [("", "one"), ("?model=pair", "one"), ("?model=two", "two")] {
        let state = get(query).json();
        assert_eq!(
            (&state["model"], &state["specialists"]),
            (&json!(name), &json!(["one", "two"]))
        );
    }
    let unknown = get("?model=three");
    assert_eq!(
        (unknown.status, &unknown.value()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[test]
fn only_who_has_a_key_can_reload_and_is_told_so_in_words_of_its_own() {
    let text = "name = \"e\"\nkv_memory = \"32MiB\"\n[[specialist]]\nname = \"one\"\n";
    let model = fixture("tiny-llama");
    let server = Served::ensemble(&format!("{text}model = {model:?}\n"), |_| {});
    for (path, body, what) in [
        ("/strata/reload", json!({}), "The configuration can only be loaded again"),
        ("/strata/lanes", json!({"lane": "one", "breaker": "open"}), "Lanes can only be changed"),
    ] {
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 403, "{}", refused.text());
        let message = refused.value()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(what), "{message}");
    }
    let done = server.post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 1}));
    assert_eq!(done.status, 422, "{}", done.text());
    assert_eq!(done.header("x-strata-specialist"), None, "it was routed to none");
}

#[test]
fn the_fallback_of_the_ensemble_says_that_no_lane_was_sure_enough() {
    let model = fixture("tiny-llama");
    let specialist = |name: &str, class: &str| {
        format!("[[specialist]]\nname = \"{name}\"\nmodel = {model:?}\nclasses = [\"{class}\"]\n")
    };
    let text = format!(
        "name = \"e\"\nkv_memory = \"32MiB\"\nfallback = \"two\"\n[router]\nmin_score = 1.0\n{}{}",
        specialist("one", "debug"),
        specialist("two", "stl")
    );
    let server = Served::ensemble(&text, |_| {});
    let response = server.post(COMPLETIONS, &json!({"prompt": "Hello", "max_tokens": 1}));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("x-strata-specialist"), Some("two"));
    let why = response.header("x-strata-route").unwrap();
    let begins = "fallback of the ensemble: no lane is sure enough (best: ";
    assert!(why.starts_with(begins) && why.contains(" with probability 0."), "{why}");
}
