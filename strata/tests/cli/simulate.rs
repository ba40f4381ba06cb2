//! `strata simulate`: the built binary on scenarios and workloads.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::strata::{arg, fixtures, keys, strata, strata_reading};

fn scenario(name: &str) -> PathBuf {
    fixtures().join("schedules/scenarios").join(format!("{name}.json"))
}

/// Every step's value of a field, with absent ones as empty lists.
fn column<'a>(trace: &'a Value, field: &str) -> Vec<&'a Value> {
    trace["steps"].as_array().unwrap().iter().map(|step| &step[field]).collect()
}

#[test]
fn a_scenario_becomes_the_trace_that_vllm_left_of_it() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["three_prompts_5_7_3_bs4", "priority_preempt_lowest", "aborts"] {
        let out = dir.path().join(name);
        let ran = strata(["simulate", &arg(scenario(name)), "--out", &arg(&out)]);
        assert_eq!(ran.text(), "", "the trace goes to its file");
        let got: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        let want = fixtures().join("schedules/traces").join(format!("{name}.json"));
        let want: Value = serde_json::from_slice(&fs::read(want).unwrap()).unwrap();
        for field in ["scheduled", "num_free_blocks", "free_queue_end"] {
            assert_eq!(column(&got, field), column(&want, field), "{name}: {field}");
        }
        assert_eq!(got["summary"], want["summary"], "{name}");
        assert_eq!(keys(&got), ["name", "block_tables", "stalled", "summary", "steps"]);
        let stdout = strata(["simulate", &arg(scenario(name))]);
        assert_eq!(stdout.text(), fs::read_to_string(&out).unwrap(), "{name}: the same on stdout");
    }
}

#[test]
fn a_scenario_may_come_from_stdin() {
    let json = fs::read(scenario("lora_keys")).unwrap();
    let ran = strata_reading(&json, ["simulate", "-"]);
    assert_eq!(ran.json()["summary"]["cached_tokens"], 24);
}

