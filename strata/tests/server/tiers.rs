//! Tiers of a server: what they keep when it stops, and what it shows of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::served::{Served, command, fixture};
use crate::wire::PATIENCE;

/// A server that stores the chunks of every request.
fn server(more: &[&str]) -> Served {
    Served::start("tiny-llama", args(more))
}

fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["--policy", "lmcache", "--kv-tier-chunk", "32", "--precision", "f32"][..], more].concat()
}

/// A prompt of 150 tokens, and 20 more: five chunks, as the last token is not computed.
fn body(own: u32) -> Value {
    let prompt: Vec<u32> = (0..150).map(|at| 3 + (at * 7 + own * 31) % 300).collect();
    json!({"prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": true})
}

/// Number of whole chunks in a directory.
fn chunks(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().ends_with(".kv")).count()
}

#[test]
fn what_waits_to_be_written_is_written_before_a_server_ends() {
    let dir = tempfile::tempdir().unwrap();
    let disk = ["--kv-tier-disk", dir.path().to_str().unwrap()];
    let mut first = server(&disk);
    let want = first.post("/v1/completions", &body(1)).json();
    first.signal("TERM");
    assert_eq!(first.ended(PATIENCE).code(), Some(0));
    assert_eq!(chunks(dir.path()), 5);
    let second = server(&disk);
    let got = second.post("/v1/completions", &body(1)).json();
    assert_eq!(got["choices"], want["choices"]);
}

/// A Redis server that has nothing, and answers a write one byte at a time, for ever.
fn slow_redis() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer_slowly(stream.unwrap()));
        }
    });
    address
}

fn answer_slowly(mut stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let number = |reader: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.trim_end().get(1..)?.parse::<usize>().ok()
    };
    loop {
        let parts = number(&mut reader)?;
        let mut name = Vec::new();
        for part in 0..parts {
            let mut bytes = vec![0; number(&mut reader)? + 2];
            reader.read_exact(&mut bytes).ok()?;
            if part == 0 {
                name = bytes;
            }
        }
        if name == b"EXISTS\r\n" {
            stream.write_all(b":0\r\n").ok()?;
            continue;
        }
        stream.write_all(b"+").ok()?;
        // No read of the client times out.
        while stream.write_all(b"O").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
        return None;
    }
}

/// A server whose tier never ends a write, stopped after a request.
fn stopped_while_writing() -> Served {
    let redis = slow_redis().to_string();
    let mut command = command();
    command.args(["serve", "--port", "0", "--model"]).arg(fixture("tiny-llama"));
    command.args(args(&["--kv-tier-redis", &redis])).stderr(Stdio::piped());
    let server = Served::run(command);
    server.post("/v1/completions", &body(1)).json();
    server.signal("TERM");
    server
}

#[test]
fn a_tier_that_does_not_write_delays_the_end_by_a_bounded_time_and_what_is_lost_is_reported() {
    let began = Instant::now();
    let mut server = stopped_while_writing();
    assert_eq!(server.ended(PATIENCE).code(), Some(0));
    assert!(began.elapsed() >= Duration::from_secs(5), "it tried");
    let mut log = String::new();
    server.stderr().read_to_string(&mut log).unwrap();
    assert!(log.contains("5 chunks of keys and values were not written within 5s"), "{log}");
}

#[test]
fn a_second_signal_ends_a_server_that_waits_for_a_tier() {
    let mut server = stopped_while_writing();
    let mut log = BufReader::new(server.stderr()).lines();
    assert!(log.any(|line| line.unwrap().contains("shut down")), "the responses are sent");
    server.signal("TERM");
    assert_eq!(server.ended(Duration::from_secs(4)).code(), Some(143));
}
