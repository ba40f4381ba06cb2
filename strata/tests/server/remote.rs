//! Replicas on other machines: another `strata serve` behind a lane, and servers that misbehave.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::scripted::{Scripted, Then, stream};
use crate::served::{Response, Served, command, fixture};

pub const COMPLETIONS: &str = "/v1/completions";

/// A server of an ensemble whose only specialist has so many engines and these remotes.
pub fn served(replicas: usize, remotes: &[String]) -> Served {
    let (model, remotes) = (fixture("tiny-llama"), remotes.join(", "));
    let text = format!(
        r#"
        name = "group"
        kv_memory = "32MiB"
        fallback = "one"
        [[specialist]]
        name = "one"
        model = {model:?}
        replicas = {replicas}
        remotes = [{remotes}]
        "#
    );
    Served::ensemble(&text, |command| {
        command.env("RUST_LOG", "strata=error");
    })
}

/// A remote at this address.
pub fn remote(address: &str, more: &str) -> String {
    format!("{{ url = \"http://{address}/v1\", model = \"tiny\"{more} }}")
}

pub fn ask(server: &Served, more: Value) -> Response {
    let mut body = json!({"model": null, "prompt": "int main() {", "max_tokens": 12, "seed": 7});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post(COMPLETIONS, &body)
}

/// Waits until this holds.
#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Value of the gauge of a replica.
pub fn up(server: &Served, replica: usize) -> Option<u64> {
    let name = format!("strata:remote_up{{specialist=\"one\",replica=\"{replica}\"}} ");
    let other = format!("strata:remote_up{{replica=\"{replica}\",specialist=\"one\"}} ");
    let metrics = server.get("/metrics");
    let mut lines = metrics.text().lines();
    lines.find_map(|line| line.strip_prefix(&name).or(line.strip_prefix(&other))?.parse().ok())
}

#[test]
fn a_remote_replica_has_the_tokens_of_the_server_behind_it() {
    let peer = Served::start::<&str>("tiny-llama", []);
    let server = served(0, &[remote(peer.address(), "")]);
    assert_eq!(up(&server, 0), Some(1));
    for more in [
        json!({"temperature": 0}),
        json!({"temperature": 0.9, "top_k": 20, "presence_penalty": 0.5}),
        json!({"temperature": 1, "seed": -3, "logit_bias": {"5": 3}, "ignore_eos": true}),
        json!({"temperature": 0, "prompt": [5, 6, 7], "min_tokens": 3, "max_tokens": 9}),
    ] {
        let mut more = more;
        more["return_token_ids"] = true.into();
        let (here, there) = (ask(&server, more.clone()), ask(&peer, more.clone()));
        assert_eq!(here.json()["choices"], there.json()["choices"], "{more}");
        assert_eq!(here.json()["usage"]["total_tokens"], there.json()["usage"]["total_tokens"]);
    }
    // A stop string that is found here, in the middle of the text.
    let text = ask(&peer, json!({"temperature": 0})).json()["choices"][0]["text"].clone();
    let text = text.as_str().unwrap();
    let stop: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
    let more = json!({"temperature": 0, "stop": stop});
    let (here, there) = (ask(&server, more.clone()), ask(&peer, more));
    assert_eq!(here.json()["choices"], there.json()["choices"]);
    assert_eq!(here.json()["choices"][0]["finish_reason"], "stop");
    // Streamed, and as a chat.
    let streamed = ask(&server, json!({"temperature": 0, "stream": true})).events();
    let parts = streamed.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(parts.collect::<String>(), text);
    let several = ask(&server, json!({"temperature": 1, "n": 3})).json();
    let texts: Vec<_> = (0..3).map(|at| several["choices"][at]["text"].clone()).collect();
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "choices differ: {texts:?}");
}

#[test]
fn what_a_remote_replica_lacks_is_refused_or_served_here() {
    let peer = Served::start::<&str>("tiny-llama", []);
    let alone = served(0, &[remote(peer.address(), "")]);
    for (field, value) in [
        ("logprobs", json!(1)),
        ("best_of", json!(2)),
        ("structured_outputs", json!({"regex": "a+"})),
        ("response_format", json!({"type": "json_object"})),
    ] {
        let refused = ask(&alone, json!({field: value}));
        assert_eq!(refused.status, 400, "{}", refused.text());
        let error = refused.value()["error"].clone();
        assert_eq!((&error["code"], &error["param"]), (&json!("not_relayed"), &json!(field)));
    }
    let both = served(1, &[remote(peer.address(), "")]);
    let response = ask(&both, json!({"logprobs": 1}));
    assert_eq!(response.json()["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(response.header("x-strata-replica"), Some("0"));
}

#[test]
fn a_client_that_goes_aborts_its_request_on_the_other_machine() {
    let peer = Served::start::<&str>("tiny-llama", []);
    let server = served(0, &[remote(peer.address(), "")]);
    let aborted = || {
        let metrics = peer.get("/metrics");
        let mut lines = metrics.text().lines().filter(|line| {
            line.starts_with("vllm:request_success_total{") && line.contains("\"abort\"")
        });
        lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()) > Some(0.0)
    };
    // A request may be over before its client goes: until one was aborted.
    wait_until("an aborted request", || {
        let body = json!({"prompt": [5], "max_tokens": 500, "ignore_eos": true, "stream": true});
        let mut client = post(server.address(), &body.to_string());
        client.read_exact(&mut [0; 64]).unwrap();
        drop(client);
        let idle = || peer.get("/strata/state").json()["requests"]["running"] == 0;
        wait_until("the peer is idle", idle);
        aborted()
    });
    wait_until("the relay is idle", || {
        server.get("/strata/state").json()["requests"]["running"] == 0
    });
}

/// Sends a request and returns the connection.
pub fn post(address: &str, body: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + body).as_bytes()).unwrap();
    client
}

