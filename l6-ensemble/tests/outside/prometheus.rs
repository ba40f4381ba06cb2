//! A real Prometheus: it scrapes a server, and what lies in `deploy/` loads.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::served::Served;
use crate::{Running, finish, wanted};

const LONGEST: Duration = Duration::from_secs(60);

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
}

/// The program that comes with it and checks its files.
fn promtool(prometheus: &Path) -> Command {
    Command::new(prometheus.with_file_name("promtool"))
}

#[test]
fn the_configuration_and_the_rules_in_deploy_are_valid() {
    let Some(prometheus) = wanted("STRATA_PROMETHEUS") else { return };
    finish(promtool(&prometheus).args(["check", "config"]).arg(deploy("prometheus.yml")), LONGEST);
    finish(promtool(&prometheus).args(["check", "rules"]).arg(deploy("alerts.yml")), LONGEST);
}

#[test]
fn the_metrics_pass_the_linter_that_reads_them() {
    let Some(prometheus) = wanted("STRATA_PROMETHEUS") else { return };
    let server = Served::start("tiny-qwen3", [""; 0]);
    ask(&server);
    let metrics = server.get("/metrics");
    let mut lint = promtool(&prometheus)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    lint.stdin.take().unwrap().write_all(&metrics.body).unwrap();
    let outcome = lint.wait_with_output().unwrap();
    // 3 is for names that it would have chosen otherwise: they are vLLM's, and stay. 1 is for text it cannot read.
    let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert!(matches!(outcome.status.code(), Some(0 | 3)), "{}: {said}", outcome.status);
}

#[test]
fn a_prometheus_scrapes_a_server_and_answers_questions_about_it() {
    let Some(prometheus) = wanted("STRATA_PROMETHEUS") else { return };
    let server = Served::start("tiny-qwen3", [""; 0]);
    ask(&server);
    let dir = tempfile::tempdir().unwrap();
    let scrapes = json!({
        "global": {"scrape_interval": "200ms", "evaluation_interval": "1s"},
        "rule_files": [deploy("alerts.yml").canonicalize().unwrap()],
        "scrape_configs": [{"job_name": "strata", "static_configs": [{"targets": [server.address()]}]}],
    });
    let config = dir.path().join("prometheus.yml");
    // JSON is YAML.
    std::fs::write(&config, scrapes.to_string()).unwrap();
    // A port that was free a moment ago: Prometheus cannot be told to take any.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = Command::new(&prometheus)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _running = Running(child);
    let base = format!("http://127.0.0.1:{port}/api/v1");
    let asked = |question: &str| query(&base, question);
    eventually("the target is up", || asked("up{job=\"strata\"}") == Some(1.0));
    let tokens = "sum(vllm:generation_tokens_total{model_name=\"tiny\"})";
    eventually("the tokens are there", || asked(tokens) == Some(6.0));
    let finished =
        "sum(vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"})";
    eventually("the request is there", || asked(finished) == Some(1.0));
    let median = "histogram_quantile(0.5, vllm:time_to_first_token_seconds_bucket) > 0";
    eventually("a histogram has a median", || asked(median).is_some());
    let rules = get(&format!("{base}/rules")).unwrap();
    let groups = rules["data"]["groups"].as_array().unwrap();
    assert!(!groups.is_empty(), "{rules}");
}

fn ask(server: &Served) {
    let body = json!({"model": "tiny", "prompt": "Once", "max_tokens": 6, "ignore_eos": true});
    server.post("/v1/completions", &body).json();
}

fn get(url: &str) -> Option<Value> {
    let text = ureq::get(url).call().ok()?.into_body().read_to_string().ok()?;
    serde_json::from_str(&text).ok()
}

/// The number that a query comes to, if it comes to one.
fn query(base: &str, question: &str) -> Option<f64> {
    let mut url = String::from(base) + "/query?query=";
    for byte in question.bytes() {
        url.push_str(&format!("%{byte:02X}"));
    }
    get(&url)?["data"]["result"][0]["value"][1].as_str()?.parse().ok()
}

#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONGEST, "not within {LONGEST:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