#[test]
fn bad_scenarios_are_one_line_that_says_where() {
    let good = fs::read_to_string(scenario("priority_order")).unwrap();
    let cases = [
        (good[..good.len() / 2].to_owned(), "at line"),
        (
            good.replace("\"priority\",\"block_size\"", "\"lottery\",\"block_size\""),
            "scheduling policy `lottery`",
        ),
        (good.replace("\"max_tokens\":5", "\"max_tokens\":\"five\""), "requests[0].max_tokens"),
        ("{}".to_owned(), "config"),
        (String::new(), "EOF"),
        ("[1,2]".to_owned(), "stdin"),
    ];
    for (json, want) in cases {
        let ran = strata_reading(json.as_bytes(), ["simulate", "-"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        assert!(
            ran.stderr.starts_with("error: stdin: ") && ran.stderr.contains(want),
            "{want}: {ran:?}"
        );
    }
    let ran = strata(["simulate", "no-such-file.json"]);
    assert!(
        ran.code == 1 && ran.stderr.starts_with("error: cannot read no-such-file.json"),
        "{ran:?}"
    );
}

#[test]
fn invalid_arguments_are_rejected() {
    let cases: [&[&str]; 20] = [
        &["simulate", "--workload", "b.json", "--acceptance-rate", "0.7"],
        &["simulate", "--agents", "b.json", "--max-decode-steps", "16"],
        &["simulate", "--agents", "b.json", "--prefill-chunk", "0"],
        &["simulate", "--agents", "b.json", "--compose", "mixed", "--prefill-chunk", "64"],
        &["simulate", "--workload", "-", "--num-speculative-tokens", "0", "--acceptance-rate", "1"],
        &["simulate", "--agents", "b.json", "--load-bandwidth", "1GB"],
        &["simulate", "--agents", "b.json", "--host-memory", "1GiB", "--load-bandwidth", "0"],
        &["simulate"],
        &["simulate", "a.json", "--agents", "b.json"],
        &["simulate", "--workload", "a.json", "--agents", "b.json"],
        &["simulate", "--agents", "b.json", "--rate", "-1"],
        &["simulate", "a.json", "--workload", "b.json"],
        &["simulate", "a.json", "--rate", "3"],
        &["simulate", "a.json", "--max-num-seqs", "3"],
        &["simulate", "a.json", "--block-size", "32"],
        &["simulate", "a.json", "--no-enable-prefix-caching"],
        &["simulate", "--workload", "b.json", "--out", "t.json"],
        &["simulate", "--workload", "b.json", "--rate", "0"],
        &["simulate", "--workload", "b.json", "--policy", "lottery"],
        &["simulate", "--workload", "b.json", "--goodput", "ttft"],
    ];
    for args in cases {
        let ran = strata(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}: {ran:?}");
        assert!(ran.stderr.starts_with("error: "), "{args:?}: {ran:?}");
    }
}

#[test]
fn an_option_without_effect_says_what_it_needs() {
    let workloads = fixtures().join("schedules/workloads");
    let run = |more: &[&str]| {
        let workload = arg(workloads.join("chat.json"));
        strata([&["simulate", "--workload", &workload, "--requests", "9"], more].concat())
    };
    let refused = run(&["--acceptance-rate", "0.7"]);
    let why =
        "error: --acceptance-rate has no effect without --num-speculative-tokens of at least 1";
    assert!(refused.stderr.starts_with(why), "{refused:?}");
    let refused = run(&["--max-decode-steps", "16"]);
    let why = "error: --max-decode-steps has no effect without --compose stable";
    assert!(refused.stderr.starts_with(why), "{refused:?}");
    for taken in [
        &["--acceptance-rate", "0.7", "--num-speculative-tokens", "2"][..],
        &["--max-decode-steps", "16", "--prefill-chunk", "64", "--compose", "stable"],
    ] {
        assert!(run(taken).text().contains("9 came, 9 finished"), "{taken:?}");
    }
}

#[test]
fn a_report_says_why_requests_were_rejected() {
    // Of 8 blocks of 16 tokens: more than the context, more than the pool, and one that fits.
    let list = "{\"prompt_tokens\":500,\"output_tokens\":1}\n{\"prompt_tokens\":300,\"output_tokens\":1}\n\
                {\"prompt_tokens\":300,\"output_tokens\":1}\n{\"prompt_tokens\":20,\"output_tokens\":2}\n";
    let pool = ["--num-gpu-blocks", "9", "--max-model-len", "400"];
    let told = strata_reading(list.as_bytes(), plan(&pool));
    let line =
        "requests    4 came, 1 finished, 3 rejected (2 exceeds_pool, 1 max_model_len) (fcfs)";
    assert_eq!(told.text().lines().next(), Some(line), "{told:?}");
    let json = strata_reading(list.as_bytes(), plan(&[&pool[..], &["--json"]].concat())).json();
    assert_eq!(json["rejected"], 3);
    assert_eq!(json["rejections"], serde_json::json!({"exceeds_pool": 2, "max_model_len": 1}));
    let none = strata_reading(b"{\"prompt_tokens\":20,\"output_tokens\":2}", plan(&["--json"]));
    assert_eq!(none.json()["rejections"], serde_json::json!({}));
}

const SPEC: &str = r#"{"requests":300,"input":{"uniform":[20,200]},"output":{"constant":32},
    "shared_prefix":{"tokens":64,"groups":4},"priorities":[[0,1],[9,3]],"deadline":30}"#;

fn plan(more: &[&str]) -> Vec<String> {
    ["simulate", "--workload", "-"].iter().chain(more).map(|s| (*s).to_owned()).collect()
}

#[test]
fn steps_of_stable_shapes_can_be_replayed_and_first_tokens_wait_for_it() {
    let workloads = fixtures().join("schedules/workloads");
    let files = ["arrivals.json", "ten-milliseconds.json"].map(|name| arg(workloads.join(name)));
    let base = ["simulate", "--workload", &files[0], "--cost-model", &files[1], "--rate", "200"];
    let run = |more: &[&str]| strata([&base, more].concat());
    let composed = |more: &[&str]| {
        let report = run(&[more, &["--decode-widths", "1,16,256", "--json"]].concat()).json();
        assert_eq!((&report["finished"], &report["replay"]["widest"]), (&4000.into(), &256.into()));
        assert_eq!(report["compose"], *more.get(1).unwrap_or(&"mixed"));
        [&report["replay"]["rate"], &report["ttft"]["p50"]].map(|value| value.as_f64().unwrap())
    };
    let ([mixed, first], [stable, later]) =
        (composed(&[]), composed(&["--compose", "stable", "--max-decode-steps", "4"]));
    assert!(mixed < 0.2 && stable > 0.8, "replayable: {mixed} and {stable}");
    assert!(first < later && later < 0.05, "median TTFT: {first} and {later}");

    let told = run(&["--decode-widths", "1"]);
    assert!(told.text().contains("\nreplayable  "), "{told:?}");
    assert!(!run(&[]).text().contains("replayable"), "only if it is asked for");
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let one = r#"{"config":{"block_size":16,"num_gpu_blocks":9,"num_speculative_tokens":0},
        "requests":[{"id":"a","prompt_token_ids":[1],"max_tokens":1,"output_token_ids":[5]}]}"#;
    let cases = [
        (
            "\"num_speculative_tokens\":0",
            "\"num_speculative_tokens\":18446744073709551615",
            "at most 1024",
        ),
        ("\"block_size\":16", "\"block_size\":18446744073709551600", "is too large"),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (from, to, why) in cases {
        let file = dir.path().join("scenario.json");
        fs::write(&file, one.replace(from, to)).unwrap();
        let ran = strata([arg("simulate"), arg(&file)]);
        assert!(ran.code == 1 && ran.stderr.contains(why), "{ran:?}");
    }
}

#[test]
fn drafts_that_are_right_save_steps() {
    let file = arg(fixtures().join("schedules/workloads/chat.json"));
    let run =
        |more: &[&str]| strata([&["simulate", "--workload", &file, "--rate", "1"], more].concat());
    let plain = run(&["--json"]).json();
    assert!(plain.get("speculation").is_none(), "only if it is asked for");
    let drafts = ["--num-speculative-tokens", "4", "--acceptance-rate", "0.7"];
    let report = run(&[&drafts[..], &["--json"]].concat()).json();
    let speculation = &report["speculation"];
    let [drafts_fed, accepted] =
        ["draft_tokens", "accepted_tokens"].map(|key| speculation[key].as_f64().unwrap());
    // 0.7 + 0.7^2 + 0.7^3 + 0.7^4 = 1.77 of 4.
    let share = accepted / drafts_fed;
    assert!((0.40..0.48).contains(&share), "{share} of the drafts are accepted");
    assert_eq!(report["output_tokens"], plain["output_tokens"]);
    assert!(report["steps"].as_u64() < plain["steps"].as_u64());
    assert!(run(&drafts).text().contains("\ndrafts      "));
    let wrong = run(&["--num-speculative-tokens", "4", "--acceptance-rate", "1.5"]);
    assert!(wrong.code != 0 && wrong.stderr.contains("must be from 0 to 1"), "{wrong:?}");
    let wrong = run(&["--num-speculative-tokens", "5000"]);
    let why = "num_speculative_tokens must be at most 1024, got 5000";
    assert!(wrong.code != 0 && wrong.stderr.contains(why), "{wrong:?}");
}

#[test]
fn a_workload_becomes_a_report() {
    let args =
        plan(&["--rate", "4", "--goodput", "ttft:2,itl:1", "--json", "--max-num-seqs", "16"]);
    let report = strata_reading(SPEC.as_bytes(), args).json();
    assert_eq!(report["policy"], "fcfs");
    assert_eq!((&report["requests"], &report["finished"]), (&300.into(), &300.into()));
    assert_eq!(report["output_tokens"], 300 * 32);
    for latency in ["ttft", "itl", "e2e"] {
        let at = ["p50", "p95", "p99", "max"].map(|p| report[latency][p].as_f64().unwrap());
        assert!(at[0] > 0.0 && at.is_sorted(), "{latency}: {at:?}");
    }
    assert_eq!(
        report["goodput"]["deadlines"],
        serde_json::json!({"ttft": 2.0, "itl": 1.0}),
        "in seconds"
    );
    let share = report["goodput"]["share"].as_f64().unwrap();
    assert!(
        (0.0..=1.0).contains(&share) && report["prefix_hit_rate"].as_f64().unwrap() > 0.2,
        "{report}"
    );

    let units =
        plan(&["--rate", "4", "--goodput", "ttft:2000ms,itl:1s", "--json", "--max-num-seqs", "16"]);
    assert_eq!(strata_reading(SPEC.as_bytes(), units).json(), report, "the same in units");

    let again = plan(&["--rate", "4", "--policy", "strict-priority", "--requests", "50"]);
    let told = strata_reading(SPEC.as_bytes(), &again);
    for line in [
        "requests    50 came, 50 finished (strict-priority)",
        "throughput ",
        "deadlines ",
        "ttft ",
        "itl ",
        "e2e ",
    ] {
        assert!(told.text().lines().any(|l| l.starts_with(line)), "{line}: {}", told.stdout);
    }
    assert_eq!(strata_reading(SPEC.as_bytes(), &again).text(), told.text(), "the same again");
    let other =
        plan(&["--rate", "4", "--policy", "strict-priority", "--requests", "50", "--seed", "7"]);
    assert_ne!(strata_reading(SPEC.as_bytes(), other).text(), told.text(), "another seed");
}

/// Runs jobs of agents, read from stdin.
fn agents(jobs: &str, more: &[&str]) -> Value {
    let args = ["simulate", "--agents", "-", "--json"].iter().chain(more);
    strata_reading(jobs.as_bytes(), args.map(|s| (*s).to_owned()).collect::<Vec<_>>()).json()
}

fn sample_agents() -> String {
    fs::read_to_string(fixtures().join("schedules/workloads/agents.json")).unwrap()
}

#[test]
fn jobs_of_agents_become_a_report() {
    let report = agents(&sample_agents(), &["--num-gpu-blocks", "2049"]);
    let jobs = &report["agents"];
    let counts =
        ["jobs", "finished", "ended_early", "turns"].map(|name| jobs[name].as_u64().unwrap());
    assert_eq!((counts[0], counts[1], counts[2]), (40, 40, 0));
    assert_eq!(Some(counts[3]), report["requests"].as_u64(), "each turn is a request");
    let turns = |name: &str, field: &str| jobs[name][field].as_u64().unwrap();
    assert_eq!(turns("first_turns", "turns"), 40);
    assert_eq!(turns("first_turns", "turns") + turns("later_turns", "turns"), counts[3]);
    assert!(jobs["later_turns"]["hit_rate"].as_f64() > Some(0.6), "{jobs}");
    for name in ["e2e", "tools", "wait"] {
        assert_eq!(keys(&jobs[name]), ["mean", "p50", "p90", "p99", "max"], "{name}");
    }

    let args = ["simulate", "--agents", "-", "--num-gpu-blocks", "2049"];
    let told = strata_reading(sample_agents().as_bytes(), args);
    for line in ["jobs        40 came, 40 finished,", "job hits ", "tools ", "wait "] {
        assert!(told.text().lines().any(|l| l.starts_with(line)), "{line}: {}", told.stdout);
    }
    let workload = strata_reading(SPEC.as_bytes(), plan(&["--rate", "4", "--json"])).json();
    assert!(workload.get("agents").is_none(), "a workload has no jobs");
}

#[test]
fn the_seed_decides_the_jobs_and_the_options_do_not() {
    let seeded = sample_agents().replacen('{', "{\"seed\": 3, ", 1);
    let asked = |jobs: &str, more: &[&str]| {
        let report = agents(jobs, more);
        let tokens =
            ["prompt_tokens", "output_tokens", "requests"].map(|name| report[name].as_u64());
        let tools = ["p50", "p90", "max"].map(|name| report["agents"]["tools"][name].as_f64());
        (tokens, tools)
    };
    let own = asked(&seeded, &[]);
    assert_eq!(own, asked(&sample_agents(), &["--seed", "3"]));
    assert_ne!(own, asked(&seeded, &["--seed", "4"]), "the flag is stronger than the file");
    for options in [
        &["--num-gpu-blocks", "401"][..],
        &["--policy", "priority", "--max-num-seqs", "2"],
        &["--no-enable-prefix-caching", "--max-num-batched-tokens", "256"],
    ] {
        assert_eq!(asked(&seeded, options), own, "{options:?}");
    }
    let rate = |rate: &str| agents(&seeded, &["--rate", rate])["seconds"].as_f64().unwrap();
    assert!(rate("inf") < rate("0.5") && rate("0.5") < rate("0.05"), "the flag is stronger again");
    assert_eq!(agents(&seeded, &["--requests", "7"])["agents"]["jobs"], 7);
}

#[test]
fn a_list_of_jobs_is_followed_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let cost = dir.path().join("cost.json");
    let model = r#"{"base":1,"per_prefill_token":0.5,"per_decode_token":0.25,"per_kv_byte":0,"kv_bytes_per_token":2}"#;
    fs::write(&cost, model).unwrap();
    let list = concat!(
        r#"{"job":"a","arrival":2,"turns":[{"prompt_tokens":8,"output_tokens":2,"tool":"ls","tool_seconds":3},"#,
        r#"{"prompt_tokens":14,"output_tokens":1}]}"#,
        "\n",
        r#"{"job":"b","arrival":100,"turns":[{"prompt_tokens":9000,"output_tokens":2}]}"#,
    );
    let report =
        agents(list, &["--cost-model", &arg(&cost), "--block-size", "8", "--num-gpu-blocks", "33"]);
    let jobs = &report["agents"];
    // 5 s for 8 tokens, 1.25 for one, 3 for the tool, and 4 for the 6 tokens that are not in the cache.
    assert_eq!(jobs["e2e"]["p50"], 13.25);
    assert_eq!(jobs["tools"]["p50"], 3.0);
    assert_eq!(jobs["later_turns"]["cached_tokens"], 8);
    assert_eq!(
        (&jobs["jobs"], &jobs["finished"], &jobs["ended_early"]),
        (&2.into(), &1.into(), &1.into())
    );
    assert_eq!(report["rejected"], 1, "b can never fit");
}

