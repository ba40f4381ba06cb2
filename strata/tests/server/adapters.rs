//! LoRA adapters: their names as models, loads and unloads while requests run, and adapters that cannot be used.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::completions::texts;
use crate::served::{Response, Served, fixture};
use crate::wire::{Wire, head, until};

const COMPLETIONS: &str = "/v1/completions";
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

fn adapter(name: &str) -> PathBuf {
    fixture("adapters").join(format!("tiny-llama-{name}"))
}

fn serve(args: &[&str]) -> Served {
    Served::start("tiny-llama", args)
}

fn load(server: &Served, name: &str, path: &Path, load_inplace: bool) -> Response {
    let body = json!({"lora_name": name, "lora_path": path, "load_inplace": load_inplace});
    server.post(LOAD, &body)
}

fn unload(server: &Served, name: &str) -> Response {
    server.post(UNLOAD, &json!({"lora_name": name}))
}

fn prompt(model: &str) -> Value {
    json!({
        "model": model, "prompt": "Once upon a time there was a king who", "max_tokens": 24, "ignore_eos": true,
        "temperature": 0, "top_k": -1, "top_p": 1, "repetition_penalty": 1
    })
}

/// The text that a model gives, and the number of its prompt tokens that were cached.
#[track_caller]
fn generated(server: &Served, model: &str) -> (String, u64) {
    let response = server.post(COMPLETIONS, &prompt(model));
    let body = response.json();
    assert_eq!(body["model"], model);
    assert_eq!(response.header("x-strata-model"), Some(model));
    let cached = response.header("x-strata-cached-tokens").unwrap().parse().unwrap();
    (texts(&body).remove(0), cached)
}

#[track_caller]
fn refused(response: &Response, status: u16, code: Value) -> String {
    assert_eq!(response.status, status, "{}", response.text());
    let error = &response.value()["error"];
    assert_eq!(error["code"], code, "{error}");
    error["message"].as_str().unwrap().to_owned()
}

/// A copy of an adapter's files, which can be changed.
fn copy(of: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(of, dir.path());
    dir
}

fn put(of: &str, dir: &Path) {
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
    assert!(message.contains("adapter_config.json"), "{message}");
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
    let server = serve(&["--enable-lora", "--max-cpu-loras", "1", "--max-num-seqs", "1"]);
    assert_eq!(load(&server, "a", &adapter("all"), false).status, 200);
    let mut body = prompt("a");
    (body["max_tokens"], body["n"], body["stream"]) = (400.into(), 64.into(), true.into());
    (body["temperature"], body["seed"]) = (1.into(), 1.into());
    let body = body.to_string();
    let mut wire = Wire::open(&server);
    wire.send(head(COMPLETIONS, body.len()) + &body);
    wire.read_until("data: ");
    let response = load(&server, "b", &adapter("gate"), false);
    let message = refused(&response, 503, "adapters_busy".into());
    assert!(message.contains("--max-cpu-loras"), "{message}");
    assert!(response.header("retry-after").is_some());
    drop(wire);
    until("the adapter of an aborted request is given back", || {
        load(&server, "b", &adapter("gate"), false).status == 200
    });
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
