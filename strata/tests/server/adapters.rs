//! LoRA adapters: their names as models, loads and unloads while requests run, and adapters that cannot be used.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::completions::texts;
use crate::served::{Response, Served, command, fixture};
use crate::wire::{Wire, head, until};

const COMPLETIONS: &str = "/v1/completions";
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

pub fn adapter(name: &str) -> PathBuf {
    fixture("adapters").join(format!("tiny-llama-{name}"))
}

pub fn serve(args: &[&str]) -> Served {
    Served::start("tiny-llama", args)
}

pub fn load(server: &Served, name: &str, path: &Path, load_inplace: bool) -> Response {
    let body = json!({"lora_name": name, "lora_path": path, "load_inplace": load_inplace});
    server.post(LOAD, &body)
}

fn unload(server: &Served, name: &str) -> Response {
    server.post(UNLOAD, &json!({"lora_name": name}))
}

pub fn prompt(model: &str) -> Value {
    json!({
        "model": model, "prompt": "Once upon a time there was a king who", "max_tokens": 24, "ignore_eos": true,
        "temperature": 0, "top_k": -1, "top_p": 1, "repetition_penalty": 1
    })
}

/// The text that a model gives, and the number of its prompt tokens that were cached.
#[track_caller]
pub fn generated(server: &Served, model: &str) -> (String, u64) {
    let response = server.post(COMPLETIONS, &prompt(model));
    let body = response.json();
    assert_eq!(body["model"], model);
    assert_eq!(response.header("x-strata-model"), Some(model));
    let cached = response.header("x-strata-cached-tokens").unwrap().parse().unwrap();
    (texts(&body).remove(0), cached)
}

#[track_caller]
pub fn refused(response: &Response, status: u16, code: Value) -> String {
    assert_eq!(response.status, status, "{}", response.text());
    let error = &response.value()["error"];
    assert_eq!(error["code"], code, "{error}");
    error["message"].as_str().unwrap().to_owned()
}

/// A copy of an adapter's files, which can be changed.
pub fn copy(of: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(of, dir.path());
    dir
}

pub fn put(of: &str, dir: &Path) {
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(adapter(of).join(file), dir.join(file)).unwrap();
    }
}