#[test]
fn a_cost_model_is_read_and_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cost.json");
    let list = "{\"prompt_tokens\":8,\"output_tokens\":1}\n";
    let run = |cost: &str| {
        fs::write(&file, cost).unwrap();
        strata_reading(list.as_bytes(), plan(&["--json", "--cost-model", &arg(&file)]))
    };
    let cost = r#"{"base":1,"per_prefill_token":0.5,"per_decode_token":0.25,"per_kv_byte":0.125,"kv_bytes_per_token":2}"#;
    assert_eq!(run(cost).json()["ttft"]["p50"], 1.0 + 4.0 + 2.0);
    for (bad, want) in [
        ("{}", "base"),
        (&cost.replace("0.5", "-0.5"), "per_prefill_token must be 0 or above, got -0.5"),
        (&cost.replace("\"base\"", "\"bass\""), "bass"),
        (
            &cost.replace("{\"base\"", "{\"load_bytes_per_second\":0,\"base\""),
            "load_bytes_per_second must be",
        ),
    ] {
        let ran = run(bad);
        assert!(
            ran.code == 1 && ran.stderr.contains("cost.json") && ran.stderr.contains(want),
            "{ran:?}"
        );
    }
}

#[test]
fn bad_workloads_say_where() {
    let cases = [
        ("", "the workload is empty"),
        ("{\"prompt_tokens\":8,\"output_tokens\":1}\n{\"prompt_tokens\":8}\n", "line 2"),
        ("{\"requests\":5,\"input\":{\"constant\":0},\"output\":{\"constant\":1}}", "input: "),
    ];
    for (workload, want) in cases {
        let ran = strata_reading(workload.as_bytes(), plan(&["--rate", "inf"]));
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert!(
            ran.stderr.starts_with("error: stdin: ") && ran.stderr.contains(want),
            "{want}: {ran:?}"
        );
    }
}

