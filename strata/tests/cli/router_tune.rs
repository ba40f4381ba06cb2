//! `strata router tune`: the built binary on calibration streams.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::strata::{arg, strata, strata_reading};

/// A stream in which every fourth route below a score of 0.5 is an error, and none above.
fn stream(intent: &str, records: usize) -> String {
    let line = |i: usize| {
        let score = (i % 100) as f64 / 100.0;
        let outcome =
            if score < 0.5 && (i / 100).is_multiple_of(4) { "shadow_only" } else { "both" };
        let record = json!({
            "version": 1, "time": 1, "digest": format!("{i:064x}"), "intent": intent, "decided_by": "classifier",
            "score": score, "primary": {"lane": "stl"},
            "shadow": {"reason": "low_score", "lane": "algo", "agreement": {"compiles": outcome}},
        });
        format!("{record}\n")
    };
    (0..records).map(line).collect()
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
}

#[test]
fn proposals_are_toml_and_curves_an_svg() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("report.svg");
    let streams = dir.path().join("calibration");
    fs::create_dir(&streams).unwrap();
    write(&streams.join("calibration-00000001.jsonl"), &stream("review", 4000));
    write(
        &streams.join("calibration-00000002.jsonl"),
        &(stream("build fix", 40) + "{\"version\":1,"),
    );
    write(&streams.join("notes.txt"), "not a stream");
    let ran = strata(["router", "tune", &arg(&streams), "--out", &arg(&svg)]);
    let table: toml::Table = ran.text().parse().unwrap();
    let shadow_below = table["intents"]["review"]["shadow_below"].as_float().unwrap();
    // 2 percent errors above t: 0.25 * (0.5 - t) = 0.02 * (1 - t), and a little more for confidence.
    assert!((0.456..0.5).contains(&shadow_below), "{shadow_below}");
    assert!(table["router"]["min_score"].as_float().unwrap() < shadow_below);
    assert!(table["intents"]["build fix"].as_table().unwrap().is_empty(), "40 records are too few");
    assert!(ran.stdout.contains("# records: 4040; files: 2\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("# lines skipped: 1 (0 malformed, 1 torn"), "{}", ran.stdout);
    let drawn = fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("review (4000 judged)"), "{drawn}");
    assert!(drawn.contains("build fix (40 judged)"), "{drawn}");
}

#[test]
fn json_has_curves_and_the_options_change_the_proposals() {
    let text = stream("review", 4000);
    let tune = |more: &[&str]| {
        let args = ["router", "tune", "-", "--json"];
        strata_reading(text.as_bytes(), args.iter().chain(more)).json()
    };
    let value = |report: &Value| report["intents"]["review"]["shadow_below"]["value"].as_f64();
    let usual = tune(&[]);
    assert_eq!(usual["intents"]["review"]["curve"].as_array().unwrap().len(), 101);
    assert_eq!(usual["lines"]["records"], 4000);
    assert!(value(&tune(&["--max-error", "0.1"])) < value(&usual));
    assert_eq!(value(&tune(&["--min-samples", "5000"])), None);
}

#[test]
fn streams_without_a_record_and_fractions_beyond_1_are_errors() {
    let ran = strata_reading(b"not a record\n", ["router", "tune", "-"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    assert!(ran.stderr.contains("no calibration record (lines skipped: 1; line 1: "), "{ran:?}");
    let ran = strata(["router", "tune", "/no/such/file"]);
    assert!(ran.code == 1 && ran.stderr.contains("cannot read /no/such/file"), "{ran:?}");
    assert_eq!(strata(["router", "tune", "-", "--max-error", "2"]).code, 2);
    assert_eq!(strata(["router", "tune"]).code, 2);
}
