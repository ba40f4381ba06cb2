//! `/metrics` and `/strata/state`: every family is there, and right to the token.

mod allocations;
mod text;

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use crate::chat::able;
use crate::served::Served;
use crate::wire::{Wire, until};
use text::Scrape;

/// vLLM's families that mean something here: name, kind, and the labels beside `model_name` and `engine`.
const VLLM: &[(&str, &str, &[&str])] = &[
    ("vllm:num_requests_running", "gauge", &[]),
    ("vllm:num_requests_waiting", "gauge", &[]),
    ("vllm:num_requests_waiting_by_reason", "gauge", &["reason"]),
    ("vllm:kv_cache_usage_perc", "gauge", &[]),
    ("vllm:prefix_cache_queries_total", "counter", &[]),
    ("vllm:prefix_cache_hits_total", "counter", &[]),
    ("vllm:external_prefix_cache_queries_total", "counter", &[]),
    ("vllm:external_prefix_cache_hits_total", "counter", &[]),
    ("vllm:num_preemptions_total", "counter", &[]),
    ("vllm:prompt_tokens_total", "counter", &[]),
    ("vllm:prompt_tokens_by_source_total", "counter", &["source"]),
    ("vllm:prompt_tokens_cached_total", "counter", &[]),
    ("vllm:prompt_tokens_cached_by_source_total", "counter", &["source"]),
    ("vllm:generation_tokens_total", "counter", &[]),
    ("vllm:request_success_total", "counter", &["finished_reason"]),
    ("vllm:request_prompt_tokens", "histogram", &[]),
    ("vllm:request_generation_tokens", "histogram", &[]),
    ("vllm:request_max_num_generation_tokens", "histogram", &[]),
    ("vllm:request_params_max_tokens", "histogram", &[]),
    ("vllm:request_params_n", "histogram", &[]),
    ("vllm:request_prefill_kv_computed_tokens", "histogram", &[]),
    ("vllm:request_num_preemptions", "histogram", &[]),
    ("vllm:iteration_tokens_total", "histogram", &[]),
    ("vllm:time_to_first_token_seconds", "histogram", &[]),
    ("vllm:inter_token_latency_seconds", "histogram", &[]),
    ("vllm:request_time_per_output_token_seconds", "histogram", &[]),
    ("vllm:e2e_request_latency_seconds", "histogram", &[]),
    ("vllm:request_queue_time_seconds", "histogram", &[]),
    ("vllm:request_prefill_time_seconds", "histogram", &[]),
    ("vllm:request_decode_time_seconds", "histogram", &[]),
    ("vllm:request_inference_time_seconds", "histogram", &[]),
    ("strata:kv_blocks", "gauge", &["state"]),
    ("strata:leases", "gauge", &[]),
    ("strata:requests_kv_exhausted_total", "counter", &[]),
    ("strata:requests_preempted_total", "counter", &[]),
    ("strata:preempted_once_fraction", "gauge", &[]),
    ("strata:steps_total", "counter", &[]),
    ("strata:steps_replayed_total", "counter", &[]),
    ("strata:step_replay_rate", "gauge", &[]),
    ("strata:step_phase_seconds", "histogram", &["phase"]),
    ("strata:queued_tokens", "gauge", &[]),
    ("strata:owed_tokens", "gauge", &[]),
    ("strata:estimated_wait_seconds", "gauge", &[]),
    ("strata:prefill_seconds_per_token", "gauge", &[]),
    ("strata:decode_step_seconds", "gauge", &[]),
];

/// Families that a server with tiers has beside these.
const OF_TIERS: &[(&str, &str, &[&str])] = &[
    ("vllm:num_requests_kv_fetch_by_stage", "gauge", &["stage"]),
    ("strata:kv_tier_chunks", "gauge", &["tier"]),
    ("strata:kv_tier_bytes", "gauge", &["tier"]),
    ("strata:kv_tier_hits_total", "counter", &["tier"]),
    ("strata:kv_tier_misses_total", "counter", &["tier"]),
    ("strata:kv_tier_stored_bytes_total", "counter", &["tier"]),
    ("strata:kv_tier_loaded_bytes_total", "counter", &["tier"]),
    ("strata:kv_tier_evicted_chunks_total", "counter", &["tier"]),
    ("strata:kv_tier_refused_total", "counter", &["tier"]),
    ("strata:kv_tier_failed_total", "counter", &["tier"]),
    ("strata:kv_tier_corrupt_chunks_total", "counter", &["tier"]),
    ("strata:kv_tier_breaker_state", "gauge", &["tier", "state"]),
    ("strata:kv_tier_breaker_trips_total", "counter", &["tier"]),
];