#[test]
fn a_host_memory_gives_back_what_the_pool_evicts() {
    let small = ["--num-gpu-blocks", "301"];
    let with = |more: &[&str]| agents(&sample_agents(), &[&small[..], more].concat());
    let mean = |report: &Value| report["agents"]["e2e"]["mean"].as_f64().unwrap();
    let loaded =
        |report: &Value| report["agents"]["later_turns"]["loaded_tokens"].as_u64().unwrap();
    let (alone, fast) = (with(&[]), with(&["--host-memory", "4GiB", "--load-bandwidth", "10GB"]));
    assert!(alone.get("host_memory").is_none() && loaded(&alone) == 0);
    assert!(loaded(&fast) > 10_000 && mean(&fast) < mean(&alone), "{fast}");
    assert!(fast["host_memory"]["loaded_bytes"].as_f64() > Some(0.0), "{fast}");
    let slow = with(&["--host-memory", "4GiB", "--load-bandwidth", "30MB"]);
    assert!(mean(&slow) > mean(&fast), "{slow}");

    let dir = tempfile::tempdir().unwrap();
    let cost = dir.path().join("cost.json");
    let model = |bandwidth: &str| {
        let own = r#""base":5e-3,"per_prefill_token":0.286e-3,"per_decode_token":0.27e-3,"per_kv_byte":0.021e-9,"kv_bytes_per_token":23040"#;
        fs::write(&cost, format!("{{{own},\"load_bytes_per_second\":{bandwidth}}}")).unwrap();
        let all = [&small[..], &["--host-memory", "4GiB", "--cost-model"]].concat();
        let path = arg(&cost);
        let all: Vec<&str> = all.into_iter().chain([path.as_str()]).collect();
        agents(&sample_agents(), &all)
    };
    assert_eq!(model("30e6"), slow, "the same in the cost model");
}

