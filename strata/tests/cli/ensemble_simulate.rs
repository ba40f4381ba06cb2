//! `strata ensemble simulate`: the built binary on small workloads.

use serde_json::Value;

use crate::strata::{arg, fixture, keys, strata, strata_reading};

const WORKLOAD: &str = r#"
requests = 300
spill_below = 0.5
[[lane]]
name = "debug"
max_num_seqs = 4
num_gpu_blocks = 257
[[lane]]
name = "build"
max_num_seqs = 4
num_gpu_blocks = 257
[[stream]]
name = "traces"
rate = 40.0
input = { uniform = [20, 80] }
output = { uniform = [10, 40] }
deadline = { constant = 3.0 }
lanes = [["debug", 1.0]]
second = "build"
"#;

#[test]
fn a_workload_becomes_a_report_of_each_lane() {
    let args = [
        "ensemble",
        "simulate",
        "-",
        "--requests",
        "200",
        "--seed",
        "4",
        "--json",
        "--probes",
        "3",
    ];
    let report = strata_reading(WORKLOAD.as_bytes(), args).json();
    assert_eq!(keys(&report), ["seconds", "lanes", "unrouted", "refused_quotes"]);
    let [debug, build] = report["lanes"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!((&debug["name"], &debug["offered"]), (&Value::from("debug"), &Value::from(200)));
    assert_eq!(build["offered"], 0);
    let count = |lane: &Value, field: &str| lane[field].as_u64().unwrap();
    let refused: u64 =
        debug["refused"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    let spilled = count(debug, "spilled_out");
    assert!(spilled > 0 && spilled == count(build, "spilled_in"), "{report}");
    assert_eq!(count(debug, "admitted") + refused + spilled, 200);
    let ttft = |percentile: &str| debug["ttft"][percentile].as_f64().unwrap();
    assert!(0.0 < ttft("p50") && ttft("p50") <= ttft("p99"), "{report}");
    let met = count(debug, "deadlines_met") as f64 / count(debug, "deadlines") as f64;
    assert_eq!(debug["goodput"].as_f64(), Some(met));
    let probes = report["refused_quotes"].as_object().unwrap().values();
    let probed: u64 = probes.map(|quotes| quotes["done"]["count"].as_u64().unwrap()).sum();
    assert_eq!(probed, 3);
}

#[test]
fn without_json_the_report_is_text() {
    let ran = strata_reading(WORKLOAD.as_bytes(), ["ensemble", "simulate", "-"]);
    let text = ran.text();
    for part in ["debug\n", "300 offered", "deadline_unreachable", "ttft", "quotes"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn an_invalid_workload_is_one_line_that_says_what_to_do() {
    let text = WORKLOAD.replace("[[\"debug\", 1.0]]", "[[\"debugger\", 1.0]]");
    let ran = strata_reading(text.as_bytes(), ["ensemble", "simulate", "-"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
    let said = "error: stdin: invalid workload: stream `traces` names the lane `debugger`";
    assert!(ran.stderr.starts_with(said) && ran.stderr.lines().count() == 1, "{ran:?}");
}

const TRAFFIC: &str = r#"
requests = 200
[[stream]]
name = "traces"
rate = 20.0
input = { uniform = [20, 80] }
output = { uniform = [10, 40] }
deadline = { constant = 5.0 }
intent = "debug"
[[stream]]
name = "builds"
rate = 20.0
input = { uniform = [20, 80] }
output = { uniform = [10, 40] }
deadline = { constant = 5.0 }
intent = "build_fix"
"#;

#[test]
fn the_demo_is_simulated_with_its_router() {
    let args = ["ensemble", "simulate", "demo", "-", "--json"];
    let report = strata_reading(TRAFFIC.as_bytes(), args).json();
    assert_eq!(keys(&report), ["seconds", "lanes", "unrouted", "escalation", "refused_quotes"]);
    let lanes = report["lanes"].as_array().unwrap();
    let offered = |name: &str| {
        let lane = lanes.iter().find(|lane| lane["name"] == name);
        lane.and_then(|lane| lane["offered"].as_u64()).unwrap()
    };
    assert_eq!((lanes.len(), offered("debug") + offered("build")), (8, 200), "{report}");
    assert!(offered("debug") > 50 && offered("build") > 50, "{report}");
}

#[test]
fn a_workload_that_does_not_fit_the_ensemble_is_one_line_that_says_so() {
    let text = TRAFFIC.replace("intent = \"debug\"", "lanes = [[\"python\", 1.0]]");
    let ran = strata_reading(text.as_bytes(), ["ensemble", "simulate", "demo", "-"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
    let said = "error: stdin: invalid workload: stream `traces` names the lane `python`";
    assert!(ran.stderr.starts_with(said) && ran.stderr.lines().count() == 1, "{ran:?}");
}

#[test]
fn every_error_of_a_workload_has_a_line() {
    let text = TRAFFIC
        .replace(
            "rate = 20.0\ninput = { uniform = [20, 80] }",
            "rate = -1.0\ninput = { uniform = [20, 80] }",
        )
        .replace("intent = \"debug\"", "intent = \"dance\"");
    let ran = strata_reading(text.as_bytes(), ["ensemble", "simulate", "demo", "-"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines[0], "error: stdin has 3 problems:", "{ran:?}");
    for part in ["`dance`", "stream `traces`: rate", "stream `builds`: rate"] {
        assert!(lines[1..].iter().any(|line| line.contains(part)), "{part}: {ran:?}");
    }
    // Fields are checked before their values.
    let text = TRAFFIC.replace("requests = 200", "requests = \"many\"\ncolour = 1");
    let text = text.replacen("rate = 20.0", "rate = \"x\"", 1);
    let ran = strata_reading(text.as_bytes(), ["ensemble", "simulate", "demo", "-"]);
    for part in [
        "`requests` must be",
        "`colour` is unknown",
        "`stream[0].rate` must be a number, got \"x\"",
    ] {
        assert!(ran.stderr.lines().any(|line| line.contains(part)), "{part}: {ran:?}");
    }
}

#[test]
fn the_demo_needs_no_workload_and_a_lane_without_requests_shows_no_percentages() {
    let ran = strata(["ensemble", "simulate", "demo", "--requests", "200"]);
    let text = ran.text();
    assert!(text.contains("  goodput   ") && text.contains("deadlines met)"), "{text}");
    let idle = text.split("\n\n").find(|lane| lane.contains("  requests  0 offered"));
    let idle = idle.unwrap_or_else(|| panic!("no lane is idle: {text}"));
    assert!(idle.contains("quotes    -") && !idle.contains('%'), "{idle}");
}

#[test]
fn an_ensemble_file_without_a_workload_is_an_error_that_asks_for_one() {
    let file = fixture("../deploy/ensemble-demo.toml");
    let ran = strata(["ensemble", "simulate", &file]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("is an ensemble file: give a workload as well"), "{ran:?}");
}

#[test]
fn specialists_on_other_machines_are_left_out_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ensemble.toml");
    let text = "model = \"m\"\n[[specialist]]\nname = \"far\"\nreplicas = 0\n\
                remotes = [{ url = \"http://h/v1\", model = \"m\" }]\n[[specialist]]\nname = \"debug\"\n\
                intents = [\"debug\", \"build_fix\"]\n";
    std::fs::write(&file, text).unwrap();
    let args = ["ensemble", "simulate", &arg(&file), "-", "--json"];
    let ran = strata_reading(TRAFFIC.as_bytes(), args);
    assert!(ran.stderr.contains("note: specialist `far` runs on other machines only"), "{ran:?}");
    let report = ran.json();
    let lanes: Vec<&Value> =
        report["lanes"].as_array().unwrap().iter().map(|own| &own["name"]).collect();
    assert_eq!(lanes, ["debug"]);
    assert_eq!(report["lanes"][0]["offered"], 200);
}
