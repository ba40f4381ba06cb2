//! The program as it is carried to a machine with a GPU, here with a CPU in the device's place.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn strata_gpu(args: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("gpu/ has a parent");
    let program = env!("CARGO_BIN_EXE_strata-gpu");
    Command::new(program).args(args).current_dir(root).output().expect("the program starts")
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn a_report_is_written_as_json_and_as_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = strata_gpu(&["report", "--emulated", "--out", out]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("Figures mean nothing"), "{text}");
    assert!(text.contains("copy bandwidth"), "{text}");
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    let [file] = &files[..] else { panic!("one file, not {}", files.len()) };
    assert!(file.file_name().to_string_lossy().starts_with("emulated-"));
    let report: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    assert_eq!(report["emulated"], true);
    assert_eq!(report["failures"], serde_json::json!([]));
    let measured = report["measures"].as_array().unwrap();
    for what in [
        "rms_norm",
        "decode attention",
        "chunk to pinned memory",
        "decode step, recorded",
        "offline throughput",
    ] {
        let found = measured.iter().any(|m| m["name"] == what && m["value"].as_f64() > Some(0.0));
        assert!(found, "{what} was not measured:\n{text}");
    }
}

#[test]
fn checks_can_be_chosen_by_name() {
    let output = strata_gpu(&["parity", "--emulated", "--quick", "--only", "argmax or nothing"]);
    assert!(!output.status.success(), "no check was run, which proves nothing: {}", said(&output));
    let output = strata_gpu(&["parity", "--emulated", "--quick", "--only", "rounds to nearest"]);
    assert!(said(&output).contains("1 checks, 0 failed") || output.status.code() == Some(1));
}