#[test]
fn a_server_that_is_down_at_the_start_serves_when_it_is_up_and_another_one_when_it_has_gone() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = served(0, &[remote(&free.to_string(), "")]);
    assert_eq!(up(&server, 0), Some(0));
    let down = ask(&server, json!({}));
    assert_eq!(down.status, 503, "{}", down.text());
    assert!(down.header("retry-after").is_some());
    let lane = &server.get("/strata/lanes").json()["lanes"][0];
    assert_eq!((&lane["engines"], &lane["down"][0]["replica"]), (&json!(0), &json!(0)));
    assert!(lane["down"][0]["why"].as_str().unwrap().contains("cannot be reached"), "{lane}");
    let with_engine = served(1, &[remote(&free.to_string(), "")]);
    assert_eq!(ask(&with_engine, json!({})).header("x-strata-replica"), Some("0"));
    let port = free.port().to_string();
    let mut peer = command();
    peer.args(["--quiet", "serve", "--served-model-name", "tiny", "--port", &port, "--model"]);
    peer.arg(fixture("tiny-llama"));
    let peer = Served::run(peer);
    wait_until("the server is up", || up(&server, 0) == Some(1));
    assert_eq!(ask(&server, json!({})).status, 200);
    drop(peer);
    // The first request may find out, and then it fails.
    let failed = ask(&server, json!({}));
    assert_eq!(failed.status, 503, "{}", failed.text());
    assert_eq!(up(&server, 0), Some(0));
    assert_eq!(ask(&with_engine, json!({})).status, 200);
}

/// A stream that breaks off behind its first tokens.
const BROKEN_STREAM: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n35\r\n\
                 data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[5, 6]}]}\n\n\r\n";

#[test]
fn a_server_that_misbehaves_fails_its_request_with_a_typed_error_and_nothing_else() {
    let event = stream!("data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[5]}]}\n\n");
    let text_only = stream!("data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
    let foreign = stream!("data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[4000000000]}]}\n\n");
    let odd_end = stream!("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"error\"}]}\n\n");
    let refused = "HTTP/1.1 404 Not Found\r\ncontent-length: 32\r\nconnection: close\r\n\r\n\
                   {\"error\":{\"message\":\"no model\"}}";
    let broken = "HTTP/1.1 500 Oh\r\ncontent-length: 4\r\nconnection: close\r\n\r\nouch";
    for (bytes, then, says, times) in [
        (stream!("garbage\n"), Then::Close, "malformed", 1),
        (stream!("data: {\"choi"), Then::Close, "stopped before its end", 1),
        (stream!("data: [DONE]\n\n"), Then::Close, "no finish reason", 1),
        (event, Then::Close, "stopped before its end", 1),
        (event, Then::Hang, "sent nothing for 2 seconds within", 1),
        (BROKEN_STREAM, Then::Close, "cannot be reached", 1),
        ("", Then::Hang, "sent nothing for 2 seconds before", 1),
        ("", Then::Close, "cannot be reached", 2),
        ("not even HTTP\r\n\r\n", Then::Close, "cannot be reached", 2),
        (text_only, Then::Close, "without token ids", 1),
        (foreign, Then::Close, "relay to the same model", 1),
        (odd_end, Then::Close, "finish reason is `error`", 1),
        (refused, Then::Close, "404: no model", 1),
        (broken, Then::Close, "500: ouch", 2),
    ] {
        let peer = Scripted::new(bytes, then);
        let address = peer.address.clone();
        let timeout = if then == Then::Hang { ", timeout_seconds = 2" } else { "" };
        let server = served(0, &[remote(&address, timeout)]);
        let failed = ask(&server, json!({}));
        assert_eq!(failed.status, 503, "{bytes}: {}", failed.text());
        let error = &failed.value()["error"];
        assert_eq!(error["code"], "remote_failed", "{bytes}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(says), "{bytes}: {message}");
        assert!(!message.contains(&address), "clients see no addresses: {message}");
        assert_eq!(peer.count(), times, "{bytes}");
        assert_eq!(server.get("/health").status, 200);
    }
}

#[test]
fn a_stream_that_breaks_ends_with_an_error_event_and_the_next_request_goes_elsewhere() {
    let broken = Scripted::new(BROKEN_STREAM, Then::DieLater);
    let peer = Served::start::<&str>("tiny-llama", []);
    let server = served(0, &[remote(&broken.address, ""), remote(peer.address(), "")]);
    let body = json!({"model": "one", "prompt": "int", "max_tokens": 12, "stream": true});
    let mut client = post(server.address(), &body.to_string());
    let mut text = String::new();
    let mut part = [0; 4096];
    // It breaks when its first tokens have arrived.
    while !text.contains("data:") {
        let read = client.read(&mut part).unwrap();
        assert!(read > 0, "no event: {text}");
        text += std::str::from_utf8(&part[..read]).unwrap();
    }
    broken.release();
    while !text.contains("remote_failed") {
        let read = client.read(&mut part).unwrap();
        assert!(read > 0, "no error event: {text}");
        text += std::str::from_utf8(&part[..read]).unwrap();
    }
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(broken.count(), 1, "no failover after the first token");
    let next = ask(&server, json!({}));
    assert_eq!((next.status, next.header("x-strata-replica")), (200, Some("1")));
    assert_eq!((up(&server, 0), up(&server, 1)), (Some(0), Some(1)));
}