#[test]
fn bad_jobs_say_where() {
    let cases = [
        ("", "the file of jobs is empty"),
        ("{\"job\":\"a\",\"turns\":[]}", "line 1: turns: must be 1 to"),
        ("{\"jobs\":5}", "turns"),
        ("{\"job\":\"a\",\"turns\":[{\"prompt_tokens\":8}]}", "output_tokens"),
    ];
    for (jobs, want) in cases {
        let ran = strata_reading(jobs.as_bytes(), ["simulate", "--agents", "-"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert!(
            ran.stderr.starts_with("error: stdin: ") && ran.stderr.contains(want),
            "{want}: {ran:?}"
        );
    }
}

#[test]
fn help_shows_what_a_workload_looks_like() {
    let help = strata(["simulate", "--help"]);
    for part in [
        "--workload",
        "shared_prefix",
        "\"prompt_tokens\":200",
        "--agents",
        "tool_result",
        "\"tool_seconds\":0.1",
        "--cost-model",
        "--max-num-batched-tokens",
    ] {
        assert!(help.text().contains(part), "{part} is not in the help");
    }
}

#[test]
fn a_history_of_leases_is_followed_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let [cost, file] = ["cost.json", "history.json"].map(|name| dir.path().join(name));
    let model = r#"{"base":1,"per_prefill_token":0.5,"per_decode_token":0.25,"per_kv_byte":0,"kv_bytes_per_token":2}"#;
    fs::write(&cost, model).unwrap();
    let list = concat!(
        r#"{"job":"a","arrival":2,"turns":[{"prompt_tokens":8,"output_tokens":2,"tool":"ls","tool_seconds":1},"#,
        r#"{"prompt_tokens":14,"output_tokens":1}]}"#,
    );
    let (cost, path) = (arg(&cost), arg(&file));
    let more = ["--cost-model", &cost, "--block-size", "8", "--policy", "continuum"];
    agents(list, &[&more[..], &["--job-history", &path]].concat());
    let history: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    // 5 s for 8 tokens and 1.25 for one; 1 for the tool, and 4 for the 6 tokens that are not in the block of 8.
    let want = serde_json::json!({"dropped": 0, "pinned_requests": [{
        "pinned_time": 8.25, "unpinned_time": 13.25, "hit_length": 8, "job_id": "a", "tenant": null,
        "request_id": 0, "tool": "ls", "blocks": 1, "reason": "job_over",
    }]});
    assert_eq!(history, want);
}
