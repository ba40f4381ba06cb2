//! Limits, API keys, and what is logged of a request.

use serde_json::{Value, json};

use crate::served::{Response, Served};
use crate::wire::{Wire, head, status, until};

/// A request that keeps a server busy that runs one at a time.
fn long() -> Value {
    json!({"prompt": "Once upon", "max_tokens": 450, "n": 64, "ignore_eos": true, "temperature": 1})
}

fn short() -> Value {
    json!({"prompt": "Once upon", "max_tokens": 2})
}

#[track_caller]
fn refused(response: &Response, status: u16, code: &str) {
    assert_eq!(response.status, status, "{}", response.text());
    let error = &response.value()["error"];
    assert_eq!(error["code"], code, "{error}");
    assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
}

#[test]
fn what_is_too_large_or_unknown_or_not_json_is_an_error() {
    let server = Served::start("tiny-llama", ["--max-body-size", "20KiB"]);
    let large = vec![b' '; 60 << 10];
    refused(&server.post_bytes("/v1/completions", &large), 413, "body_too_large");
    let mut wire = Wire::open(&server);
    wire.send(format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n",
        "x".repeat(70_000)
    ));
    assert_eq!(status(&wire.rest()), 431);
    refused(&server.get("/v1/nothing"), 404, "unknown_url");
    let wrong = server.get("/v1/completions");
    refused(&wrong, 405, "method_not_allowed");
    assert_eq!(wrong.header("allow"), Some("POST"));
    let mut form = Wire::open(&server);
    form.send(head("/v1/completions", 2).replace("application/json", "text/plain") + "{}");
    let form = form.rest();
    assert!(status(&form) == 415 && form.contains("unsupported_media_type"), "{form}");
    let mut untyped = Wire::open(&server);
    let body = short().to_string();
    let head = head("/v1/completions", body.len());
    untyped.send(head.replace("Content-Type: application/json\r\n", "") + &body);
    assert_eq!(status(&untyped.rest()), 200);
    let broken = server.post_bytes("/v1/completions", b"{\"prompt\": ");
    assert_eq!(
        (broken.status, &broken.value()["error"]["type"]),
        (400, &"invalid_request_error".into())
    );
}

#[test]
fn who_has_no_key_learns_only_that_the_server_lives() {
    let server = Served::start("tiny-llama", ["--api-key", "alpha", "beta"]);
    for path in ["/health", "/ready", "/metrics", "/version"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let refusal = server.get("/v1/models");
    refused(&refusal, 401, "invalid_api_key");
    for path in ["/strata/state", "/v1/models/tiny", "/v1/models/other"] {
        let response = server.get(path);
        refused(&response, 401, "invalid_api_key");
        assert!(!response.text().contains("tiny"), "{}", response.text());
    }
    // Nor what is wrong with a request, nor whether there is such a model.
    for body in [json!({}), json!({"model": "other", "prompt": "x"}), json!("x")] {
        refused(&server.post("/v1/completions", &body), 401, "invalid_api_key");
    }
    // What tells processes that the server lives says nothing else.
    let version = server.get("/version").json();
    assert_eq!(version.as_object().unwrap().keys().collect::<Vec<_>>(), ["version"]);
    for path in ["/health", "/ready"] {
        assert!(server.get(path).body.is_empty(), "{path}");
    }
    assert_eq!(refusal.header("www-authenticate"), Some("Bearer"));
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"] {
        refused(&server.post(path, &short()), 401, "invalid_api_key");
    }
    let asks = |key: &str| {
        let mut wire = Wire::open(&server);
        wire.send(format!(
            "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: {key}\r\n\r\n"
        ));
        status(&wire.rest())
    };
    assert_eq!((asks("Bearer beta"), asks("bearer alpha")), (200, 200));
    assert_eq!((asks("Bearer gamma"), asks("beta"), asks("Bearer ")), (401, 401, 401));
}

#[test]
fn pages_of_others_may_ask_only_where_the_operator_says_so() {
    let preflight = |server: &Served, origin: &str| {
        let mut wire = Wire::open(server);
        wire.send(format!(
            "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n\r\n"
        ));
        wire.rest()
    };
    let closed = Served::start("tiny-llama", [""; 0]);
    assert!(!preflight(&closed, "http://a.example").contains("access-control-allow-origin"));
    let open =
        Served::start("tiny-llama", ["--api-key", "k", "--allowed-origins", "http://a.example"]);
    // A browser sends no key with the question whether it may ask.
    let allowed = preflight(&open, "http://a.example");
    assert_eq!(status(&allowed), 200);
    assert!(allowed.contains("access-control-allow-origin: http://a.example"), "{allowed}");
    assert!(!preflight(&open, "http://b.example").contains("access-control-allow-origin"));
}