/// Families that a server that speculates has beside these.
const OF_SPECULATION: &[(&str, &str, &[&str])] = &[
    ("vllm:spec_decode_num_drafts_total", "counter", &[]),
    ("vllm:spec_decode_num_draft_tokens_total", "counter", &[]),
    ("vllm:spec_decode_num_accepted_tokens_total", "counter", &[]),
    ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", &["position"]),
    ("strata:spec_decode_num_cut_draft_tokens_total", "counter", &[]),
];

/// Drafts by n-grams, as a flag.
const NGRAM: [&str; 2] =
    ["--speculative-config", r#"{"method": "ngram", "num_speculative_tokens": 3}"#];

/// Families with labels of their own.
const OTHERS: &[(&str, &str, &[&str])] = &[
    (
        "vllm:cache_config_info",
        "gauge",
        &[
            "engine",
            "block_size",
            "cache_dtype",
            "enable_prefix_caching",
            "num_gpu_blocks",
            "prefix_caching_hash_algo",
        ],
    ),
    ("vllm:admission_rejections_total", "counter", &["model_name", "reason"]),
    (
        "vllm:tool_call_parser_invocations_total",
        "counter",
        &["model_name", "mode", "outcome", "request_type"],
    ),
    ("strata:refusals_total", "counter", &["model_name", "code"]),
    ("strata:quotes", "gauge", &["model_name", "promise"]),
    ("strata:quotes_wrong_ratio", "gauge", &["model_name", "promise"]),
    ("strata:slo_latency_seconds", "gauge", &["model_name", "latency", "quantile"]),
    ("strata:slo_compile_pass_ratio", "gauge", &["model_name"]),
    ("strata:slo_preempted_once_ratio", "gauge", &["model_name"]),
    ("strata:slo_met", "gauge", &["model_name", "objective"]),
    ("http_requests_total", "counter", &["handler", "method", "status"]),
    ("http_request_duration_seconds", "histogram", &["handler", "method"]),
    ("strata:http_responses_total", "counter", &["code"]),
    ("strata:http_connections", "gauge", &[]),
    ("strata:sse_streams", "gauge", &[]),
    ("strata:build_info", "gauge", &["arch", "version"]),
    ("strata:calibration_records_total", "counter", &["outcome"]),
    ("strata:compile_checks_total", "counter", &["outcome"]),
    ("process_cpu_seconds_total", "counter", &[]),
    ("process_open_fds", "gauge", &[]),
    ("process_resident_memory_bytes", "gauge", &[]),
    ("process_start_time_seconds", "gauge", &[]),
    ("process_threads", "gauge", &[]),
];

fn scrape(server: &Served) -> Scrape {
    let response = server.get("/metrics");
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    Scrape::read(response.text())
}

/// Tokens that are no special ones.
fn prompt(length: usize, salt: usize) -> Vec<usize> {
    (0..length).map(|at| 3 + (salt * 31 + at * 7) % 300).collect()
}

fn completion(prompt: &[usize], max_tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0})
}

/// Wait until so many requests have ended: an answer may be here before the engine has counted it.
fn settle(server: &Served, requests: usize) {
    let ended = || server.metric("vllm:request_success_total");
    until("the answers are counted", || ended() == requests as f64);
}

