//! Waits for LoRA adapters: what waits, for how long, what is refused before, and what must not wait.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::adapters::{adapter, busy, copy, generated, info, labels, load, prompt, put, refused};
use crate::served::Served;
use crate::wire::{Wire, status, until};

const COMPLETIONS: &str = "/v1/completions";

/// A server with room for one adapter, which has loaded `b` and then `a`.
fn serve(args: &[&str]) -> Served {
    let own = ["--enable-lora", "--max-cpu-loras", "1"];
    let server = Served::start("tiny-llama", [&own[..], args].concat());
    for (name, of) in [("b", "gate"), ("a", "all")] {
        assert_eq!(load(&server, name, &adapter(of), false).status, 200);
    }
    server
}

/// Sum of a metric's series.
fn metric(server: &Served, name: &str) -> f64 {
    let text = server.get("/metrics").text().to_owned();
    let own = text.lines().filter(|line| line.split_once('{').is_some_and(|(own, _)| own == name));
    own.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

#[test]
fn a_load_that_fails_evicts_no_adapter() {
    let server = serve(&[]);
    let dir = copy("all");
    assert_eq!(load(&server, "c", dir.path(), false).status, 200);
    let (own, _) = generated(&server, "c");
    // An adapter that is read again is found to have changed.
    put("rslora", dir.path());
    let broken = copy("gate");
    std::fs::write(broken.path().join("adapter_model.safetensors"), b"short").unwrap();
    for path in [Path::new("/no/such/adapter"), broken.path()] {
        refused(&load(&server, "d", path, false), 400, "invalid_adapter".into());
        assert_eq!(generated(&server, "c").0, own, "it is still in memory");
    }
}

#[test]
fn loads_at_once_wait_for_each_other_and_not_one_is_refused() {
    let server = serve(&[]);
    std::thread::scope(|scope| {
        let one = |at: usize| {
            let (server, path) = (&server, adapter(["all", "gate", "rslora"][at % 3]));
            scope.spawn(move || load(server, &format!("c{at}"), &path, false).status)
        };
        let all: Vec<_> = (0..24).map(one).collect();
        let all: Vec<_> = all.into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(all, [200; 24], "no request runs");
    });
}

#[test]
fn an_invalid_request_is_refused_before_it_waits_for_its_adapter() {
    let server = serve(&["--max-num-seqs", "1", "--max-lora-wait", "5s"]);
    let wire = busy(&server, "a");
    let long: Vec<u32> = vec![1; 2000];
    for (field, value) in [
        ("temperature", json!(-1)),
        ("n", json!(0)),
        ("stop", json!([""])),
        ("prompt", json!(long)),
        ("prompt", json!([1_000_000])),
        ("guided_regex", json!("(")),
        ("guided_json", json!({"type": "object", "properties": 7})),
    ] {
        let mut body = prompt("b");
        body[field] = value;
        let response = server.post(COMPLETIONS, &body);
        assert_eq!(response.status, 400, "{field}: {}", response.text());
    }
    // Nor has any of them evicted what is in use.
    assert!(info(&server).0.contains("running_lora_adapters=\"a\""), "{}", info(&server).0);
    drop(wire);
}

#[test]
fn an_adapter_that_is_always_busy_does_not_keep_out_another_one() {
    let server = serve(&["--max-num-seqs", "8", "--max-lora-wait", "8s"]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Never all between two of their requests.
        let clients: Vec<_> = [100, 137, 181, 223]
            .map(|max_tokens| {
                let (server, done) = (&server, &done);
                scope.spawn(move || {
                    let mut body = prompt("a");
                    body["max_tokens"] = max_tokens.into();
                    let mut last = 200;
                    while last == 200 && !done.load(Ordering::Relaxed) {
                        last = server.post(COMPLETIONS, &body).status;
                    }
                    last
                })
            })
            .into();
        until("the adapter is busy", || info(&server).0.contains("running_lora_adapters=\"a\""));
        let other = server.post(COMPLETIONS, &prompt("b"));
        done.store(true, Ordering::Relaxed);
        assert_eq!(other.status, 200, "{}", other.text());
        for client in clients {
            assert_eq!(client.join().unwrap(), 200, "it queues behind, and runs");
        }
    });
}

