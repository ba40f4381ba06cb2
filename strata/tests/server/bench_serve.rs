//! `strata bench serve` against a server of ours, and against servers that misbehave.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::served::{Served, command};

/// Token ids that every tiny model has.
const IDS: [&str; 2] = ["--token-ids", "10,300"];

fn bench(url: &str, args: &[&str]) -> Output {
    command().args(["bench", "serve", "--url", url]).args(args).output().unwrap()
}

#[track_caller]
fn report(url: &str, args: &[&str]) -> Value {
    let output = bench(url, &[args, &["--json", "-"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_token_is_counted_in_both_kinds_of_load() {
    let server = Served::start("tiny-llama", [""; 0]);
    let url = server.url("");
    let shape =
        [&IDS[..], &["--input-len", "20", "--output-len", "6", "--num-prompts", "12"]].concat();
    for load in [["--concurrency", "3"], ["--rate", "200"]] {
        let report = report(&url, &[&shape[..], &load].concat());
        assert_eq!(report["model_id"], "tiny");
        assert_eq!((&report["completed"], &report["failed"]), (&json!(12), &json!(0)), "{report}");
        assert_eq!(report["total_input_tokens"], 12 * 20);
        assert_eq!(report["total_output_tokens"], 12 * 6);
        assert_eq!(report["counted_by_server"], true);
        for latency in ["ttft", "tpot", "e2el", "send_delay"] {
            let (p50, p99) =
                (&report[format!("p50_{latency}_ms")], &report[format!("p99_{latency}_ms")]);
            assert!(p50.as_f64().unwrap() <= p99.as_f64().unwrap(), "{latency}: {report}");
        }
        if load[0] == "--concurrency" {
            assert!(report["max_concurrent_requests"].as_u64().unwrap() <= 3, "{report}");
        }
    }
}

#[test]
fn a_dataset_is_replayed_and_each_request_reported() {
    let server = Served::start("tiny-llama", [""; 0]);
    let dir = tempfile::tempdir().unwrap();
    let (data, timeline, plot) = (
        dir.path().join("asks.jsonl"),
        dir.path().join("timeline.jsonl"),
        dir.path().join("p.svg"),
    );
    let asks = [
        json!({"tokens": [20, 21, 22], "output_tokens": 3, "arrival": 0.0}),
        json!({"prompt": "Once upon", "max_tokens": 4, "arrival": 0.02}),
        json!({"prompt": [30, 31], "max_tokens": 5, "arrival": 0.01}),
    ];
    std::fs::write(&data, asks.map(|ask| ask.to_string()).join("\n")).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let files = [path(&data), path(&timeline), path(&plot)];
    let args = [
        ["--dataset", &files[0]],
        ["--timeline", &files[1]],
        ["--plot", &files[2]],
        ["--ignore-eos", "true"],
        ["--goodput", "ttft:60000,itl:60000,tpot:60000,e2e:60000"],
        ["--probe", "/health"],
    ];
    // OpenAI's tools take the URL with /v1.
    let report = report(&server.url("/v1"), args.as_flattened());
    assert_eq!(report["completed"], 3, "{report}");
    assert_eq!(report["good_fraction"], 1.0);
    assert_eq!(report["probe_failed"], 0);
    let told = lines(&timeline);
    let field = |name: &str| told.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("index"), [0, 1, 2]);
    assert_eq!(field("output_tokens"), [3, 5, 4]);
    assert_eq!(field("due"), [0.0, 0.01, 0.02]);
    assert!(told.iter().all(|line| line["sent"].as_f64() >= line["due"].as_f64()), "{told:?}");
    let svg = std::fs::read_to_string(&plot).unwrap();
    for word in ["<svg", "TTFT", "ITL", "E2E", "output tokens/s", "</svg>"] {
        assert!(svg.contains(word), "{word} is missing in {svg}");
    }
}

#[test]
fn a_table_is_for_people_and_a_server_that_is_not_there_is_an_error() {
    let server = Served::start("tiny-llama", [""; 0]);
    let args =
        [&IDS[..], &["--num-prompts", "2", "--input-len", "8", "--output-len", "2"]].concat();
    let output = bench(&server.url(""), &args);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for word in ["2 completed, 0 failed", "TTFT", "E2E", "output tokens/s"] {
        assert!(text.contains(word), "{text}");
    }
    // A port that was free a moment ago.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = bench(&format!("http://{gone}"), &[]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.starts_with("error: "), "{told}");
}

#[test]
fn a_server_that_refuses_the_model_ends_the_run_with_its_own_words() {
    let server = Served::start("tiny-llama", [""; 0]);
    let output = bench(&server.url(""), &["--model", "another"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("404") && told.contains("another"), "{told}");
}

/// A server that gives each connection the next of some answers, byte for byte, and then the last one for ever.
fn scripted(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (i, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut asked = Vec::new();
            // The client's bodies end with the brace of their object.
            while !asked.ends_with(b"}") {
                let mut bytes = [0; 4096];
                match stream.read(&mut bytes) {
                    Ok(0) | Err(_) => break,
                    Ok(n) => asked.extend_from_slice(&bytes[..n]),
                }
            }
            let answer = answers.get(i).or(answers.last()).unwrap();
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

/// An answer in events, on a connection that ends with it.
macro_rules! events {
    ($($event:literal),*) => {
        concat!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
            $("data: ", $event, "\n\n"),*
        )
    };
}

#[test]
fn failures_are_counted_by_their_kind_and_chunks_where_nobody_counts_tokens() {
    let url = scripted(&[
        events!(
            r#"{"choices":[{"text":"a"}]}"#,
            r#"{"choices":[{"text":"b","finish_reason":"stop"}]}"#,
            "[DONE]"
        ),
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        events!(r#"{"choices":[{"text":"a"}]}"#),
        events!(r#"{"choices":[{"text":"a"}]}"#, r#"{"error":{"message":"the engine failed"}}"#),
        events!("[DONE]"),
        events!("what is this"),
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
        "",
    ]);
    let args = [
        "--model",
        "m",
        "--warmup",
        "0",
        "--num-prompts",
        "8",
        "--concurrency",
        "1",
        "--seed",
        "4",
    ];
    let report = report(&url, &args);
    assert_eq!((&report["completed"], &report["failed"]), (&json!(1), &json!(7)));
    let errors = json!({
        "broken connection": 1, "cut off": 1, "error event": 1, "no tokens": 1, "status 429": 1,
        "unreadable": 2,
    });
    assert_eq!(report["errors"], errors, "{report}");
    assert_eq!(
        report["error_examples"]["error event"],
        "the stream ended with an error: the engine failed"
    );
    assert_eq!(report["rate_limited"]["max_retry_after_s"], 7);
    assert_eq!(
        (&report["total_output_tokens"], &report["counted_by_server"]),
        (&json!(2), &json!(false))
    );
}

#[test]
fn an_interrupted_run_tells_what_it_has_and_fails() {
    // A server that takes the connection, and that is all.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut command = command();
    command.args(["bench", "serve", "--model", "m", "--warmup", "0", "--num-prompts", "3"]);
    command.args(["--concurrency", "1", "--url", &url]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let _connection = listener.accept().unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let (table, told) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(table.contains("0 completed"), "{table}");
    assert!(told.contains("interrupted: 3 requests"), "{told}");
}

#[test]
fn a_run_without_any_answer_fails() {
    let url =
        scripted(&["HTTP/1.1 503 Gone\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbusy"]);
    let output = bench(&url, &["--model", "m", "--warmup", "0", "--num-prompts", "2"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("status 503: busy"), "{told}");
}