#[test]
fn every_family_is_there_and_nothing_else() {
    families_are(&Served::start("tiny-llama", [""; 0]), VLLM);
    let dir = tempfile::tempdir().unwrap();
    let tiers = ["--kv-tier-dram", "1MiB", "--kv-tier-disk", dir.path().to_str().unwrap()];
    let with_tiers = [VLLM, OF_TIERS].concat();
    families_are(&Served::start("tiny-llama", tiers), &with_tiers);
    let speculates = [VLLM, OF_SPECULATION].concat();
    families_are(&Served::start("tiny-llama", NGRAM), &speculates);
}

/// A server has these families of an engine, and the others.
fn families_are(server: &Served, of_engine: &[(&str, &str, &[&str])]) {
    server.post("/v1/completions", &completion(&prompt(5, 0), 2)).json();
    server.get("/metrics");
    let scrape = scrape(server);
    let own = of_engine
        .iter()
        .map(|(name, kind, labels)| (*name, *kind, [&["model_name", "engine"], *labels].concat()));
    let others = OTHERS.iter().map(|(name, kind, labels)| (*name, *kind, labels.to_vec()));
    let mut missing: BTreeSet<_> = scrape.0.keys().map(String::as_str).collect();
    for (name, kind, labels) in own.chain(others) {
        assert!(missing.remove(name), "there is no {name}");
        let family = &scrape.0[name];
        assert_eq!(family.kind, kind, "{name}");
        for sample in &family.samples {
            let has = sample.labels.keys().map(String::as_str).filter(|label| *label != "le");
            let has: BTreeSet<_> = has.collect();
            assert_eq!(has, labels.iter().copied().collect(), "{name}");
        }
    }
    assert_eq!(missing, BTreeSet::new(), "families that nobody knows");
    let vllm = scrape.0.iter().filter(|(name, _)| name.starts_with("vllm:"));
    for sample in vllm.flat_map(|(_, family)| &family.samples) {
        assert!(sample.labels.get("model_name").is_none_or(|name| name == "tiny"), "{sample:?}");
        assert!(sample.labels.get("engine").is_none_or(|engine| engine == "0"), "{sample:?}");
    }
}

