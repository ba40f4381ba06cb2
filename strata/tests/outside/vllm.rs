//! vLLM's own bench client, a static program out of vLLM's wheel: what it measures vLLM with, it must be able to
//! measure us with.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::served::{Served, fixture};
use crate::{finish, wanted};

const MODEL: &str = "tiny-qwen3";
const PROMPTS: u64 = 24;

/// Measure a server, and return the figures that came out.
fn measure(program: &Path, server: &Served, more: &[&str]) -> Value {
    let results = tempfile::tempdir().unwrap();
    let mut bench = Command::new(program);
    bench.args(["bench", "serve", "--base-url", &server.url(""), "--served-model-name", "tiny"]);
    bench.arg("--model").arg(fixture(MODEL)).arg("--tokenizer").arg(fixture(MODEL));
    bench.args([
        "--dataset-name",
        "random",
        "--random-input-len",
        "40",
        "--random-output-len",
        "12",
    ]);
    bench.args(["--num-prompts", &PROMPTS.to_string(), "--ignore-eos", "--disable-tqdm"]);
    bench.args(["--save-result", "--result-filename", "figures.json", "--result-dir"]);
    bench.arg(results.path()).args(more);
    let said = finish(&mut bench, Duration::from_secs(180));
    let figures = std::fs::read(results.path().join("figures.json"));
    let figures = figures.unwrap_or_else(|why| panic!("{why}\n{said}"));
    serde_json::from_slice(&figures).unwrap()
}

#[test]
fn vllms_bench_client_measures_every_request_without_a_failure() {
    let Some(program) = wanted("STRATA_VLLM_BENCH") else { return };
    let server = Served::start(MODEL, [""; 0]);
    let ways: [&[&str]; 4] = [
        &["--backend", "openai", "--prompt-token-ids"],
        &["--backend", "openai", "--max-concurrency", "4"],
        &["--backend", "vllm", "--request-rate", "40"],
        &["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"],
    ];
    for way in ways {
        let figures = measure(&program, &server, way);
        assert_eq!(figures["completed"], PROMPTS, "{way:?}: {figures}");
        assert_eq!(figures["failed"].as_u64().unwrap_or(0), 0, "{way:?}: {figures}");
        assert_eq!(figures["total_output_tokens"], PROMPTS * 12, "{way:?}: {figures}");
    }
}