#[test]
fn the_wait_for_an_adapter_is_time_in_the_queue() {
    let server = serve(&["--max-num-seqs", "1"]);
    let wire = busy(&server, "a");
    let mut body = prompt("b");
    // More than the choices of the other request that wait.
    (body["n"], body["max_tokens"]) = (64.into(), 1.into());
    std::thread::scope(|scope| {
        let b = scope.spawn(|| server.post(COMPLETIONS, &body));
        until("a request waits", || info(&server).0 == labels("a", "a,b"));
        let seen = Instant::now();
        let waiting = metric(&server, "vllm:num_requests_waiting");
        let state = server.get("/strata/state").json()["requests"]["waiting"].clone();
        std::thread::sleep(Duration::from_millis(200));
        let waited = seen.elapsed();
        assert!(!b.is_finished());
        drop(wire);
        let response = b.join().unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(waiting >= 64.0, "{waiting}");
        assert!(state.as_u64() >= Some(64), "{state}");
        let queue_ms: u128 = response.header("x-strata-queue-ms").unwrap().parse().unwrap();
        assert!(queue_ms >= waited.as_millis(), "{queue_ms}");
        let sum = metric(&server, "vllm:request_queue_time_seconds_sum");
        assert!(sum >= 64.0 * waited.as_secs_f64(), "each choice has waited: {sum}");
    });
    let none = server.post(COMPLETIONS, &prompt("a"));
    assert_eq!(none.status, 200, "{}", none.text());
    assert_eq!(Value::from(metric(&server, "vllm:num_requests_waiting")), 0.0);
}

#[test]
fn what_waits_for_an_adapter_holds_up_no_body_of_the_model() {
    let server = serve(&["--max-num-seqs", "1"]);
    let wire = busy(&server, "a");
    let mut body = prompt("b");
    // Lists are large in memory, however short their text: nothing else that counts is parsed beside so many.
    (body["x"], body["max_tokens"]) = (vec![json!([]); 180_000].into(), 1.into());
    let mut waits = Wire::open(&server);
    waits.post(COMPLETIONS, &body);
    until("it waits for its adapter", || info(&server).0 == labels("a", "a,b"));
    let text = "x ".repeat(10 << 10);
    let tokenized = server.post("/tokenize", &json!({"prompt": text}));
    assert_eq!(tokenized.status, 200, "{}", tokenized.text());
    assert_eq!(info(&server).0, labels("a", "a,b"), "it waits still");
    drop(wire);
    assert_eq!(status(&waits.rest()), 200);
}

#[test]
fn a_deadline_ends_the_wait_for_an_adapter() {
    let server = serve(&["--max-num-seqs", "1"]);
    let wire = busy(&server, "a");
    let mut body = prompt("b");
    body["deadline_ms"] = 50.into();
    let response = server.post(COMPLETIONS, &body);
    assert_eq!(response.status, 429, "{}", response.text());
    drop(wire);
}

#[test]
fn requests_that_wait_for_an_adapter_have_places_in_the_queue() {
    let server = serve(&["--max-num-seqs", "1", "--max-num-waiting", "110"]);
    let wire = busy(&server, "a");
    let mut body = prompt("b");
    (body["n"], body["max_tokens"]) = (40.into(), 1.into());
    std::thread::scope(|scope| {
        // At most 63 choices of the busy one wait, and most of them for long: one more request fits, and two do not.
        let first = scope.spawn(|| server.post(COMPLETIONS, &body));
        until("it waits", || metric(&server, "vllm:num_requests_waiting") >= 60.0 + 20.0);
        let second = server.post(COMPLETIONS, &body);
        refused(&second, 429, "queue_full".into());
        assert!(!first.is_finished());
        drop(wire);
        assert_eq!(first.join().unwrap().status, 200);
    });
}
