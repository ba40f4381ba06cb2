//! A real Prometheus: it scrapes a server, and what lies in `deploy/` loads.

use std::fs::File;
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
    let log = dir.path().join("log");
    // JSON is YAML.
    std::fs::write(&config, scrapes.to_string()).unwrap();
    // A port that was free a moment ago: Prometheus cannot choose one itself.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = Command::new(&prometheus)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let _running = Running(child);
    let base = format!("http://127.0.0.1:{port}/api/v1");
    let expect = |question: &str, holds: fn(f64) -> bool| {
        let began = Instant::now();
        loop {
            match query(&base, question) {
                Ok(value) if holds(value) => break,
                answer if began.elapsed() > LONGEST => {
                    panic!("{question}: {answer:?}\n{}", std::fs::read_to_string(&log).unwrap())
                }
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    };
    expect("up{job=\"strata\"}", |up| up == 1.0);
    expect("sum(vllm:generation_tokens_total{model_name=\"tiny\"})", |tokens| tokens == 6.0);
    let finished =
        "sum(vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"})";
    expect(finished, |requests| requests == 1.0);
    let median = "histogram_quantile(0.5, vllm:time_to_first_token_seconds_bucket)";
    expect(median, |seconds| seconds > 0.0);
    let rules = get(&format!("{base}/rules")).unwrap();
    let groups = rules["data"]["groups"].as_array().unwrap();
    assert!(!groups.is_empty(), "{rules}");
}

fn ask(server: &Served) {
    let body = json!({"model": "tiny", "prompt": "Once", "max_tokens": 6, "ignore_eos": true});
    server.post("/v1/completions", &body).json();
}

fn get(url: &str) -> Result<Value, String> {
    let response = ureq::get(url).call().map_err(|why| why.to_string())?;
    let text = response.into_body().read_to_string().map_err(|why| why.to_string())?;
    serde_json::from_str(&text).map_err(|why| format!("{why}: {text}"))
}

/// The number that a query comes to, or what it comes to instead.
fn query(base: &str, question: &str) -> Result<f64, String> {
    let question: String = question.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer = get(&format!("{base}/query?query={question}"))?;
    let value = answer["data"]["result"][0]["value"][1].as_str();
    value.and_then(|value| value.parse().ok()).ok_or_else(|| answer.to_string())
}