#[test]
fn figures_are_right_to_the_token() {
    let server = Served::start("tiny-llama", ["--precision", "f32", "--kv-memory", "768KiB"]);
    let ask = |body: &Value| server.post("/v1/completions", body).json();
    // 40 tokens are two full blocks and a half: of the second time, 32 are there.
    ask(&completion(&prompt(40, 0), 8));
    ask(&completion(&prompt(40, 0), 8));
    // Three answers to one prompt: it is computed once where it is full of blocks.
    let mut three = completion(&prompt(20, 1), 4);
    (three["n"], three["temperature"]) = (3.into(), 1.into());
    ask(&three);
    // One of a certain length that ends by itself.
    let choice = json!({"prompt": prompt(6, 2), "structured_outputs": {"choice": ["yes"]}});
    let chosen = ask(&choice);
    assert_eq!(chosen["choices"][0]["finish_reason"], "stop");
    let chosen = chosen["usage"]["completion_tokens"].as_f64().unwrap();
    settle(&server, 6);
    until("the prompts are counted", || server.metric("vllm:request_params_n_count") == 4.0);
    let now = scrape(&server);
    let (all, sum) = (|name: &str| now.all(name), |name: &str, label| now.sum(name, &[label]));

    assert_eq!(all("vllm:prompt_tokens_total"), 40.0 + 40.0 + 3.0 * 20.0 + 6.0);
    let cached = 32.0 + 2.0 * 16.0;
    assert_eq!(all("vllm:prompt_tokens_cached_total"), cached);
    assert_eq!(sum("vllm:prompt_tokens_cached_by_source_total", ("source", "device")), cached);
    let by = "vllm:prompt_tokens_by_source_total";
    assert_eq!(sum(by, ("source", "local_cache_hit")), cached);
    assert_eq!(sum(by, ("source", "local_compute")), 146.0 - cached);
    assert_eq!(all("vllm:prefix_cache_queries_total"), 146.0);
    assert_eq!(all("vllm:prefix_cache_hits_total"), cached);
    let generated = 8.0 + 8.0 + 3.0 * 4.0 + chosen;
    assert_eq!(all("vllm:generation_tokens_total"), generated);
    // What was computed of prompts, and what was generated: each token in one step.
    assert_eq!(all("vllm:iteration_tokens_total_sum"), 146.0 - cached + generated);
    assert_eq!(all("vllm:iteration_tokens_total_count"), all("strata:steps_total"));

    let success = |reason| sum("vllm:request_success_total", ("finished_reason", reason));
    assert_eq!((success("length"), success("stop")), (5.0, 1.0));
    assert_eq!((success("abort"), success("error")), (0.0, 0.0));
    assert_eq!(all("vllm:request_prompt_tokens_sum"), 146.0);
    assert_eq!(all("vllm:request_generation_tokens_sum"), generated);
    assert_eq!(all("vllm:request_prefill_kv_computed_tokens_sum"), 146.0 - cached);
    assert_eq!(all("vllm:request_params_n_sum"), 1.0 + 1.0 + 3.0 + 1.0);
    assert_eq!(all("vllm:request_max_num_generation_tokens_count"), 4.0);
    assert_eq!(all("vllm:request_max_num_generation_tokens_sum"), 8.0 + 8.0 + 4.0 + chosen);
    assert_eq!(all("vllm:request_num_preemptions_sum"), 0.0);
    for family in [
        "vllm:time_to_first_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:request_params_max_tokens",
    ] {
        assert_eq!(all(&format!("{family}_count")), 6.0, "{family}");
    }
    // Every token but the first of an answer comes some time after another.
    // What a guide leaves no choice of comes at once.
    assert_eq!(all("vllm:inter_token_latency_seconds_count"), generated - 6.0 - (chosen - 1.0));
    let parts = ["queue", "prefill", "decode"]
        .map(|part| all(&format!("vllm:request_{part}_time_seconds_sum")));
    let whole = all("vllm:e2e_request_latency_seconds_sum");
    assert!((parts.iter().sum::<f64>() / whole - 1.0).abs() < 0.01, "{parts:?} are not {whole}");

    // 768 KiB are 64 blocks of 12 KiB, one of which is never allocated; all are free again.
    assert_eq!(sum("vllm:cache_config_info", ("num_gpu_blocks", "64")), 1.0);
    assert_eq!(sum("vllm:cache_config_info", ("block_size", "16")), 1.0);
    let blocks = |state| sum("strata:kv_blocks", ("state", state));
    assert_eq!((blocks("used"), blocks("free")), (0.0, 63.0));
    assert_eq!(
        (blocks("leased"), all("strata:leases")),
        (0.0, 0.0),
        "no request is a step of a job"
    );
    // Two full ones of the first prompt, one of the second; answers were too short to fill another.
    assert_eq!(blocks("cached"), 3.0);
    assert_eq!(all("vllm:kv_cache_usage_perc"), 0.0);
    assert_eq!((all("vllm:num_requests_running"), all("strata:owed_tokens")), (0.0, 0.0));
    assert_eq!(
        sum("strata:step_phase_seconds_count", ("phase", "plan")),
        all("strata:steps_total")
    );

    let asked = [("handler", "/v1/completions"), ("method", "POST")];
    assert_eq!(now.sum("http_requests_total", &[asked[0], asked[1], ("status", "2xx")]), 4.0);
    assert_eq!(now.sum("http_request_duration_seconds_count", &asked), 4.0);
}

#[test]
fn whoever_gives_way_is_counted() {
    // Sixteen blocks of 16 tokens, for eight that want four each.
    let server = Served::start("tiny-llama", ["--precision", "f32", "--kv-memory", "204KiB"]);
    let mut body = completion(&[], 48);
    body["prompt"] = (0..8).map(|salt| prompt(16, salt)).collect();
    assert_eq!(server.post("/v1/completions", &body).json()["usage"]["completion_tokens"], 8 * 48);
    settle(&server, 8);
    let now = scrape(&server);
    let preemptions = now.all("vllm:num_preemptions_total");
    assert!(preemptions > 0.0);
    assert_eq!(now.all("vllm:request_num_preemptions_sum"), preemptions);
    let once = now.all("strata:requests_preempted_total");
    assert!((1.0..=preemptions.min(8.0)).contains(&once), "{once} of {preemptions}");
    assert_eq!(now.all("strata:preempted_once_fraction"), once / 8.0);
    // A prompt is looked up once, and counted once, however often its request comes back.
    assert_eq!(now.all("vllm:prefix_cache_queries_total"), 8.0 * 16.0);
    assert_eq!(now.all("vllm:prompt_tokens_total"), 8.0 * 16.0);
    assert_eq!(now.all("vllm:generation_tokens_total"), 8.0 * 48.0);
}

