//! `strata bench agents` against a server of ours, and against one that tells of leases.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::scripted::read_request;
use crate::served::{Served, command};

fn bench(url: &str, args: &[&str]) -> Output {
    command().args(["bench", "agents", "--base-url", url]).args(args).output().unwrap()
}

#[track_caller]
fn report(url: &str, args: &[&str]) -> Value {
    let output = bench(url, &[args, &["--output", "-"]].concat());
    assert!(output.status.success(), "{}", told(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file of so many jobs of three turns.
fn jobs(number: usize) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for at in 0..number {
        let job = json!({"job": format!("j{at}"), "arrival": 0.05 * at as f64, "turns": [
            {"prompt_tokens": 60, "output_tokens": 12, "tool": "ls", "tool_seconds": 0.05},
            {"prompt_tokens": 110, "output_tokens": 12, "tool": "cat", "tool_seconds": 0.2},
            {"prompt_tokens": 160, "output_tokens": 8},
        ]});
        writeln!(file, "{job}").unwrap();
    }
    file
}

#[test]
fn prompts_grow_as_the_file_says_and_find_what_the_last_turn_left() {
    let server = Served::start("tiny-qwen3", [""; 0]);
    let file = jobs(3);
    let file = file.path().to_str().unwrap();
    let ids = ["--agents", file, "--endpoint", "completions", "--token-ids", "10,300"];
    let exact = report(&server.url("/v1"), &ids);
    assert_eq!((&exact["completed"], &exact["failed"]), (&json!(3), &json!(0)), "{exact}");
    for (turn, (prompt, output, cached)) in
        exact["turns"].as_array().unwrap().iter().zip([(60, 12, 0), (110, 12, 64), (160, 8, 112)])
    {
        assert_eq!(turn["prompt_tokens"], f64::from(prompt), "{turn}");
        assert_eq!(turn["completion_tokens"], f64::from(output), "{turn}");
        // All full blocks of the prompt before it and of its output, but for the last token.
        assert_eq!(turn["cached_tokens"], f64::from(cached), "{turn}");
    }
    // The tools of each job take 0.25 s.
    let (first, job) = (&exact["jobs"][0], exact["p50_job_s"].as_f64().unwrap());
    assert!(first["seconds"].as_f64().unwrap() >= 0.25 && job >= 0.25, "{exact}");
    assert_eq!(first["turns"][1]["tool"], "cat");
    // The server has tokens of the chat template, and its count corrects the turns behind the first.
    let chat = report(
        &server.url(""),
        &["--agents", file, "--tokenizer", "tiny"].map(|arg| {
            if arg == "tiny" {
                concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-qwen3")
            } else {
                arg
            }
        }),
    );
    assert_eq!(chat["completed"], 3, "{chat}");
    for (turn, planned) in chat["turns"].as_array().unwrap().iter().zip([60.0, 110.0, 160.0]) {
        let prompt = turn["prompt_tokens"].as_f64().unwrap();
        assert!((prompt - planned).abs() <= 24.0, "{prompt} of {planned}: {chat}");
    }
}

#[test]
fn jobs_of_a_coding_agent_arrive_at_a_rate() {
    let server = Server::start();
    let output = bench(&server.url, &["--jobs", "2", "--request-rate", "50", "--seed", "5"]);
    assert!(output.status.success(), "{}", told(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for part in ["2 of 2 finished", "50 jobs/s, a Poisson process; seed 5", "p95", "requests"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let asked = server.asked();
    assert_eq!(asked.len(), 16);
    let of = |job: &str| asked.iter().filter(|body| body["job_id"] == job).collect::<Vec<_>>();
    for job in [of("agents-5-0"), of("agents-5-1")] {
        let last: Vec<_> = job.iter().map(|body| body["is_last_step"] == true).collect();
        assert_eq!(last, [false, false, false, false, false, false, false, true]);
        for two in job.windows(2) {
            let [before, after] = [two[0], two[1]].map(|b| b["messages"].as_array().unwrap());
            assert_eq!(after[..before.len()], before[..], "the history");
            assert_eq!(after.len(), before.len() + 2, "its response, and the tool's result");
        }
    }
}

#[test]
fn leased_blocks_are_reported_gap_by_gap() {
    let server = Server::start();
    let file = jobs(1);
    let file = file.path().to_str().unwrap();
    let report = report(&server.url, &["--agents", file, "--verify-pins"]);
    let gaps = report["jobs"][0]["gaps"].as_array().unwrap();
    let blocks = |gap: &Value| {
        gap["polls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["blocks"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(gaps.iter().map(blocks).collect::<Vec<_>>(), [[4], [8], [0]], "{report}");
    assert_eq!((&gaps[0]["tool"], &gaps[2]["seconds"]), (&json!("ls"), &json!(0.0)));
    let table = bench(&server.url, &["--agents", file, "--verify-pins"]).stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.contains("leased blocks") && table.contains("turn"), "{table}");
}

#[test]
fn what_cannot_be_measured_is_an_error_that_says_why() {
    let server = Served::start("tiny-llama", [""; 0]);
    // The first prompt of the table fits the model, the last one does not.
    let output = bench(
        &server.url(""),
        &["--jobs", "1", "--endpoint", "completions", "--token-ids", "10,300"],
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("1 failed") && text.contains("status 400: turn"), "some turns: {text}");
    assert!(!output.status.success(), "no job has finished");
    assert!(told(&output).contains("no job finished: turn"), "{}", told(&output));
    let unknown = bench(&server.url(""), &["--jobs", "1", "--model", "no such model"]);
    assert!(!unknown.status.success());
    assert!(
        told(&unknown).contains("no request succeeded: turn 1: status 404"),
        "{}",
        told(&unknown)
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    let empty = bench(&server.url(""), &["--agents", file.path().to_str().unwrap()]);
    assert!(told(&empty).contains("the file has no jobs"), "{}", told(&empty));
}

/// A server that answers every chat, and says that 4 blocks are leased after the first one, 8 after the second, and
/// none after a last step.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<Value>>>::default();
        let server = Self { url, asked: Arc::clone(&asked) };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let asked = Arc::clone(&asked);
                std::thread::spawn(move || answer(stream.unwrap(), &asked));
            }
        });
        server
    }

    fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, asked: &Mutex<Vec<Value>>) {
    let (first, body) = read_request(&mut BufReader::new(stream.try_clone().unwrap()));
    let text = if first.contains("/metrics") {
        let asked = asked.lock().unwrap();
        let last = asked.last().is_some_and(|body| body["is_last_step"] == true);
        let blocks = if last { 0 } else { 4 * asked.len() };
        format!("strata:leases 1\nstrata:kv_blocks{{state=\"leased\"}} {blocks}\n")
    } else if first.contains("/models") {
        json!({"data": [{"id": "scripted"}]}).to_string()
    } else {
        asked.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
        let usage = json!({"prompt_tokens": 50, "completion_tokens": 3});
        let message = json!({"role": "assistant", "content": "Hm."});
        json!({"choices": [{"message": message}], "usage": usage}).to_string()
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{text}", text.len()).as_bytes()).ok();
}
