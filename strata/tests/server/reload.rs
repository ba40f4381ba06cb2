//! The ensemble of a running server: its page, and its configuration, which is loaded again.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::served::{Served, command, fixture};
use crate::wire::until;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A server whose ensemble file can be written again, with the key `secret`.
struct Reloadable {
    server: Served,
    file: PathBuf,
    _directory: TempDir,
}

/// An ensemble of two tiny models: lines for its head, and for each specialist.
fn text([head, one, two]: [&str; 3]) -> String {
    let (llama, qwen) = (fixture("tiny-llama"), fixture("tiny-qwen3"));
    format!(
        r#"
        name = "pair"
        kv_memory = "64MiB"
        {head}
        [[specialist]]
        name = "one"
        model = {llama:?}
        {one}
        [[specialist]]
        name = "two"
        model = {qwen:?}
        decoding_policy = "greedy"
        {two}
        "#
    )
}

const OFF: &str = "[router]\nclassifier = \"off\"";
/// Its last line follows the fields of the head, so tables are at its end.
const FIRST: [&str; 3] = ["fallback = \"one\"", "description = \"the first\"", OFF];

impl Reloadable {
    fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("ensemble.toml");
        std::fs::write(&file, text(FIRST)).unwrap();
        let template = crate::chat::template("thinks-and-calls");
        let mut command = command();
        command.args(["--quiet", "serve", "--port", "0", "--api-key", "secret"]);
        command.args(["--chat-template", &template, "--ensemble"]).arg(&file);
        command.stderr(Stdio::piped());
        Self { server: Served::run(command), file, _directory: directory }
    }

    fn write(&self, parts: [&str; 3]) {
        std::fs::write(&self.file, text(parts)).unwrap();
    }

    fn get(&self, path: &str) -> Value {
        self.server.with_key(path, None).value()
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.server.with_key(path, Some(body));
        (response.status, response.value())
    }

    fn reload(&self) -> (u16, Value) {
        self.post("/strata/reload", &json!({}))
    }

    fn version(&self) -> u64 {
        self.get("/strata/lanes")["config"]["version"].as_u64().unwrap()
    }

    fn hang_up(&self, version: u64) {
        self.server.signal("HUP");
        let began = Instant::now();
        while self.version() != version {
            assert!(began.elapsed() < Duration::from_secs(60), "version {version} is not loaded");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The specialist and the route of a chat that no rule fits.
    fn routed(&self, more: Value) -> (String, String) {
        let mut body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response = self.server.with_key(CHAT, Some(&body));
        let header = |name| response.header(name).unwrap().to_owned();
        (header("x-strata-specialist"), header("x-strata-route"))
    }

    /// Value of a metric with these labels.
    fn metric(&self, parts: &[&str]) -> f64 {
        let text = self.server.get("/metrics");
        let has = |line: &&str| parts.iter().all(|part| line.contains(part));
        let line = text.text().lines().filter(|line| !line.starts_with('#')).find(has);
        let line = line.unwrap_or_else(|| panic!("there is no {parts:?}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

/// The text of a stream of a completion, which must have its end.
fn text_of(stream: &str) -> String {
    assert!(stream.ends_with("data: [DONE]\n\n"), "the stream was cut off: {stream}");
    let events = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: {"));
    let events: Vec<Value> =
        events.map(|event| serde_json::from_str(&format!("{{{event}")).unwrap()).collect();
    let choices = || events.iter().filter_map(|event| event["choices"].get(0));
    assert_eq!(choices().filter(|choice| choice["finish_reason"] == "length").count(), 1);
    choices().filter_map(|choice| choice["text"].as_str()).collect()
}

#[test]
fn sighup_loads_the_file_again_and_loses_no_stream() {
    let own = Reloadable::start();
    let ask = |specialist: &str| {
        let body = json!({"prompt": "int main() {", "max_tokens": 200, "ignore_eos": true, "seed": 1,
            "temperature": 0.8, "stream": true, "specialist": specialist});
        let response = own.server.with_key(COMPLETIONS, Some(&body));
        assert_eq!(response.status, 200);
        text_of(response.text())
    };
    let expected = ["one", "two"].map(ask);
    let version = std::thread::scope(|scope| {
        let stream = |at: usize| scope.spawn(move || ask(["one", "two"][at % 2]));
        let streams: Vec<_> = (0..8).map(stream).collect();
        let mut version = 1;
        // From before the first token to after the last one.
        while version < 4 || !streams.iter().all(|stream| stream.is_finished()) {
            version += 1;
            let prompt = format!("system_prompt = \"{version}\"\n{OFF}");
            own.write(["fallback = \"two\"", "", &prompt]);
            own.hang_up(version);
        }
        for (at, stream) in streams.into_iter().enumerate() {
            assert_eq!(stream.join().unwrap(), expected[at % 2], "stream {at}");
        }
        version
    });
    let ended = |name: &str| {
        let labels = ["vllm:request_success_total{", "finished_reason=\"length\"", name];
        own.metric(&labels)
    };
    // A client has its response before the step that ended it is counted.
    until("the responses are counted", || (ended("\"one\""), ended("\"two\"")) == (5.0, 5.0));
    assert_eq!(own.metric(&["strata:config_reloads_total{", "\"applied\""]), version as f64 - 1.0);
    assert_eq!(own.metric(&["strata:config_version"]), version as f64);
    assert_eq!(own.routed(json!({})).0, "two", "the fallback of the last version");
}

#[test]
fn an_invalid_file_changes_nothing_and_every_error_is_named() {
    let mut own = Reloadable::start();
    let before = own.get("/strata/lanes");
    own.write([
        "fallback = \"three\"\ncolour = 1",
        "fallback = \"four\"",
        "[breaker]\nmin_samples = 0",
    ]);
    let (status, refused) = own.reload();
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("invalid_configuration")));
    let problems: Vec<&str> =
        refused["problems"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert_eq!(problems.len(), 4, "{problems:?}");
    for part in ["`fallback`", "`colour`", "`specialist.one.fallback`", "min_samples"] {
        assert!(problems.iter().any(|problem| problem.contains(part)), "{part}: {problems:?}");
    }
    own.server.signal("HUP");
    let mut log = BufReader::new(own.server.stderr()).lines();
    let logged = |lines: &mut dyn Iterator<Item = std::io::Result<String>>, part: &str| {
        lines.map(Result::unwrap).any(|line| line.contains(part))
    };
    assert!(logged(&mut log, "SIGHUP: the configuration of the ensemble has not changed"));
    assert!(logged(&mut log, "min_samples"), "each error is in the log");
    std::fs::remove_file(&own.file).unwrap();
    let (status, refused) = own.reload();
    assert_eq!(status, 400, "{refused}");
    assert_eq!(own.get("/strata/lanes"), before);
    assert_eq!(own.routed(json!({})).0, "one", "the fallback is what it was");
    assert_eq!(own.metric(&["strata:config_reloads_total{", "\"invalid\""]), 2.0);
    assert_eq!(own.metric(&["strata:config_reloads_total{", "\"unreadable\""]), 1.0);
    assert_eq!(own.metric(&["strata:config_reloads_total{", "\"applied\""]), 0.0);
}

#[test]
fn a_classifier_is_looked_for_beside_the_file_also_when_it_is_read_again() {
    let own = Reloadable::start();
    own.write(["fallback = \"one\"", "", "[router]\nclassifier = \"own.bin\""]);
    let (status, refused) = own.reload();
    assert_eq!(status, 400, "it is not there yet: {refused}");
    let classifier = own.file.with_file_name("own.bin");
    let mut train = command();
    train.args(["router", "train", "--bits", "10", "--epochs", "1", "--out"]).arg(classifier);
    assert!(train.arg(fixture("router/sample.jsonl")).output().unwrap().status.success());
    let (status, applied) = own.reload();
    assert_eq!(status, 200, "{applied}");
}

#[test]
fn a_change_that_needs_other_engines_is_refused_as_a_whole() {
    let own = Reloadable::start();
    let more = format!("block_size = 32\n{OFF}\n[[specialist]]\nname = \"three\"\nmodel = \"x\"");
    own.write(["fallback = \"two\"", "replicas = 2\nmax_num_seqs = 3", &more]);
    let (status, refused) = own.reload();
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("needs_restart")), "{refused}");
    let problems: Vec<&str> =
        refused["problems"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert_eq!(
        problems,
        [
            "`specialist.three` is added",
            "`specialist.one.replicas` changes from 1 to 2",
            "`specialist.one.max_num_seqs` changes from the default to 3",
            "`specialist.two.block_size` changes from 16 to 32",
        ]
    );
    assert_eq!((own.routed(json!({})).0.as_str(), own.version()), ("one", 1), "nothing changed");
}

#[test]
fn what_no_engine_depends_on_takes_effect_and_what_an_operator_set_stays() {
    let own = Reloadable::start();
    assert_eq!(own.routed(json!({"intent": "debug"})).0, "one", "no specialist has the intent");
    let change = json!({"lane": "two", "breaker": "close", "priority_floor": 3});
    assert_eq!(own.post("/strata/lanes", &change).0, 200);
    let tokens = |own: &Reloadable| {
        let body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2,
                          "specialist": "one"});
        let (status, response) = own.post(CHAT, &body);
        assert_eq!(status, 200, "{response}");
        response["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let without = tokens(&own);
    let version = || own.get("/strata/lanes")["lanes"][1]["freshness"]["version"].clone();
    let before = version();
    let two = format!(
        "intents = [\"debug\"]\nslo = {{ ttft = \"250ms\" }}\n{OFF}\n[breaker]\nmin_samples = 7\n\
         [[escalation.levels]]\nshadow_scale = 0.5"
    );
    let one = "description = \"changed\"\nsystem_prompt = \"You are brief and exact.\"";
    own.write(["fallback = \"two\"", one, &two]);
    let (status, loaded) = own.reload();
    assert_eq!((status, &loaded["config"]["version"]), (200, &json!(2)), "{loaded}");
    let (specialist, why) = own.routed(json!({"intent": "debug"}));
    assert!(specialist == "two" && why.contains("intent debug"), "{specialist}: {why}");
    assert_eq!(own.routed(json!({})).0, "two", "the new fallback");
    assert!(tokens(&own) > without, "the new system prompt");
    let lanes = own.get("/strata/lanes");
    assert_eq!(lanes["lanes"][1]["overrides"]["priority_floor"], 3);
    assert_eq!(lanes["lanes"][1]["breaker"]["mode"], "closed");
    assert_eq!(lanes["lanes"][1]["breaker"]["config"]["min_samples"], 7);
    assert_eq!(lanes["escalation"]["max_level"], 1);
    let after = version();
    assert_eq!(after["model"], before["model"]);
    assert_ne!(
        after["thresholds"], before["thresholds"],
        "lanes that are chosen otherwise are fresh"
    );
    let slo = own.get("/strata/slo");
    assert_eq!(slo[1]["objectives"]["ttft"]["target"], 250.0);
    assert!(slo[1]["ttft_ms"]["count"].as_u64().unwrap() > 0, "what was measured stays");
    let view = own.get("/strata/ensemble");
    assert_eq!(view["lanes"][0]["description"], "changed");
}

#[test]
fn only_who_has_a_key_can_load_a_configuration() {
    let own = Reloadable::start();
    assert_eq!(own.server.post("/strata/reload", &json!({})).status, 401);
    let open = crate::ensemble::served("", &[]);
    let refused = open.post("/strata/reload", &json!({}));
    assert_eq!((refused.status, &refused.value()["error"]["code"]), (403, &json!("no_api_keys")));
    let single = Served::start("tiny-llama", [""; 0]);
    assert_eq!(single.get("/strata/ensemble").value()["error"]["code"], "no_ensemble");
}

#[test]
fn the_page_of_lanes_has_what_it_shows_and_no_text_of_a_request() {
    let own = Reloadable::start();
    let secret = "the words of a client";
    let body = json!({"messages": [{"role": "user", "content": secret}], "max_tokens": 3});
    assert_eq!(own.post(CHAT, &body).0, 200);
    let named = json!({"prompt": secret, "max_tokens": 3, "specialist": "two", "ignore_eos": true});
    assert_eq!(own.post(COMPLETIONS, &named).0, 200);
    assert_eq!(own.post(COMPLETIONS, &json!({"prompt": "x", "specialist": "three"})).0, 400);
    let view = own.get("/strata/ensemble");
    assert!(!view.to_string().contains(secret), "{view}");
    assert_eq!((&view["ensemble"], &view["fallback"]), (&json!("pair"), &json!("one")));
    let [one, two] = view["lanes"].as_array().unwrap().as_slice() else { panic!("{view}") };
    assert_eq!((&one["lane"], &one["description"]), (&json!("one"), &json!("the first")));
    assert_eq!((&two["replicas"], &two["engines"]), (&json!(1), &json!(1)));
    assert_eq!((&one["routes"]["unrouted"], &one["routes"]["specialist"]), (&json!(1), &json!(0)));
    assert_eq!((&two["routes"]["unrouted"], &two["routes"]["specialist"]), (&json!(0), &json!(1)));
    assert_eq!(two["breaker"]["state"], "closed");
    assert_eq!(two["slo"]["ttft_ms"]["count"], 1);
    assert!((0.0..=1.0).contains(&two["kv_usage"].as_f64().unwrap()));
    let recent = view["recent"].as_array().unwrap();
    assert_eq!(recent.len(), 2, "a request that was not routed is none of them: {view}");
    assert_eq!((&recent[0]["specialist"], &recent[0]["status"]), (&json!("two"), &json!(200)));
    assert_eq!(recent[0]["why"], "the client named the specialist");
    assert_eq!(recent[0]["completion_tokens"], 3);
    assert_eq!(recent[1]["specialist"], "one");
    assert!(recent[1]["why"].as_str().unwrap().contains("no rule"), "{view}");
}

#[test]
fn breakers_and_escalation_are_in_the_metrics() {
    let own = Reloadable::start();
    let state = |lane: &str, state: &str| {
        own.metric(&["strata:breaker_state{", &format!("\"{lane}\""), &format!("\"{state}\"")])
    };
    assert_eq!((state("one", "closed"), state("one", "open")), (1.0, 0.0));
    own.post("/strata/lanes", &json!({"lane": "one", "breaker": "open"}));
    own.post("/strata/lanes", &json!({"escalation_level": 2}));
    assert_eq!((state("one", "closed"), state("one", "open")), (0.0, 1.0));
    assert_eq!((state("two", "closed"), state("two", "open")), (1.0, 0.0));
    assert_eq!(own.metric(&["strata:escalation_level"]), 2.0);
}
