//! The command itself: flags, environment, file, what is said at the start, and the page.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::served::{Served, command, fixture};

/// `strata serve` with these words, to its end.
fn serve(words: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = command();
    command.arg("serve").args(words).envs(environment.iter().copied());
    command.output().unwrap()
}

#[track_caller]
fn printed(output: Output) -> (toml::Table, String) {
    let text = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    (text.parse().unwrap(), text)
}

#[track_caller]
fn refused(output: Output) -> String {
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(output.stdout.is_empty());
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    complaint
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn what_the_flags_come_to_is_printed_with_where_it_is_from() {
    let config =
        file("port = 1\nmax_num_seqs = 2\napi-key = [\"secret\"]\ngpu-memory-utilization = 0.5");
    let path = config.path().to_str().unwrap();
    let words = ["--config", path, "--print-config", "--max-model-len", "2K"];
    let (table, text) = printed(serve(&words, &[("STRATA_PORT", "5")]));
    assert_eq!(table["port"].as_integer(), Some(5));
    assert_eq!(table["max-num-seqs"].as_integer(), Some(2));
    assert_eq!(table["max-model-len"].as_str(), Some("2K"));
    assert_eq!(table["host"].as_str(), Some("127.0.0.1"));
    let from = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("{key} ")));
        line.unwrap_or_else(|| panic!("no {key}: {text}")).split_once("# ").unwrap().1
    };
    assert_eq!(from("port"), "STRATA_PORT");
    assert_eq!(from("max-num-seqs"), path);
    assert_eq!(from("max-model-len"), "command line");
    assert_eq!(from("host"), "default");
    assert!(!text.contains("secret"), "{text}");

    // What is printed is such a file, and comes to the same.
    let again = file(&text);
    let again =
        printed(serve(&["--config", again.path().to_str().unwrap(), "--print-config"], &[]));
    assert_eq!(again.0, table);
}

#[test]
fn what_lies_in_deploy_is_what_the_program_reads() {
    let path = fixture("../deploy/strata.toml");
    let (table, _) = printed(serve(&["--print-config", "--config", path.to_str().unwrap()], &[]));
    assert_eq!(table["host"].as_str(), Some("0.0.0.0"));
    // Whoever stops it waits longer than it takes to stop.
    let unit = std::fs::read_to_string(fixture("../deploy/strata.service")).unwrap();
    let patience = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    let grace = table["shutdown-grace"].as_str().unwrap().strip_suffix('s').unwrap();
    assert!(patience.parse::<u32>().unwrap() > grace.parse::<u32>().unwrap());
}

#[test]
fn what_cannot_be_meant_is_one_line_that_says_who_said_it() {
    let said = refused(serve(&[], &[("STRATA_MAX_NUM_SEQS", "0")]));
    assert!(said.starts_with("error: STRATA_MAX_NUM_SEQS: "), "{said}");
    let config = file("max-num-sequences = 4");
    let path = config.path().to_str().unwrap();
    let said = refused(serve(&["--config", path], &[]));
    assert!(said.contains(path) && said.contains("max-num-seq"), "{said}");
    let said = refused(serve(&["--tensor-parallel-size", "2"], &[]));
    assert!(said.contains("start several"), "{said}");
    let said = refused(serve(&["--block-size", "12"], &[]));
    assert!(said.contains("power of two"), "{said}");
    let model = fixture("tiny-llama");
    let model = model.to_str().unwrap();
    let said = refused(serve(&[model, "--model", model], &[]));
    assert!(said.contains("cannot be used with"), "{said}");
    let said = refused(serve(&[model, "--port", "0", "--max-model-len", "1M"], &[]));
    assert!(said.contains("max_model_len") || said.contains("1048576"), "{said}");
}

#[test]
fn a_port_that_is_taken_is_told_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // A model that is not there either: the port comes first.
    let output = serve(&["/no/such/model", "--port", &port], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&port) && said.contains("--port"), "{said}");
}

#[test]
fn vllms_words_start_a_server_that_tells_its_sizes_and_then_its_url() {
    let mut words: Vec<&str> = "--host localhost --port 0 --served-model-name tiny other --dtype float32
        --kv-cache-memory-bytes 4M --max-model-len 64 --max-num-seqs 4 --max-num-batched-tokens 128 --enforce-eager
        --no-enable-prefix-caching --enable-chunked-prefill --scheduling-policy priority --tensor-parallel-size 1
        --enable-auto-tool-choice --tool-call-parser hermes --kv-cache-dtype auto --generation-config vllm"
        .split_whitespace()
        .collect();
    words.extend(["--override-generation-config", r#"{"temperature": 0.0, "max_new_tokens": 3}"#]);
    let mut command = command();
    command.args(["serve"]).arg(fixture("tiny-llama")).args(&words).stderr(Stdio::piped());
    let mut server = Served::run(command);
    assert!(
        server.line().starts_with("strata: serving tiny at http://127.0.0.1:"),
        "{}",
        server.line()
    );
    let models = server.get("/v1/models").json();
    let names: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(names, ["tiny", "other"]);
    assert_eq!(models["data"][0]["max_model_len"], 64);
    // The sampling defaults count where a request says nothing.
    let answers: Vec<Value> = (0..2)
        .map(|_| {
            let body = json!({"model": "other", "prompt": "Once", "ignore_eos": true});
            server.post("/v1/completions", &body).json()
        })
        .collect();
    assert_eq!(answers[0]["choices"], answers[1]["choices"]);
    let mut stderr = server.stderr();
    drop(server);
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("blocks") && said.contains("weights"), "{said}");
}

#[test]
fn a_template_a_trace_and_a_file_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let (template, trace) = (dir.path().join("chat.jinja"), dir.path().join("trace.jsonl"));
    std::fs::write(&template, "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    let config = file(&format!(
        "trace = {:?}\nmax-num-seqs = 2\nshutdown-grace = \"5s\"",
        trace.to_str().unwrap()
    ));
    // A model without a template of its own.
    let words = [
        "--chat-template",
        template.to_str().unwrap(),
        "--config",
        config.path().to_str().unwrap(),
    ];
    let mut server = Served::start("tiny-llama", words);
    let body = json!({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2, "ignore_eos": true});
    let answer = server.post("/v1/chat/completions", &body).json();
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    server.signal("TERM");
    let ended = server.ended(std::time::Duration::from_secs(60));
    assert_eq!(ended.code(), Some(0), "{ended}");
    let lines = std::fs::read_to_string(&trace).unwrap();
    assert!(lines.lines().count() >= 3, "{lines}");
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{lines}");
}

#[test]
fn the_page_and_what_it_needs_come_from_the_program_and_from_nowhere_else() {
    let server = Served::start("tiny-llama", ["--api-key", "secret"]);
    let page = server.get("/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let mut found = 0;
    for word in page.text().split('"').filter(|word| word.starts_with("page/")) {
        let file = server.get(&format!("/{word}"));
        assert_eq!(file.status, 200, "{word}");
        assert!(!file.text().contains("http://") && !file.text().contains("https://"), "{word}");
        found += 1;
    }
    assert_eq!(found, 2);
    assert!(!page.text().contains("//"), "an address of another host");
    assert_eq!(server.get("/page/..%2Findex.html").status, 404);
}
