use super::*;

/// A directory with this `generation_config.json`, and a config whose own stop tokens are these.
fn stops(config_eos: &[u32], generation: Option<&str>) -> Result<Vec<u32>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut value = parse_python_json(
        &std::fs::read_to_string(fixtures.join("tiny-llama/config.json")).unwrap(),
    )
    .unwrap();
    value["eos_token_id"] = config_eos.into();
    let dir = tempfile::tempdir().unwrap();
    if let Some(text) = generation {
        std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
    }
    stop_tokens(dir.path(), &ModelConfig::from_hf_json(&value)?)
}

#[test]
fn stop_tokens_are_those_of_both_files_each_once() {
    for (config, generation, expected) in [
        (&[7][..], None, &[7][..]),
        (&[7], Some("{}"), &[7]),
        (&[7], Some(r#"{"eos_token_id": 3}"#), &[3, 7]),
        (&[7, 5], Some(r#"{"eos_token_id": [9, 7, 3]}"#), &[3, 5, 7, 9]),
        (&[], Some(r#"{"eos_token_id": null}"#), &[]),
        (&[], None, &[]),
    ] {
        let got = stops(config, generation).unwrap();
        assert_eq!(
            got, expected,
            "stop tokens of eos_token_id {config:?} in config.json and {generation:?} in generation_config.json"
        );
    }
}

#[test]
fn a_generation_config_that_cannot_be_read_is_named() {
    for text in ["{", r#"{"eos_token_id": "</s>"}"#] {
        let error = stops(&[1], Some(text)).unwrap_err();
        assert!(matches!(error, Error::GenerationConfig { .. }), "{error}");
        assert!(error.to_string().contains("generation_config.json"), "{error}");
    }
}