#[test]
fn clients_that_go_and_clients_that_are_sent_away_are_counted() {
    let server = Served::start("tiny-llama", ["--max-num-seqs", "1", "--max-num-waiting", "2"]);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let ask = |salt| server.post("/v1/completions", &completion(&prompt(9, salt), 60)).status;
        let threads: Vec<_> = (0..12).map(|salt| scope.spawn(move || ask(salt))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let turned_away = statuses.iter().filter(|status| **status == 429).count();
    let mut stream = completion(&prompt(9, 50), 500);
    stream["stream"] = true.into();
    let ended =
        |reason| scrape(&server).sum("vllm:request_success_total", &[("finished_reason", reason)]);
    // The engine may be done before the client is gone: then it goes again.
    let mut streams = 0;
    until("a request is aborted", || {
        let mut wire = Wire::open(&server);
        wire.post("/v1/completions", &stream);
        wire.read_until("data: ");
        drop(wire);
        streams += 1;
        settle(&server, 12 - turned_away + streams);
        ended("abort") > 0.0
    });
    assert_eq!(ended("length"), (12 - turned_away + streams - 1) as f64);
    until("its response is over", || scrape(&server).all("strata:sse_streams") == 0.0);
    server.get("/not/here");
    server.post("/v1/completions", &json!({"prompt": 1.5}));
    let now = scrape(&server);
    let reason = |reason| now.sum("vllm:admission_rejections_total", &[("reason", reason)]);
    assert_eq!(reason("max_num_queued_reqs"), turned_away as f64);
    assert_eq!(reason("max_num_queued_tokens"), 0.0);
    assert_eq!(now.sum("strata:refusals_total", &[("code", "queue_full")]), turned_away as f64);
    assert_eq!(now.sum("http_requests_total", &[("handler", "none"), ("status", "4xx")]), 1.0);
    assert_eq!(now.sum("strata:http_responses_total", &[("code", "400")]), 1.0);
}

#[test]
fn searches_for_calls_of_tools_are_counted_by_what_was_found() {
    let server = able();
    let call = "<think>Hm</think><tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let body = |text: &str, streams: bool| {
        let tools = json!([{"type": "function", "function": {"name": "now"}}]);
        let messages = json!([{"role": "user", "content": "a"}]);
        json!({
            "messages": messages, "tools": tools, "stream": streams, "max_tokens": 200,
            "structured_outputs": {"choice": [text]},
        })
    };
    for streams in [false, true] {
        let answer = server.post("/v1/chat/completions", &body("<think>Hm</think>No.", streams));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let called = server.post("/v1/chat/completions", &body(call, false)).json();
    assert_eq!(called["choices"][0]["finish_reason"], "tool_calls", "{called}");
    let now = scrape(&server);
    let count = |mode, outcome| {
        let name = "vllm:tool_call_parser_invocations_total";
        now.sum(name, &[("mode", mode), ("outcome", outcome)])
    };
    assert_eq!(count("non_streaming", "tool_call"), 1.0);
    assert_eq!(count("non_streaming", "no_tool_call"), 1.0);
    assert_eq!(count("streaming", "no_tool_call"), 1.0);
    assert_eq!(count("streaming", "tool_call"), 0.0);
}

#[test]
fn the_state_tells_who_runs_and_what_they_felt() {
    let server = Served::start("tiny-llama", ["--precision", "f32", "--kv-memory", "1536KiB"]);
    let fresh = server.get("/strata/state").json();
    assert_eq!((&fresh["model"], &fresh["state"]), (&json!("tiny"), &json!("serving")));
    assert_eq!(
        (&fresh["wait_seconds"], &fresh["recent"]["ttft_ms"]["p50"]),
        (&Value::Null, &Value::Null)
    );
    let rates = ["prefill_seconds_per_token", "decode_step_seconds"];
    assert_eq!(rates.map(|rate| &fresh["steps"][rate]), [&Value::Null; 2], "before the first step");
    assert_eq!(fresh["kv"]["total"], 127);
    server.post("/v1/completions", &completion(&prompt(40, 0), 9)).json();
    settle(&server, 1);
    let told = server.get("/strata/state").json();
    assert_eq!(told["tokens"]["prompt"], 40);
    assert_eq!(told["tokens"]["generated"], 9);
    assert_eq!(told["requests"]["finished"], 1);
    assert_eq!(told["recent"]["ttft_ms"]["count"], 1);
    assert_eq!(told["recent"]["itl_ms"]["count"], 8);
    assert!(told["recent"]["itl_ms"]["p99"].as_f64() > Some(0.0), "{told}");
    assert!(told["recent"]["generated_tokens_per_second"].as_f64() > Some(0.0), "{told}");
    assert!(told["steps"]["phases"]["forward"].as_f64() > Some(0.0), "{told}");
    assert!(told["steps"]["decode_step_seconds"].as_f64() > Some(0.0), "{told}");
    assert!(told["steps"]["prefill_seconds_per_token"].as_f64() >= Some(0.0), "{told}");
    assert_eq!(told["kv"]["used"], 0);
    // One that runs is seen, again and again until its client goes.
    let mut wire = Wire::open(&server);
    let mut stream = completion(&prompt(40, 0), 400);
    stream["stream"] = true.into();
    let mut seen = Value::Null;
    until("one is seen that runs", || {
        wire = Wire::open(&server);
        wire.post("/v1/completions", &stream);
        wire.read_until("data: ");
        seen = server.get("/strata/state").json();
        seen["running"].as_array().is_some_and(|running| !running.is_empty())
    });
    let one = &seen["running"][0];
    assert_eq!(
        (&one["prompt"], &one["cached"], &one["max_tokens"]),
        (&json!(40), &json!(32), &json!(400))
    );
    drop(wire);
    until("it is gone", || server.get("/strata/state").json()["running"] == json!([]));
}

/// Words of a file that name metrics.
fn named(file: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let letter = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == ':';
    let words = text.split(|char| !letter(char));
    let ours = ["vllm:", "strata:", "http_", "process_"];
    words.filter(|word| ours.iter().any(|ours| word.starts_with(ours))).map(str::to_owned).collect()
}

#[test]
fn dashboard_and_alerts_know_only_what_is_there() {
    // What an ensemble has beside a server of one model is there as well, and what there is of tiers and speculation.
    let dir = tempfile::tempdir().unwrap();
    let tiers = ["--kv-tier-dram", "1MiB", "--kv-tier-disk", dir.path().to_str().unwrap()];
    let alone = Served::start("tiny-llama", [&tiers[..], &NGRAM].concat());
    let servers = [alone, crate::ensemble::served("", &[])];
    // The first scrape is the first HTTP request, which the second one counts.
    servers.iter().for_each(|server| drop(server.get("/metrics")));
    let scrapes = servers.each_ref().map(scrape);
    let families = scrapes.iter().flat_map(|scrape| scrape.0.values());
    let there: BTreeSet<_> =
        families.flat_map(|family| &family.samples).map(|sample| sample.name.clone()).collect();
    for (file, least) in [("grafana-dashboard.json", 30), ("alerts.yml", 6)] {
        let named = named(file);
        assert!(named.len() >= least, "{file}: {named:?}");
        let unknown: Vec<_> = named.difference(&there).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let known: Vec<&Value> = variables.iter().map(|variable| &variable["name"]).collect();
    let repeated: Vec<_> =
        panels.iter().map(|panel| &panel["repeat"]).filter(|own| !own.is_null()).collect();
    assert_eq!(repeated, [&json!("specialist")], "there is a row for each lane");
    assert!(repeated.iter().all(|variable| known.contains(variable)), "{known:?}");
}