#[test]
fn a_full_queue_says_when_to_retry() {
    let server = Served::start("tiny-llama", ["--max-num-seqs", "1", "--max-num-waiting", "64"]);
    let mut never = long();
    // One has the seat, and 64 may wait.
    never["n"] = 66.into();
    let never = server.post("/v1/completions", &never);
    assert_eq!((never.status, &never.value()["error"]["param"]), (400, &"n".into()));
    let mut busy = Wire::open(&server);
    busy.post("/v1/completions", &long());
    until("sixty-three wait", || server.metric("vllm:num_requests_waiting") >= 60.0);
    let mut two = short();
    two["n"] = 20.into();
    let full = server.post("/v1/completions", &two);
    refused(&full, 429, "queue_full");
    let seconds: u32 = full.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=120).contains(&seconds), "{seconds}");
    // A client that has disconnected delays no other.
    drop(busy);
    until("nobody waits", || server.is_idle());
    server.post("/v1/completions", &two).json();
}

#[test]
fn prompts_that_wait_have_a_limit_together() {
    let args = ["--max-num-seqs", "1", "--max-num-queued-tokens", "300"];
    let server = Served::start("tiny-llama", args);
    let prompt = |n: u32| json!({"prompt": vec![7; n as usize], "max_tokens": 2, "n": 1});
    refused(&server.post("/v1/completions", &prompt(301)), 400, "prompt_too_long");
    let mut busy = Wire::open(&server);
    let mut some = long();
    some["n"] = 20.into();
    busy.post("/v1/completions", &some);
    until("many wait", || server.metric("vllm:num_requests_waiting") >= 15.0);
    let full = server.post("/v1/completions", &prompt(290));
    refused(&full, 429, "queue_full");
    drop(busy);
    until("nobody waits", || server.is_idle());
    server.post("/v1/completions", &prompt(290)).json();
}

#[test]
fn an_answer_that_takes_too_long_ends_with_an_error() {
    let args = ["--max-num-seqs", "1", "--request-timeout", "0.3"];
    let server = Served::start("tiny-llama", args);
    refused(&server.post("/v1/completions", &long()), 504, "request_timeout");
    let mut stream = long();
    stream["stream"] = true.into();
    let text = server.post("/v1/completions", &stream).text().to_owned();
    assert!(text.contains("request_timeout"), "{}", &text[text.len().saturating_sub(500)..]);
    until("nothing of it is left", || server.is_idle());
}

#[test]
fn every_request_has_an_id_and_a_line_in_the_log() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let args = ["--access-log".as_ref(), log.path().as_os_str()];
    let mut server = Served::start("tiny-llama", args);
    let mut wire = Wire::open(&server);
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": true}).to_string();
    let head = head("/v1/completions?secret=1", body.len());
    wire.send(head.replace("Host", "X-Request-Id: mine-1\r\nHost") + &body);
    let told = wire.rest();
    assert!(told.contains("x-request-id: mine-1") && told.contains("cmpl-mine-1"), "{told}");
    let (one, two) = (server.get("/health"), server.get("/health"));
    assert!(one.header("x-request-id").unwrap().len() == 32);
    assert_ne!(one.header("x-request-id"), two.header("x-request-id"));
    server.get("/nowhere");
    server.signal("TERM");
    assert!(server.ended(crate::wire::PATIENCE).success());
    let text = std::fs::read_to_string(log.path()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4, "{text}");
    let line = &lines[0];
    assert_eq!(line["request_id"], "mine-1");
    assert_eq!((&line["method"], &line["path"]), (&"POST".into(), &"/v1/completions".into()));
    assert_eq!((&line["status"], &line["complete"]), (&200.into(), &true.into()));
    assert_eq!((&line["prompt_tokens"], &line["completion_tokens"]), (&3.into(), &4.into()));
    assert_eq!((&line["cached_tokens"], &line["client"]), (&0.into(), &"127.0.0.1".into()));
    for time in ["ms", "queue_ms", "ttft_ms"] {
        assert!(line[time].as_f64().is_some_and(|ms| ms >= 0.0), "{line}");
    }
    assert_eq!((&lines[3]["status"], &lines[3]["ttft_ms"]), (&404.into(), &Value::Null));
}

#[test]
fn a_short_queue_refuses_no_request_that_finds_a_free_seat() {
    let args = ["--max-num-seqs", "128", "--max-num-waiting", "1"];
    let server = Served::start("tiny-llama", args);
    let mut body = short();
    body["max_tokens"] = 64.into();
    body["ignore_eos"] = true.into();
    let mut wires: Vec<Wire> = (0..64).map(|_| Wire::open(&server)).collect();
    for wire in &mut wires {
        wire.post("/v1/completions", &body);
    }
    let statuses: Vec<u16> = wires.iter_mut().map(|wire| status(&wire.rest())).collect();
    assert_eq!(statuses, [200; 64]);
    assert_eq!(server.metric("vllm:admission_rejections_total"), 0.0);
    // The answers to one request find seats as well.
    let mut many = short();
    many["n"] = 100.into();
    server.post("/v1/completions", &many).json();
}
