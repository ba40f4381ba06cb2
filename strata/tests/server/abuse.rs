//! Clients that break off, send half, send rubbish, send too much, or do not read: others must not notice.

use serde_json::{Value, json};

use crate::served::Served;
use crate::wire::{Wire, head, status, until};

const PATH: &str = "/v1/completions";

fn asked() -> Value {
    json!({"prompt": "Once upon", "max_tokens": 12, "temperature": 0})
}

fn text(server: &Served) -> String {
    server.post(PATH, &asked()).json()["choices"][0]["text"].to_string()
}

fn long(stream: bool) -> Value {
    json!({"prompt": "Once upon", "max_tokens": 450, "n": 4, "ignore_eos": true, "stream": stream})
}

#[test]
fn rubbish_is_rejected_and_leaves_nothing_behind() {
    let server = Served::start("tiny-llama", [""; 0]);
    let right = text(&server);
    until("one connection", || server.metric("vllm:num_requests_running") == 0.0);
    let files = server.open_files();
    let rubbish: [&[u8]; 8] = [
        b"",
        b"{",
        b"[]",
        b"\"text\"",
        b"{\"prompt\": \"\xff\xfe\"}",
        b"{\"prompt\": \"\\ud800\"}",
        b"{\"prompt\": 1e999}",
        &[0; 1000],
    ];
    for body in rubbish {
        let response = server.post_bytes(PATH, body);
        assert_eq!(response.status, 400, "{body:?}: {}", response.text());
        assert_eq!(response.value()["error"]["type"], "invalid_request_error");
    }
    let deep = format!("{{\"prompt\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(server.post_bytes(PATH, deep.as_bytes()).status, 400);
    let million = json!({"prompt": vec![7; 1_000_000]});
    let refused = server.post(PATH, &million);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.value()["error"]["code"], "context_length_exceeded");
    assert_eq!(server.post_bytes(PATH, &vec![b'x'; 100 << 20]).status, 413);
    for lines in ["\r\n\r\n\r\n", "GET\r\n\r\n", "\u{16}\u{3}\u{1}TLS", "GET / HTTP/9.9\r\n\r\n"] {
        let mut wire = Wire::open(&server);
        wire.send(lines);
        wire.finish();
        wire.rest();
    }
    let mut lying = Wire::open(&server);
    lying.send(head(PATH, 10).replace("Content-Length: 10", "Content-Length: -1"));
    assert_eq!(status(&lying.rest()), 400);
    assert_eq!(text(&server), right);
    until("every file is closed", || server.open_files() <= files);
    until("no request is left", || server.is_idle());
}

#[test]
fn who_sends_half_or_nothing_takes_nothing_from_others() {
    let server = Served::start("tiny-llama", [""; 0]);
    let right = text(&server);
    let files = server.open_files();
    let mut slow: Vec<Wire> = (0..100).map(|_| Wire::open(&server)).collect();
    for (number, wire) in slow.iter_mut().enumerate() {
        match number % 4 {
            0 => wire.send("POST /v1/compl"),
            1 => wire.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "),
            2 => wire.send(head(PATH, 1000) + "{\"prompt\": "),
            _ => {}
        }
    }
    assert_eq!(text(&server), right);
    for wire in &mut slow {
        wire.send("x");
    }
    assert_eq!(text(&server), right);
    drop(slow);
    until("every file is closed", || server.open_files() <= files);
    until("no request is left", || server.is_idle());
}

#[test]
fn vanished_clients_free_what_they_had() {
    let args = ["--max-num-seqs", "8", "--no-enable-prefix-caching"];
    let server = Served::start("tiny-llama", args);
    let right = text(&server);
    let files = server.open_files();
    for round in 0..4 {
        let mut wires: Vec<Wire> = (0..12).map(|_| Wire::open(&server)).collect();
        for (number, wire) in wires.iter_mut().enumerate() {
            wire.post(PATH, &long(number % 3 != 0));
        }
        // Some have read something, some nothing; some were running, some waiting.
        for (number, wire) in wires.iter_mut().enumerate().filter(|(number, _)| number % 3 == 1) {
            wire.read(1 + 97 * number * (round + 1));
        }
        drop(wires);
        assert_eq!(text(&server), right);
    }
    until("no block is held", || server.is_idle());
    until("every file is closed", || server.open_files() <= files);
}

#[test]
fn unread_responses_delay_no_other_client() {
    let server = Served::start("tiny-llama", ["--max-num-seqs", "8"]);
    let right = text(&server);
    let mut deaf: Vec<Wire> = (0..8).map(|_| Wire::open(&server)).collect();
    for wire in &mut deaf {
        let mut body = long(true);
        body["logprobs"] = 20.into();
        wire.post(PATH, &body);
    }
    assert_eq!(text(&server), right);
    // The engine continues to the end of responses that are not read.
    until("all are done", || server.is_idle());
    for wire in &mut deaf {
        let told = wire.rest();
        assert!(told.contains("data: [DONE]"), "{}", &told[told.len().saturating_sub(300)..]);
        assert_eq!(told.matches("\"finish_reason\":\"length\"").count(), 4);
    }
}
