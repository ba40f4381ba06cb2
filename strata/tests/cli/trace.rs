//! `strata trace blocks`: from a file to a page.

use std::fs;

use crate::strata::{arg, strata, strata_reading};

const RECORDING: &str = r#"{"strata_block_trace":1,"num_blocks":4,"block_size":4,"namespace":"tiny"}
{"op":"step_begins"}
{"op":"sequence_begins","seq":"0.0","label":"a"}
{"op":"pop","block":1}
{"op":"ref_count","block":1,"count":1}
{"op":"append","seq":"0.0","block":1}
{"op":"step_committed"}
"#;

const TRACE: &str = r#"{"name":"two steps","steps":[
{"step":0,"block_table":{"a":[1]},"new_block_ids":{"a":[1]},"running":["a"],"num_free_blocks":2},
{"step":1,"block_table":{"a":[1]},"running":["a"],"finished":["a"],"num_free_blocks":2}]}"#;

#[test]
fn a_recording_becomes_a_page_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.jsonl");
    fs::write(&file, RECORDING).unwrap();
    let page = dir.path().join("run.html");
    let ran = strata(["trace", "blocks", &arg(&file)]);
    assert_eq!(ran.text(), format!("{}\n", page.display()));
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"), "{html}");
    assert!(html.contains("{s0} enters. Nothing of its prompt is cached."), "{html}");

    let elsewhere = dir.path().join("other.html");
    strata(["trace", "blocks", &arg(&file), "--out", &arg(&elsewhere)]).text();
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), html, "the same page elsewhere");
    assert_eq!(
        strata(["trace", "blocks", &arg(&file), "--out", "-"]).text(),
        html,
        "and on stdout"
    );
}

#[test]
fn stdin_goes_to_stdout_and_either_kind_of_file_is_known_by_what_it_holds() {
    let page = strata_reading(RECORDING.as_bytes(), ["trace", "blocks", "-"]);
    assert!(page.text().contains("\"source\":\"recording\""), "{page:?}");
    let page = strata_reading(TRACE.as_bytes(), ["trace", "blocks", "-"]);
    assert!(page.text().contains("\"source\":\"simulation\""), "{page:?}");
    assert!(page.text().contains("<title>two steps · block viewer</title>"), "{page:?}");
}

#[test]
fn frames_that_are_left_out_are_reported() {
    let page = strata_reading(RECORDING.as_bytes(), ["trace", "blocks", "-", "--max-frames", "2"]);
    page.text();
    assert_eq!(page.stderr, "the page shows the first 2 frames; 2 are left out (--max-frames)\n");
}

#[test]
fn invalid_recordings_are_an_error_of_one_line_and_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.jsonl");
    let fails = |text: &str, part: &str| {
        fs::write(&file, text).unwrap();
        let ran = strata(["trace", "blocks", &arg(&file)]);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        assert!(ran.stderr.starts_with("error: "), "{ran:?}");
        assert!(ran.stderr.contains(part), "`{part}` in {}", ran.stderr);
        assert!(!dir.path().join("run.html").exists());
    };
    fails("hello", "neither a block recording");
    fails("", "neither a block recording");
    fails("{}", "nor a scheduler's trace (one JSON object with `steps`): missing field `steps`");
    fails(&RECORDING[..RECORDING.len() - 5], "line 7 breaks off");
    fails(&RECORDING.replace("\"pop\",\"block\":1", "\"pop\",\"block\":2"), "line 4 contradicts");
    fails(&RECORDING.replace("trace\":1", "trace\":7"), "version 7");

    let missing = strata(["trace", "blocks", &arg(dir.path().join("no.jsonl"))]);
    assert!(missing.stderr.contains("cannot read"), "{missing:?}");
    let page = dir.path().join("run.html");
    fs::write(&page, RECORDING).unwrap();
    let ran = strata(["trace", "blocks", &arg(&page)]);
    assert!(ran.stderr.contains("would be overwritten by its own page"), "{ran:?}");
    fs::write(&file, RECORDING).unwrap();
    let ran =
        strata(["trace", "blocks", &arg(&file), "--out", &arg(dir.path().join("no/page.html"))]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("page.html"), "{ran:?}");
}

#[test]
fn the_help_says_how_to_record() {
    assert!(strata(["trace", "blocks", "--help"]).text().contains("--trace-blocks run.jsonl"));
}
