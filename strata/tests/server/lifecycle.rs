//! How a server ends: after one signal, after two, and when it is killed.

use serde_json::{Value, json};

use crate::served::Served;
use crate::wire::{PATIENCE, Wire, head, status, until};

fn stream(n: u32, max_tokens: u32) -> Value {
    json!({"prompt": "Once upon", "max_tokens": max_tokens, "n": n, "ignore_eos": true,
           "temperature": 1, "stream": true})
}

/// The first bytes of a request that keeps a connection: a body is still to come.
fn kept(length: usize) -> String {
    head("/v1/completions", length).replace("Connection: close\r\n", "")
}

#[test]
fn a_server_with_nothing_to_do_ends_at_once() {
    for signal in ["TERM", "INT"] {
        let mut server = Served::start("tiny-llama", [""; 0]);
        // An open connection on which nothing is asked is no reason to stay.
        let _idle = Wire::open(&server);
        assert_eq!(server.get("/ready").status, 200);
        server.signal(signal);
        assert_eq!(server.ended(PATIENCE).code(), Some(0), "{signal}");
    }
}

#[test]
fn what_was_accepted_is_finished_and_nothing_new_is_taken() {
    let mut server = Served::start("tiny-llama", ["--max-num-seqs", "4"]);
    let mut streams: Vec<Wire> = (0..6).map(|_| Wire::open(&server)).collect();
    let mut begun = String::new();
    for wire in &mut streams {
        wire.post("/v1/completions", &stream(4, 300));
    }
    begun.push_str(&streams[0].read_until("data: "));
    // Known by the server, and not yet asked anything.
    let (mut late, mut ready) = (Wire::open(&server), Wire::open(&server));
    late.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    late.read_until("\r\n\r\n");
    server.signal("TERM");
    let body = stream(1, 5).to_string();
    until("requests are not taken", || {
        let mut probe = Wire::open(&server);
        probe.send("GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        status(&probe.rest()) == 503
    });
    late.send(kept(body.len()) + &body);
    let late = late.rest();
    assert_eq!(status(&late), 503, "{late}");
    assert!(late.contains("connection: close") && late.contains("draining"), "{late}");
    ready.send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&ready.rest()), 200);
    for wire in &mut streams {
        let text = std::mem::take(&mut begun) + &wire.rest();
        assert_eq!(status(&text), 200);
        assert!(text.contains("data: [DONE]") && !text.contains("\"error\""), "{text}");
        assert_eq!(text.matches("\"finish_reason\":\"length\"").count(), 4, "{text}");
    }
    assert_eq!(server.ended(PATIENCE).code(), Some(0));
}

#[test]
fn whatever_outlasts_the_grace_period_ends_with_an_error() {
    let args = ["--max-num-seqs", "1", "--shutdown-grace", "0.1"];
    let mut server = Served::start("tiny-llama", args);
    let (mut streamed, mut whole) = (Wire::open(&server), Wire::open(&server));
    streamed.post("/v1/completions", &stream(64, 450));
    let begun = streamed.read_until("data: ");
    let mut body = stream(64, 450);
    body["stream"] = false.into();
    whole.post("/v1/completions", &body);
    until("all wait", || server.metric("vllm:num_requests_waiting") >= 100.0);
    server.signal("TERM");
    let (streamed, whole) = (begun + &streamed.rest(), whole.rest());
    assert!(streamed.contains("shut_down"), "{}", &streamed[streamed.len().saturating_sub(500)..]);
    assert!(status(&whole) == 503 && whole.contains("shut_down"), "{whole}");
    assert_eq!(server.ended(PATIENCE).code(), Some(0));
}

#[test]
fn when_signalled_twice_it_does_not_wait() {
    let mut server = Served::start("tiny-llama", ["--max-num-seqs", "1"]);
    let mut busy = Wire::open(&server);
    busy.post("/v1/completions", &stream(64, 450));
    busy.read_until("data: ");
    server.signal("TERM");
    until("requests are not taken", || server.get("/ready").status == 503);
    server.signal("TERM");
    assert_eq!(server.ended(PATIENCE).code(), Some(143));
}

#[test]
fn a_killed_server_starts_again_at_the_same_address() {
    let mut server = Served::start("tiny-llama", [""; 0]);
    let mut busy = Wire::open(&server);
    busy.post("/v1/completions", &stream(64, 450));
    busy.read_until("data: ");
    let port = server.address().rsplit(':').next().unwrap().to_owned();
    server.signal("KILL");
    assert!(!server.ended(PATIENCE).success());
    let mut command = crate::served::command();
    command.args(["serve", "--port", &port, "--model"]).arg(crate::served::fixture("tiny-llama"));
    let server = Served::run(command);
    server.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 2})).json();
    drop(busy);
}

#[test]
#[cfg(unix)]
fn a_supervisor_is_notified_of_readiness_life_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut text = [0; 64];
        let len = socket.recv(&mut text).expect("the server told nothing more");
        String::from_utf8(text[..len].to_vec()).unwrap()
    };
    let mut command = crate::served::command();
    command.args(["--quiet", "serve", "--port", "0", "--model"]);
    command.arg(crate::served::fixture("tiny-llama"));
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "40000");
    let mut server = Served::run(command);
    assert_eq!(told(), "READY=1");
    // It can be asked by now, and goes on telling that it lives with nothing to do.
    server.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 2})).json();
    for _ in 0..3 {
        assert_eq!(told(), "WATCHDOG=1");
    }
    server.signal("TERM");
    while told() != "STOPPING=1" {}
    assert_eq!(server.ended(PATIENCE).code(), Some(0));
}
