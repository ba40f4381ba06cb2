//! The model's sampling defaults: its generation_config.json, which overrides OpenAI's defaults as in vLLM.

use std::io::ErrorKind;
use std::path::Path;

use l4_sampler::SamplingParams;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::flags::ModelFlags;
use crate::cli::error::CliError;
use server::model::GenerationDefaults;

/// The fields that are used. The others of such a file are for other programs.
const FIELDS: [&str; 6] =
    ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens"];

/// The fields as the file has them.
#[derive(Debug, Default, Deserialize)]
struct Fields {
    temperature: Option<f32>,
    top_p: Option<f32>,
    /// 0 or less: all.
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    max_new_tokens: Option<usize>,
}

/// Sampling defaults of the model at `path`, by these flags.
///
/// # Errors
/// [`CliError`]: a missing or malformed file, values out of range.
pub fn defaults(flags: &ModelFlags, path: &Path) -> Result<GenerationDefaults, CliError> {
    let mut fields = match flags.generation_config.as_str() {
        "vllm" => Map::new(),
        // A .gguf file has no such file.
        "auto" => read(&path.join("generation_config.json"), false)?,
        from => read(&Path::new(from).join("generation_config.json"), true)?,
    };
    // Not ours: stop tokens are read with the model.
    fields.retain(|field, _| FIELDS.contains(&field.as_str()));
    if let Some(json) = &flags.override_generation_config {
        let bad = |what| CliError::Usage(format!("--override-generation-config: {what}"));
        let own: Map<String, Value> =
            serde_json::from_str(json).map_err(|e| bad(format!("not a JSON object: {e}")))?;
        if let Some(field) = own.keys().find(|field| !FIELDS.contains(&field.as_str())) {
            return Err(bad(format!("unknown field `{field}`: use {}", FIELDS.join(", "))));
        }
        fields.extend(own);
    }
    let bad = |what| CliError::Usage(format!("sampling defaults (generation_config.json): {what}"));
    let read: Fields =
        serde_json::from_value(Value::Object(fields)).map_err(|e| bad(e.to_string()))?;
    let found = GenerationDefaults {
        temperature: read.temperature,
        top_p: read.top_p,
        top_k: read.top_k.map(|k| usize::try_from(k).unwrap_or(0)),
        min_p: read.min_p,
        typical_p: None,
        repetition_penalty: read.repetition_penalty,
        max_tokens: read.max_new_tokens,
    };
    check(&found).map_err(bad)?;
    Ok(found)
}

/// Checks the values once, so that requests need not check what they inherit.
fn check(found: &GenerationDefaults) -> Result<(), String> {
    let off = SamplingParams::default();
    let params = SamplingParams {
        temperature: found.temperature.unwrap_or(off.temperature),
        top_p: found.top_p.unwrap_or(off.top_p),
        min_p: found.min_p.unwrap_or(off.min_p),
        repetition_penalty: found.repetition_penalty.unwrap_or(off.repetition_penalty),
        ..off
    };
    params.validate(usize::MAX).map_err(|e| e.to_string())
}

fn read(path: &Path, must: bool) -> Result<Map<String, Value>, CliError> {
    let shown = path.display();
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|e| CliError::Usage(format!("{shown}: not a JSON object: {e}"))),
        Err(e) if !must && matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Map::new())
        }
        Err(reason) => Err(CliError::Input { what: shown.to_string(), reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(file: &str, from: &str, own: Option<&str>) -> Result<GenerationDefaults, CliError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), file).unwrap();
        let flags = ModelFlags {
            generation_config: from.into(),
            override_generation_config: own.map(str::to_owned),
            ..ModelFlags::default()
        };
        defaults(&flags, dir.path())
    }

    #[test]
    fn a_models_own_defaults_are_taken_and_can_be_left_or_replaced() {
        let file = r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": true, "eos_token_id": [1]}"#;
        let found = of(file, "auto", None).unwrap();
        let expected = GenerationDefaults {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            ..GenerationDefaults::default()
        };
        assert_eq!(found, expected);
        assert_eq!(of(file, "vllm", None).unwrap(), GenerationDefaults::default());
        let own = r#"{"temperature": 0, "top_k": -1, "max_new_tokens": 7}"#;
        let found = of(file, "auto", Some(own)).unwrap();
        let expected = GenerationDefaults {
            temperature: Some(0.0),
            top_k: Some(0),
            max_tokens: Some(7),
            ..expected
        };
        assert_eq!(found, expected);
        let none = tempfile::tempdir().unwrap();
        let flags = ModelFlags { generation_config: "auto".into(), ..ModelFlags::default() };
        assert_eq!(defaults(&flags, none.path()).unwrap(), GenerationDefaults::default());
        let there = none.path().to_string_lossy().into_owned();
        assert!(defaults(&ModelFlags { generation_config: there, ..flags }, none.path()).is_err());
    }

    #[test]
    fn defaults_that_no_request_could_use_are_refused() {
        for (file, own) in [
            ("[]", None),
            (r#"{"temperature": "hot"}"#, None),
            (r#"{"top_p": 2}"#, None),
            ("{}", Some(r#"{"temprature": 1}"#)),
            ("{}", Some("0.5")),
        ] {
            assert!(of(file, "auto", own).is_err(), "{file} {own:?}");
        }
    }
}
