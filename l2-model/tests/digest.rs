//! The identity of a model: what changes it, and what does not.

mod checkpoint_support;
#[path = "judge/mod.rs"]
mod judge;

use std::path::Path;

use checkpoint_support::{fixture, tiny_ggufs};
use l2_model::{ModelDigest, ModelFiles};
use tempfile::TempDir;

fn digest(path: &Path) -> ModelDigest {
    judge::works(format!("opening {}", path.display()), ModelFiles::open(path)).digest()
}

/// A copy of tiny-llama whose files `change` may change.
fn changed(change: impl FnOnce(&Path)) -> ModelDigest {
    let dir = TempDir::new().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("tiny-llama").join(file), dir.path().join(file)).unwrap();
    }
    change(dir.path());
    digest(dir.path())
}

fn edit_config(dir: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = dir.join("config.json");
    let mut config = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
}

/// Changes one byte of the weights of a tensor, `at` from its begin (or from its end, if negative).
fn edit_tensor(dir: &Path, name: &str, at: i64) {
    let path = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let offset = |i: usize| json[name]["data_offsets"][i].as_u64().unwrap() as usize + 8 + header;
    let at = if at < 0 { offset(1) - at.unsigned_abs() as usize } else { offset(0) + at as usize };
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_model_has_the_same_digest_in_every_run_and_place() {
    let here = digest(&fixture("tiny-llama"));
    assert_eq!(here, digest(&fixture("tiny-llama")), "opened twice");
    assert_eq!(here, changed(|_| ()), "a copy in another directory");
    // Between runs and machines, too: a stored key must be found again.
    assert_eq!(
        here.to_string(),
        "f37f342a5d272324ce663f956693cb9802f73c9f9a5b7eb4da7e548fb4a011be",
        "the digest of tiny-llama: a change makes all stored keys and values useless"
    );
}

#[test]
fn two_models_of_one_architecture_have_different_digests() {
    let here = digest(&fixture("tiny-llama"));
    let norm = changed(|dir| edit_tensor(dir, "model.norm.weight", 0));
    assert_ne!(here, norm, "another final norm");
    let large = "model.embed_tokens.weight";
    let (first, last) =
        (changed(|d| edit_tensor(d, large, 1)), changed(|d| edit_tensor(d, large, -1)));
    assert_ne!(here, first, "another first number of a large matrix");
    assert_ne!(here, last, "another last number of a large matrix");
    assert_ne!(first, last);
}

#[test]
fn numbers_of_the_config_that_change_keys_change_the_digest() {
    let here = digest(&fixture("tiny-llama"));
    let theta = changed(|d| edit_config(d, |c| c["rope_scaling"]["factor"] = 4.0.into()));
    assert_ne!(here, theta, "another scaling of the rotary embedding");
    let eps = changed(|d| edit_config(d, |c| c["rms_norm_eps"] = 1e-3.into()));
    assert_ne!(here, eps, "another epsilon of the norms");
    let eos = changed(|d| edit_config(d, |c| c["eos_token_id"] = 7.into()));
    assert_eq!(here, eos, "the tokens that end a text do not matter");
}

#[test]
fn all_models_of_the_fixtures_have_different_digests() {
    let mut all: Vec<ModelDigest> = Vec::new();
    for entry in std::fs::read_dir(fixture("")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("tiny-") && path.join("config.json").is_file() {
            all.push(digest(&path));
        }
    }
    all.extend(tiny_ggufs().iter().map(|path| digest(path)));
    let count = all.len();
    assert!(count >= 15, "only {count} models");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "different digests");
}

#[test]
fn a_namespace_begins_with_the_name_and_ends_with_half_of_the_digest() {
    let digest = ModelDigest([0xab; 32]);
    assert_eq!(digest.namespace("coder"), format!("coder@{}", "ab".repeat(16)));
    assert_eq!(digest.to_string(), "ab".repeat(32));
}
