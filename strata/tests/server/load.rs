//! Many at once, and many one after another. `STRATA_LONG` makes it the numbers that a release is held to.

use std::thread;

use serde_json::{Value, json};

use crate::served::Served;
use crate::wire::until;

/// So many, or the number of the long test.
fn number(short: usize, long: usize) -> usize {
    if std::env::var_os("STRATA_LONG").is_some() { long } else { short }
}

/// One of a few requests that differ in everything.
fn request(kind: usize) -> Value {
    let prompt: Vec<usize> = (0..20 + 13 * kind).map(|at| 3 + (kind * 31 + at * 7) % 300).collect();
    json!({
        "prompt": prompt, "max_tokens": 30 + 17 * (kind % 7), "ignore_eos": true, "seed": kind,
        "temperature": kind % 3, "stream": true, "return_token_ids": true,
    })
}

/// Requests that [`request`] tells apart.
const KINDS: usize = 12;

/// The tokens of a stream, and how it ended.
fn answer(server: &Served, kind: usize) -> (String, Value) {
    let events = server.post("/v1/completions", &request(kind)).events();
    let text = |event: &Value| event["choices"][0]["text"].as_str().unwrap_or("").to_owned();
    let end = events.iter().find_map(|event| event["choices"][0]["finish_reason"].as_str());
    (events.iter().map(text).collect(), end.into())
}

#[test]
fn streams_over_a_pool_a_tenth_of_their_need_are_what_they_are_alone() {
    let streams = number(48, 500);
    // Of f32, a block of 16 tokens takes 12 KiB; an average request needs eleven.
    let blocks = (streams * 11 / 10).max(33);
    let memory = format!("{}KiB", blocks * 12);
    let server = Served::start(
        "tiny-llama",
        ["--kv-memory", &memory, "--precision", "f32", "--max-num-seqs", "128"],
    );
    let alone: Vec<_> = (0..KINDS).map(|kind| answer(&server, kind)).collect();
    assert!(alone.iter().all(|(_, end)| end == "length"), "{alone:?}");
    let mut memory = Vec::new();
    for _ in 0..number(2, 3) {
        thread::scope(|scope| {
            let (server, alone) = (&server, &alone);
            for stream in 0..streams {
                let thread = thread::Builder::new().stack_size(512 << 10);
                let asks = move || {
                    let kind = stream % KINDS;
                    assert_eq!(answer(server, kind), alone[kind], "stream {stream}");
                };
                thread.spawn_scoped(scope, asks).unwrap();
            }
        });
        until("nobody is left", || server.is_idle());
        memory.push(server.memory());
    }
    assert!(server.metric("vllm:num_preemptions_total") > 0.0, "the pool was never too small");
    let (first, last) = (memory[0], memory[memory.len() - 1]);
    assert!(last < first + (16 << 20), "memory grows: {memory:?}");
}

#[test]
fn many_requests_one_after_another_leave_nothing_behind() {
    let requests = number(300, 10_000);
    let server = Served::start("tiny-llama", [""; 0]);
    let agent = ureq::Agent::new_with_defaults();
    let ask = |number: usize| {
        let body =
            json!({"prompt": [3 + number % 300, 5], "max_tokens": 1 + number % 3}).to_string();
        let request = agent.post(server.url("/v1/completions"));
        let mut response = request.header("content-type", "application/json").send(body).unwrap();
        response.body_mut().read_to_string().unwrap();
    };
    (0..requests / 4).for_each(ask);
    let (memory, files) = (server.memory(), server.open_files());
    (0..requests).for_each(ask);
    let (memory_after, files_after) = (server.memory(), server.open_files());
    assert!(files_after <= files + 1, "files: {files} and then {files_after}");
    assert!(memory_after < memory + (8 << 20), "memory: {memory} and then {memory_after}");
}
