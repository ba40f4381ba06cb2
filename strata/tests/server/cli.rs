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
    // The supervisor waits longer than the shutdown takes.
    let unit = std::fs::read_to_string(fixture("../deploy/strata.service")).unwrap();
    let patience = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    let grace = table["shutdown-grace"].as_str().unwrap().strip_suffix('s').unwrap();
    assert!(patience.parse::<u32>().unwrap() > grace.parse::<u32>().unwrap());
    // It is held for started when it says so, ended when it hangs, and may not take all memory.
    for setting in ["Type=notify", "NotifyAccess=main", "WatchdogSec=", "MemoryMax="] {
        assert!(unit.lines().any(|line| line.starts_with(setting)), "{setting}");
    }
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

/// What a server of a tiny model writes to stderr from its start to its end, which SIGTERM asks for.
fn log_of(words: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = command();
    command.args(["serve", "--port", "0", "--model"]).arg(fixture("tiny-llama")).args(words);
    command.envs(environment.iter().copied()).env_remove("RUST_LOG").stderr(Stdio::piped());
    let mut server = Served::run(command);
    let mut stderr = server.stderr();
    server.signal("TERM");
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(server.ended(std::time::Duration::from_secs(60)).code(), Some(0), "{said}");
    said
}

#[test]
fn a_server_that_others_can_reach_without_a_key_is_warned_about() {
    let open = "anyone who can reach 0.0.0.0:";
    for quiet in [&["--host", "0.0.0.0"][..], &["--host", "0.0.0.0", "--quiet"]] {
        let said = log_of(quiet, &[]);
        assert!(said.contains(open) && said.contains("--api-key or --host 127.0.0.1"), "{said}");
    }
    let said = log_of(&["--host", "0.0.0.0"], &[("STRATA_API_KEY", "")]);
    assert!(said.contains(open) && said.contains("STRATA_API_KEY is set and empty"), "{said}");
    for words in [&["--host", "0.0.0.0", "--api-key", "k"][..], &["--host", "127.0.0.2"]] {
        let said = log_of(words, &[]);
        assert!(!said.contains("WARN"), "{said}");
    }
}

#[test]
fn a_variable_that_is_no_setting_is_reported_with_the_one_it_is_like() {
    let misspelt = concat!("STRATA_", "MAX_NUM_SEQ");
    let said = log_of(&["--quiet"], &[(misspelt, "7")]);
    let warning =
        "STRATA_MAX_NUM_SEQ is not a setting and is ignored: did you mean STRATA_MAX_NUM_SEQS?";
    assert!(said.contains(warning), "{said}");
}

#[test]
fn what_a_server_reports_on_stderr_has_the_form_of_its_log() {
    let said =
        log_of(&["--override-generation-config", r#"{"temperature": 0.6, "top_p": 0.95}"#], &[]);
    assert!(said.lines().count() >= 4, "{said}");
    for line in said.lines() {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.contains('T') && time.starts_with("20"), "{line}");
        assert!(rest.trim_start().starts_with("INFO strata: "), "{line}");
    }
    assert!(
        said.contains("sampling defaults of the model: temperature=0.6, top_p=0.95 ("),
        "{said}"
    );
    assert!(said.contains("SIGTERM: 0 requests in flight; draining for up to 30 s"), "{said}");
    assert!(said.trim_end().ends_with("shut down"), "{said}");
    // With --quiet there are warnings and errors only.
    assert_eq!(log_of(&["--quiet"], &[]), "");
}

#[cfg(target_os = "linux")]
#[test]
fn a_compile_check_reports_its_sandbox_and_is_off_by_default() {
    let said = log_of(&["--compile-check", "g++"], &[]);
    assert!(said.contains("compile check: ") && said.contains("g++ for 0.05 of the"), "{said}");
    assert!(said.contains("sandbox: limits, "), "{said}");
    assert!(!log_of(&[], &[]).contains("compile check"));
    for (words, complaint) in [
        (["--compile-check", "/no/such/compiler"], "/no/such/compiler"),
        (["--compile-check", "on"], "off, g++, clang++"),
        (["--compile-check-fraction", "2"], "from 0 to 1"),
    ] {
        let model = fixture("tiny-llama");
        let model = ["--port", "0", "--model", model.to_str().unwrap()];
        let output = serve(&[&model[..], &words].concat(), &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(complaint), "{said}");
    }
}

#[test]
fn a_model_on_this_disk_is_named_as_its_directory_and_its_path_is_accepted() {
    let path = fixture("tiny-llama");
    let path = path.to_str().unwrap();
    let mut command = command();
    command.args(["--quiet", "serve", "--port", "0", path]);
    let server = Served::run(command);
    assert!(server.line().starts_with("strata: serving tiny-llama at "), "{}", server.line());
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"].as_array().unwrap().len(), 1);
    assert_eq!(models["data"][0]["id"], "tiny-llama");
    assert_eq!(models["data"][0]["root"], path);
    for name in ["tiny-llama", path] {
        let body = json!({"model": name, "prompt": "Once", "max_tokens": 1});
        assert_eq!(server.post("/v1/completions", &body).json()["model"], "tiny-llama");
    }
    let body = json!({"model": "tiny", "prompt": "Once", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &body).status, 404);
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
    for (page, files) in [("/", 3), ("/lanes", 4)] {
        whole(&server, page, files);
    }
    assert_eq!(server.get("/page/..%2Findex.html").status, 404);
}

/// Checks a page, and the files of which it consists.
fn whole(server: &Served, page: &str, files: usize) {
    let page = server.get(page);
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
    assert_eq!(found, files);
    assert!(!page.text().contains("//"), "an address of another host");
}