#[test]
fn an_adapter_is_loaded_listed_used_and_unloaded_as_in_vllm() {
    let server = serve(&["--enable-lora"]);
    let (base, _) = generated(&server, "tiny");
    refused(&server.post(COMPLETIONS, &prompt("sql")), 404, "model_not_found".into());
    let path = adapter("all");
    let loaded = load(&server, "sql", &path, false);
    assert_eq!(loaded.status, 200, "{}", loaded.text());
    assert_eq!(loaded.text(), "Success: LoRA adapter 'sql' added successfully.");
    assert!(loaded.header("content-type").unwrap().starts_with("text/plain"));
    let unknown = refused(&server.post(COMPLETIONS, &prompt("x")), 404, "model_not_found".into());
    assert!(unknown.ends_with("serves `tiny`, and the LoRA adapters `sql`."), "{unknown}");
    let (own, _) = generated(&server, "sql");
    assert_ne!(own, base);
    assert_eq!(generated(&server, "tiny").0, base, "requests without the adapter");

    let models = server.get("/v1/models").json();
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|own| &own["id"]).collect();
    assert_eq!(ids, ["tiny", "sql"]);
    let card = &models["data"][1];
    assert_eq!((&card["parent"], &card["root"]), (&json!("tiny"), &json!(path)));
    assert_eq!(models["data"][0].get("parent"), None);
    assert_eq!(server.get("/v1/models/sql").json(), *card);

    let message = json!([{"role": "user", "content": "Hello"}]);
    let mut chat = json!({"model": "sql", "messages": message, "max_tokens": 4, "stream": true});
    // The tiny model has no chat template of its own.
    chat["temperature"] = 0.into();
    let chatted = server.post("/v1/chat/completions", &chat);
    if chatted.status == 200 {
        assert!(chatted.events().iter().all(|event| event["model"] == "sql"));
    }
    let again = load(&server, "sql", &path, false);
    let message = refused(&again, 400, "adapter_already_loaded".into());
    assert!(message.contains("load_inplace"), "{message}");

    let unloaded = unload(&server, "sql");
    assert_eq!(unloaded.status, 200, "{}", unloaded.text());
    assert_eq!(unloaded.text(), "Success: LoRA adapter 'sql' removed successfully.");
    refused(&server.post(COMPLETIONS, &prompt("sql")), 404, "model_not_found".into());
    refused(&server.get("/v1/models/sql"), 404, "model_not_found".into());
    refused(&unload(&server, "sql"), 404, "adapter_not_found".into());
    assert_eq!(server.get("/v1/models").json()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn adapters_of_the_command_line_are_there_at_the_start_and_chats_use_them() {
    let attention = fixture("adapters/tiny-qwen2-attention");
    let own = format!("a={}", attention.display());
    let json = json!({"name": "b", "path": attention, "base_model_name": "tiny"}).to_string();
    let server = Served::start("tiny-qwen2", ["--lora-modules", &own, &json]);
    let chat = |model: &str| {
        let message = json!([{"role": "user", "content": "Hello"}]);
        let body = json!({"model": model, "messages": message, "max_tokens": 16, "temperature": 0,
            "top_k": -1, "ignore_eos": true});
        let response = server.post("/v1/chat/completions", &body).json();
        assert_eq!(response["model"], model);
        response["choices"][0]["message"]["content"].clone()
    };
    assert_ne!(chat("a"), chat("tiny"));
    assert_eq!(chat("a"), chat("b"), "the same weights under two names");
    let tokenize = json!({"model": "a", "prompt": "Hello"});
    let count = server.post("/tokenize", &tokenize).json()["count"].clone();
    assert_eq!(count, server.post("/tokenize", &json!({"prompt": "Hello"})).json()["count"]);
}

#[test]
fn an_adapter_that_is_loaded_again_changes_outputs_and_hits_no_old_blocks() {
    let server = serve(&["--enable-lora", "--block-size", "4"]);
    let dir = copy("all");
    assert_eq!(load(&server, "a", dir.path(), false).status, 200);
    let (first, cached) = generated(&server, "a");
    assert_eq!(cached, 0);
    assert!(generated(&server, "a").1 > 0, "its own blocks are hit");
    put("rslora", dir.path());
    assert_eq!(load(&server, "a", dir.path(), true).status, 200);
    let (second, cached) = generated(&server, "a");
    assert_eq!(cached, 0, "blocks of the old weights, from the same path");
    assert_ne!(second, first);
    assert_eq!(load(&server, "b", &adapter("rslora"), false).status, 200);
    assert_eq!(generated(&server, "b").0, second, "the same weights under another name");
}

#[test]
fn a_stream_finishes_with_the_adapter_that_is_unloaded_meanwhile() {
    let server = serve(&["--enable-lora"]);
    assert_eq!(load(&server, "a", &adapter("all"), false).status, 200);
    let mut body = prompt("a");
    body["max_tokens"] = 450.into();
    let whole = texts(&server.post(COMPLETIONS, &body).json()).remove(0);
    body["stream"] = true.into();
    let body = body.to_string();
    let mut wire = Wire::open(&server);
    wire.send(head(COMPLETIONS, body.len()) + &body);
    let mut streamed = wire.read_until("data: ");
    assert_eq!(unload(&server, "a").status, 200);
    refused(&server.post(COMPLETIONS, &prompt("a")), 404, "model_not_found".into());
    streamed += &wire.rest();
    let events = streamed.split("data: ").filter_map(|event| {
        let event = event.split(['\r', '\n']).next().unwrap_or_default();
        serde_json::from_str::<Value>(event).ok()
    });
    let joined: String =
        events.filter_map(|event| Some(event["choices"][0]["text"].as_str()?.to_owned())).collect();
    assert_eq!(joined, whole);
}

#[test]
fn adapters_that_cannot_be_used_are_refused_with_what_is_wrong() {
    let server = serve(&["--enable-lora", "--max-lora-rank", "4"]);
    let rank = load(&server, "a", &adapter("rslora"), false);
    let message = refused(&rank, 400, "invalid_adapter".into());
    assert!(message.contains("--max-lora-rank"), "{message}");
    let missing = load(&server, "a", Path::new("/no/such/adapter"), false);
    let message = refused(&missing, 400, "invalid_adapter".into());
    assert!(message.contains("/no/such/adapter does not exist"), "{message}");
    let outside = fixture("adapters/../../../../../../../etc");
    refused(&load(&server, "a", &outside, false), 400, "invalid_adapter".into());
    let other = load(&server, "a", &fixture("adapters/tiny-mistral-up"), false);
    refused(&other, 400, "invalid_adapter".into());

    let dir = copy("all");
    let weights = dir.path().join("adapter_model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let mut broken = bytes.clone();
    let end = broken.len();
    // The last number: f32, or bf16 behind another one.
    broken[end - 4..].copy_from_slice(&[0xc0, 0x7f, 0xc0, 0x7f]);
    let truncated = bytes[..end - 1].to_vec();
    for (bytes, word) in [(broken, "finite"), (truncated, ""), (Vec::new(), "")] {
        std::fs::write(&weights, &bytes).unwrap();
        let message =
            refused(&load(&server, "a", dir.path(), false), 400, "invalid_adapter".into());
        assert!(message.contains(word), "{word}: {message}");
    }
    std::fs::remove_file(&weights).unwrap();
    refused(&load(&server, "a", dir.path(), false), 400, "invalid_adapter".into());

    let good = adapter("all");
    for name in ["", "tiny", "a\nb", &"x".repeat(257)] {
        let response = load(&server, name, &good, false);
        refused(&response, 400, Value::Null);
        assert_eq!(response.value()["error"]["param"], "lora_name");
    }
    let empty = load(&server, "a", Path::new(""), false);
    refused(&empty, 400, Value::Null);
    let absent = refused(&server.post(LOAD, &json!({"lora_name": "a"})), 400, Value::Null);
    assert_eq!(absent, "The request body is invalid: `lora_path` is missing");
    let untyped = server.post(LOAD, &json!({"lora_name": 7, "lora_path": good}));
    assert_eq!((untyped.status, &untyped.value()["error"]["param"]), (400, &json!("lora_name")));
    // A name is no path.
    assert_eq!(load(&server, "../../etc/passwd", &good, false).status, 200);
    generated(&server, "../../etc/passwd");
    let card = server.get("/v1/models/../../etc/passwd").json();
    assert_eq!(card["root"], json!(good), "the card of the adapter, whatever its name looks like");
}

#[test]
fn a_server_without_adapters_names_the_flag_and_keys_are_needed_as_elsewhere() {
    let server = serve(&[]);
    for response in [load(&server, "a", &adapter("all"), false), unload(&server, "a")] {
        let message = refused(&response, 404, "lora_disabled".into());
        assert!(message.contains("--enable-lora"), "{message}");
    }
    let keyed = serve(&["--enable-lora", "--api-key", "secret"]);
    assert_eq!(load(&keyed, "a", &adapter("all"), false).status, 401);
    assert_eq!(unload(&keyed, "a").status, 401);
}

#[test]
fn an_evicted_adapter_is_read_again_and_a_changed_one_must_be_loaded_again() {
    let server = serve(&["--enable-lora", "--max-cpu-loras", "1"]);
    let dir = copy("all");
    assert_eq!(load(&server, "a", dir.path(), false).status, 200);
    let (own, _) = generated(&server, "a");
    assert_eq!(load(&server, "b", &adapter("gate"), false).status, 200);
    assert_eq!(generated(&server, "a").0, own, "read again");
    let (other, _) = generated(&server, "b");
    assert_ne!(other, own);
    put("rslora", dir.path());
    let response = server.post(COMPLETIONS, &prompt("a"));
    let message = refused(&response, 503, "adapter_unavailable".into());
    assert!(message.contains("load it again"), "{message}");
    assert!(response.header("retry-after").is_none());
    assert_eq!(load(&server, "a", dir.path(), true).status, 200);
    assert_ne!(generated(&server, "a").0, own);
}

#[test]
fn more_adapters_than_there_is_room_for_are_refused_while_all_are_in_use() {
    let args =
        ["--enable-lora", "--max-cpu-loras", "1", "--max-num-seqs", "1", "--max-lora-wait", "0"];
    let server = serve(&args);
    assert_eq!(load(&server, "c", &adapter("rslora"), false).status, 200);
    assert_eq!(load(&server, "a", &adapter("all"), false).status, 200);
    let wire = busy(&server, "a");
    let response = load(&server, "b", &adapter("gate"), false);
    let message = refused(&response, 503, "adapters_busy".into());
    assert!(message.contains("--max-cpu-loras"), "{message}");
    assert!(response.header("retry-after").is_some());
    // With no time to wait, so is a request for an adapter that is not in memory.
    let response = server.post(COMPLETIONS, &prompt("c"));
    refused(&response, 503, "adapters_busy".into());
    assert!(response.header("retry-after").is_some());
    drop(wire);
    until("the adapter of an aborted request is given back", || {
        load(&server, "b", &adapter("gate"), false).status == 200
    });
}

/// Begins a response of many tokens, which ends when the connection is closed.
pub fn busy(server: &Served, model: &str) -> Wire {
    let mut body = prompt(model);
    (body["max_tokens"], body["n"], body["stream"]) = (400.into(), 64.into(), true.into());
    (body["temperature"], body["seed"]) = (1.into(), 1.into());
    let body = body.to_string();
    let mut wire = Wire::open(server);
    wire.send(head(COMPLETIONS, body.len()) + &body);
    wire.read_until("data: ");
    wire
}

/// The series of vLLM's metric of adapters: its labels, and whether its value is a time of this century.
pub fn info(server: &Served) -> (String, bool) {
    let text = server.get("/metrics").text().to_owned();
    let mut lines = text.lines().filter(|line| line.starts_with("vllm:lora_requests_info{"));
    let line = lines.next().expect("the metric is there");
    assert_eq!(lines.next(), None, "one series");
    let (labels, value) =
        line.trim_start_matches("vllm:lora_requests_info").split_once("} ").unwrap();
    (format!("{labels}}}"), value.parse::<f64>().unwrap() > 1e9)
}

pub fn labels(running: &str, waiting: &str) -> String {
    format!(
        "{{max_lora=\"1\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}}"
    )
}

#[test]
fn requests_wait_for_room_in_order_and_the_metric_names_their_adapters() {
    let server = serve(&["--enable-lora", "--max-cpu-loras", "1", "--max-num-seqs", "1"]);
    let want = ["b", "a"].map(|name| {
        let of = if name == "a" { "all" } else { "gate" };
        assert_eq!(load(&server, name, &adapter(of), false).status, 200);
        generated(&server, name).0
    });
    until("no request has an adapter", || info(&server) == (labels("", ""), true));
    let wire = busy(&server, "a");
    // Of 64 choices one runs, and the others wait.
    until("the others wait", || info(&server) == (labels("a", "a"), true));
    std::thread::scope(|scope| {
        let b = scope.spawn(|| generated(&server, "b").0);
        until("a request waits for room", || info(&server).0 == labels("a", "a,b"));
        assert!(!b.is_finished());
        drop(wire);
        assert_eq!(b.join().unwrap(), want[0]);
    });
    assert_eq!(generated(&server, "a").0, want[1]);
    let none = serve(&[]);
    assert!(!none.get("/metrics").text().contains("lora_requests_info"), "without adapters");
}

#[test]
fn a_wait_for_room_ends_in_an_error_that_says_when_to_retry() {
    let args = ["--enable-lora", "--max-cpu-loras", "1", "--max-num-seqs", "1"];
    let server = serve(&[&args[..], &["--max-lora-wait", "100ms"]].concat());
    for (name, of) in [("b", "gate"), ("a", "all")] {
        assert_eq!(load(&server, name, &adapter(of), false).status, 200);
    }
    let wire = busy(&server, "a");
    let response = server.post(COMPLETIONS, &prompt("b"));
    let message = refused(&response, 503, "adapters_busy".into());
    assert!(message.contains("--max-cpu-loras"), "{message}");
    assert!(response.header("retry-after").is_some());
    drop(wire);
    until("there is room again", || server.post(COMPLETIONS, &prompt("b")).status == 200);
    // The request's own time counts as well.
    let server = serve(&[&args[..], &["--request-timeout", "100ms"]].concat());
    for (name, of) in [("b", "gate"), ("a", "all")] {
        assert_eq!(load(&server, name, &adapter(of), false).status, 200);
    }
    let mut outcomes = Vec::new();
    for _ in 0..20 {
        let wire = busy(&server, "a");
        outcomes.push(server.post(COMPLETIONS, &prompt("b")).status);
        drop(wire);
        if outcomes.contains(&504) {
            break;
        }
    }
    assert!(outcomes.iter().all(|status| [200, 504].contains(status)), "{outcomes:?}");
}

#[test]
fn a_shutdown_ends_waits_for_adapters_before_the_requests_that_run() {
    let args = ["--enable-lora", "--max-cpu-loras", "1", "--max-num-seqs", "1"];
    let mut server =
        serve(&[&args[..], &["--shutdown-grace", "10m", "--max-lora-wait", "10m"]].concat());
    for (name, of) in [("b", "gate"), ("a", "all")] {
        assert_eq!(load(&server, name, &adapter(of), false).status, 200);
    }
    let wire = busy(&server, "a");
    std::thread::scope(|scope| {
        let b = scope.spawn(|| server.post(COMPLETIONS, &prompt("b")));
        until("a request waits for room", || info(&server).0 == labels("a", "a,b"));
        server.signal("TERM");
        refused(&b.join().unwrap(), 503, "draining".into());
    });
    drop(wire);
    assert!(server.ended(Duration::from_secs(60)).success());
}

#[test]
fn an_adapter_whose_logits_are_not_finite_is_named_and_other_requests_are_served() {
    let server = serve(&["--enable-lora"]);
    let dir = copy("all");
    let weights = dir.path().join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    // Every number is finite, and too large for any sum.
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let f32s = String::from_utf8_lossy(&bytes[..header]).contains("F32");
    let huge = if f32s { 1e37f32.to_le_bytes().to_vec() } else { vec![0xf0, 0x7d] };
    let end = bytes.len();
    for (at, byte) in bytes[header..end].iter_mut().enumerate() {
        *byte = huge[at % huge.len()];
    }
    std::fs::write(&weights, &bytes).unwrap();
    assert_eq!(load(&server, "huge", dir.path(), false).status, 200);
    let (base, _) = generated(&server, "tiny");
    let response = server.post(COMPLETIONS, &prompt("huge"));
    let message = refused(&response, 503, "adapter_unavailable".into());
    assert!(message.contains("`huge` made the logits non-finite"), "{message}");
    assert!(message.ends_with("works under this name, or unload the adapter."), "{message}");
    assert!(response.header("retry-after").is_none(), "the same request would fail again");
    assert_eq!(generated(&server, "tiny").0, base);
}

/// The reader of the log may end first: `strata serve .. 2>&1 | head`.
#[test]
fn a_log_that_cannot_be_written_fails_no_load_and_no_request() {
    let mut command = command();
    command.args(["serve", "--port", "0", "--enable-lora", "--max-cpu-loras", "1", "--model"]);
    command.arg(fixture("tiny-llama")).stderr(Stdio::piped());
    let mut server = Served::run(command);
    drop(server.stderr());
    assert_eq!(load(&server, "a", &adapter("all"), false).status, 200);
    assert_eq!(load(&server, "b", &adapter("gate"), false).status, 200);
    assert_eq!(load(&server, "c", Path::new("/no/such/adapter"), false).status, 400);
    generated(&server, "a");
    assert_eq!(unload(&server, "b").status, 200);
    server.signal("TERM");
    assert_eq!(server.ended(Duration::from_secs(60)).code(), Some(0));
}

#[test]
fn loads_failures_and_evictions_are_logged_and_the_access_log_has_the_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("access.jsonl");
    let mut command = command();
    command.args(["serve", "--port", "0", "--served-model-name", "tiny", "--enable-lora"]);
    command.args(["--max-cpu-loras", "1", "--access-log"]).arg(&file);
    command.arg("--model").arg(fixture("tiny-llama")).stderr(Stdio::piped());
    let mut server = Served::run(command);
    let mut stderr = server.stderr();
    let reader = std::thread::spawn(move || {
        let mut log = String::new();
        stderr.read_to_string(&mut log).map(|_| log)
    });
    let changed = copy("all");
    assert_eq!(load(&server, "a", changed.path(), false).status, 200);
    assert_eq!(load(&server, "b", &adapter("gate"), false).status, 200);
    assert_eq!(load(&server, "c", Path::new("/no/such/adapter"), false).status, 400);
    generated(&server, "b");
    assert_eq!(load(&server, "b", &adapter("rslora"), true).status, 200);
    put("rslora", changed.path());
    assert_eq!(server.post(COMPLETIONS, &prompt("a")).status, 503);
    assert_eq!(unload(&server, "b").status, 200);
    assert_eq!(unload(&server, "d").status, 404);
    server.signal("TERM");
    assert!(server.ended(Duration::from_secs(60)).success());
    let log = reader.join().unwrap().unwrap();
    for line in [
        "LoRA adapter `a` loaded from",
        "LoRA adapter `a` evicted from memory for `b`",
        " INFO strata: LoRA adapter not loaded from \"/no/such/adapter\": the LoRA adapter `c` cannot be loaded",
        "; it replaces that of sha256 ",
        "LoRA adapter not read again: the LoRA adapter `a` has changed on disk",
        "LoRA adapter `b` unloaded",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    let lines = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named: Vec<_> = lines
        .iter()
        .filter(|line| line["method"] == "POST")
        .map(|line| (line["model"].as_str().unwrap_or_default(), line["status"].as_u64().unwrap()))
        .collect();
    let want = [
        ("a", 200),
        ("b", 200),
        ("c", 400),
        ("b", 200),
        ("b", 200),
        ("a", 503),
        ("b", 200),
        ("d", 404),
    ];
    assert_eq!(named, want);
}

#[test]
fn loads_unloads_and_requests_at_once_lose_nothing() {
    let server = serve(&["--enable-lora", "--max-cpu-loras", "2", "--max-num-seqs", "4"]);
    for name in ["a", "b"] {
        assert_eq!(load(&server, name, &adapter("all"), false).status, 200);
    }
    let mut want = vec![generated(&server, "a").0];
    assert_eq!(load(&server, "a", &adapter("rslora"), true).status, 200);
    want.push(generated(&server, "a").0);
    let (done, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let operators: Vec<_> = (0..2)
            .map(|at| {
                let server = &server;
                scope.spawn(move || {
                    for i in 0..24 {
                        let name = ["a", "b"][(i + at) % 2];
                        let response = match i % 3 {
                            0 => unload(server, name),
                            kind => {
                                load(server, name, &adapter(["all", "rslora"][i % 2]), kind == 1)
                            }
                        };
                        let allowed = [200, 400, 404, 503].contains(&response.status);
                        assert!(allowed, "{}", response.text());
                    }
                })
            })
            .collect();
        for client in 0..3 {
            let (server, done, served, want) = (&server, &done, &served, &want);
            scope.spawn(move || {
                let mut turn = client;
                while !done.load(Ordering::Relaxed) {
                    turn += 1;
                    let response = server.post(COMPLETIONS, &prompt(["a", "b"][turn % 2]));
                    match response.status {
                        200 => {
                            let text = texts(&response.json()).remove(0);
                            assert!(want.contains(&text), "{text}");
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                        404 => _ = refused(&response, 404, "model_not_found".into()),
                        503 => _ = refused(&response, 503, "adapters_busy".into()),
                        _ => panic!("{}", response.text()),
                    }
                }
            });
        }
        operators.into_iter().for_each(|operator| operator.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    assert!(served.load(Ordering::Relaxed) > 0, "requests were served meanwhile");
    assert_eq!(server.get("/health").status, 200);
}
