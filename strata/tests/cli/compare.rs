//! `strata compare`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::golden::tiny_models;
use crate::strata::{arg, fixture, strata};

#[test]
fn every_tiny_model_agrees_with_its_golden_at_every_tap() {
    for (model, golden) in tiny_models() {
        let ran = strata(["compare", "--model", &model, "--golden", &golden]);
        assert!(ran.text().contains("all "), "{model}: {ran:?}");
    }
}

#[test]
fn in_bf16_too_within_its_own_tolerance() {
    let golden = fixture("tiny-llama/golden.safetensors");
    let args =
        ["compare", "-m", &fixture("tiny-llama"), "--golden", &golden, "--precision", "bf16"];
    assert_eq!(strata(args).code, 0);
}

/// A copy of a golden file with the first number of one tensor changed.
fn damaged(golden: &str, tensor: &str, to: &Path) {
    let mut bytes = fs::read(golden).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let at = 8 + header + json[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at..at + 4].copy_from_slice(&1e3f32.to_le_bytes());
    fs::write(to, bytes).unwrap();
}

#[test]
fn the_first_wrong_tap_is_named_and_the_exit_code_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("golden.safetensors");
    damaged(&fixture("tiny-llama/golden.safetensors"), "layers.1.mlp", &file);
    let ran = strata(["compare", "-m", &fixture("tiny-llama"), "--golden", &arg(&file)]);
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""));
    for part in ["layers.1.mlp", "layer 1", "token 0", "expected 1000", "likely causes"] {
        assert!(ran.stdout.contains(part), "{part} in {}", ran.stdout);
    }
}

#[test]
fn a_golden_of_another_model_is_refused() {
    let golden = fixture("tiny-qwen3/golden.safetensors");
    let ran = strata(["compare", "-m", &fixture("tiny-llama"), "--golden", &golden]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.starts_with("error: ") && ran.stderr.lines().count() == 1, "{ran:?}");
}
