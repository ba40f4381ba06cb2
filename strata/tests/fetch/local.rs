//! Models that lie on this disk already.

use std::fs;

use strata::hub::{HubError, ModelSource, resolve};

use crate::server::options;

#[test]
fn a_directory_with_a_config_and_a_gguf_file_by_its_bytes_are_models() {
    let dir = tempfile::tempdir().unwrap();
    let o = options(dir.path(), "http://127.0.0.1:9");
    let hf = dir.path().join("hf");
    fs::create_dir(&hf).unwrap();
    fs::write(hf.join("config.json"), "{}").unwrap();
    assert_eq!(resolve(hf.to_str().unwrap(), &o).unwrap(), ModelSource::HfDir(hf));

    let blob = dir.path().join("b179c952");
    fs::write(&blob, "GGUF and so on").unwrap();
    assert_eq!(resolve(blob.to_str().unwrap(), &o).unwrap(), ModelSource::Gguf(blob));

    let only = dir.path().join("only");
    fs::create_dir(&only).unwrap();
    fs::write(only.join("m.gguf"), "GGUF").unwrap();
    assert_eq!(
        resolve(only.to_str().unwrap(), &o).unwrap(),
        ModelSource::Gguf(only.join("m.gguf"))
    );
}

#[test]
fn a_file_that_is_not_a_model_and_a_missing_one_have_different_errors() {
    let dir = tempfile::tempdir().unwrap();
    let o = options(dir.path(), "http://127.0.0.1:9");
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    fs::write(at("notes.gguf"), "hello").unwrap();
    fs::write(at("empty.gguf"), "").unwrap();
    fs::create_dir(at("empty")).unwrap();
    let error = resolve(&at("notes.gguf"), &o).unwrap_err();
    assert!(matches!(error, HubError::NotAModelFile { .. }), "{error}");
    let error = resolve(&at("empty.gguf"), &o).unwrap_err();
    assert!(matches!(error, HubError::EmptyFile { .. }), "{error}");
    let error = resolve(&at("empty"), &o).unwrap_err();
    assert!(matches!(error, HubError::NotAModelDirectory { ggufs: 0, .. }), "{error}");
    fs::create_dir(at("adapter")).unwrap();
    fs::write(at("adapter/adapter_config.json"), "{}").unwrap();
    let error = resolve(&at("adapter"), &o).unwrap_err();
    assert!(matches!(error, HubError::AdapterDirectory { .. }), "{error}");
    let error = resolve(&at("missing.gguf"), &o).unwrap_err();
    assert!(matches!(error, HubError::PathNotFound { .. }), "{error}");
    let error = resolve("some-word", &o).unwrap_err();
    assert!(matches!(error, HubError::UnknownModel { .. }), "{error}");
}
