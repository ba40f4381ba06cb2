//! The scheme by which a Hugging Face checkpoint is quantised.
//!
//! It stands in `quantization_config` of `config.json`, or (ModelOpt) in `hf_quant_config.json` beside it. The tensors
//! say which weights are quantised ([`crate::checkpoint::nvfp4`]), so a config is only asked whether the scheme is one
//! that is supported: patterns of modules that were left out (`ignore`, `exclude_modules`) need no interpretation.
//! Schemes that quantise activations or the KV cache too are accepted, and run with weights in NVFP4 only.

use serde_json::Value;

use super::ConfigError;

/// Number of weights that share a scale in NVFP4.
const GROUP: u64 = crate::checkpoint::nvfp4::GROUP as u64;

/// Key of `config.json`.
pub(super) const KEY: &str = "quantization_config";

/// ModelOpt's own file beside `config.json`.
pub(super) const MODELOPT_FILE: &str = "hf_quant_config.json";

/// Checks that a scheme is supported.
///
/// # Errors
/// [`ConfigError::Unsupported`], naming the scheme.
pub(super) fn check(config: &Value) -> Result<(), ConfigError> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(String::from);
    let producer = config.get("producer").and_then(|p| text(p, "name"));
    let method = text(config, "quant_method").or(producer).unwrap_or_else(|| "unknown".into());
    let scheme = match method.as_str() {
        "compressed-tensors" => compressed_tensors(config),
        m if m.starts_with("modelopt") => {
            modelopt(config.get("quantization").unwrap_or(config)).map_err(|why| ("modelopt", why))
        }
        other => Err((other, "another method".into())),
    };
    patterns(config)?;
    scheme.map_err(|(method, why)| ConfigError::Unsupported {
        key: KEY.into(),
        why: format!(
            "weights quantised with {method} ({why}) are not supported: NVFP4 in groups of {GROUP} by \
             compressed-tensors or ModelOpt is; use such a checkpoint, the bf16 one or a GGUF file"
        ),
    })
}

/// Lists of modules that are not quantised must be lists of names.
fn patterns(config: &Value) -> Result<(), ConfigError> {
    let inner = config.get("quantization");
    let lists = ["ignore", "exclude_modules"].into_iter().flat_map(|key| {
        [Some(config), inner].into_iter().flatten().filter_map(move |c| Some((key, c.get(key)?)))
    });
    for (key, list) in lists {
        let names = list.as_array().is_some_and(|names| names.iter().all(Value::is_string));
        if !names && !list.is_null() {
            return Err(ConfigError::BadValue {
                key: format!("{KEY}.{key}"),
                value: list.to_string().chars().take(60).collect(),
                why: "must be a list of module names".into(),
            });
        }
    }
    Ok(())
}

type Scheme<'a> = Result<(), (&'a str, String)>;

/// Every group of modules must be in NVFP4.
fn compressed_tensors(config: &Value) -> Scheme<'static> {
    const METHOD: &str = "compressed-tensors";
    const FORMAT: &str = "nvfp4-pack-quantized";
    let bad = |why: String| Err((METHOD, why));
    let top = config.get("format").and_then(Value::as_str);
    let Some(groups) = config.get("config_groups").and_then(Value::as_object) else {
        return bad("without config_groups".into());
    };
    for (name, group) in groups {
        let format = group.get("format").and_then(Value::as_str).or(top).unwrap_or("none");
        if format != FORMAT {
            return bad(format!("format {format} of {name}"));
        }
        let Some(weights) = group.get("weights").filter(|w| w.is_object()) else {
            return bad(format!("no weights in {name}"));
        };
        let is = |key: &str, value: &Value| weights.get(key).is_none_or(|v| v == value);
        if !is("num_bits", &4.into()) || !is("type", &"float".into()) {
            return bad(format!("weights of {name} that are no floats of 4 bits"));
        }
        if !is("group_size", &GROUP.into()) {
            return bad(format!("a group_size of {name} other than {GROUP}"));
        }
        if !is("symmetric", &true.into()) {
            return bad(format!("zero points in {name}"));
        }
    }
    if groups.is_empty() && top != Some(FORMAT) {
        return bad(format!("format {}", top.unwrap_or("none")));
    }
    Ok(())
}

/// ModelOpt names its algorithm.
fn modelopt(config: &Value) -> Result<(), String> {
    let algorithm = config.get("quant_algo").and_then(Value::as_str).unwrap_or("none");
    if !matches!(algorithm, "NVFP4" | "W4A16_NVFP4") {
        return Err(format!("quant_algo {algorithm}"));
    }
    match config.get("group_size").filter(|size| !size.is_null()) {
        Some(size) if size.as_u64() != Some(GROUP) => Err(format!("group_size {size}")),
        _ => Ok(()),
    }
}
