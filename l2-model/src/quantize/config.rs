//! The `config.json` of a quantised checkpoint.

use serde_json::{Map, Value, json};

use crate::checkpoint::nvfp4::GROUP;

/// Version of compressed-tensors whose layout is written.
const LAYOUT_VERSION: &str = "0.20.0";

/// A `config.json` with the scheme of compressed-tensors. `ignore` are the linear layers that stay as they are;
/// `untie` says that the output head is a matrix of its own now.
pub(super) fn quantised(config: &Value, ignore: &[String], untie: bool) -> Value {
    let mut config = config.clone();
    if untie {
        // Multimodal configs have the language model's keys one level below.
        let inner =
            config.get("text_config").is_some_and(|c| c.get("tie_word_embeddings").is_some());
        let level = if inner { &mut config["text_config"] } else { &mut config };
        level["tie_word_embeddings"] = false.into();
    }
    if let Some(map) = config.as_object_mut() {
        map.insert("quantization_config".into(), Value::Object(scheme(ignore)));
    }
    config
}

fn scheme(ignore: &[String]) -> Map<String, Value> {
    let weights = json!({
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": GROUP, "symmetric": true,
        "dynamic": false, "observer": "minmax",
    });
    let group = json!({
        "targets": ["Linear"], "weights": weights, "input_activations": null, "output_activations": null,
    });
    let scheme = json!({
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ignore, "kv_cache_scheme": null, "version": LAYOUT_VERSION,
    });
    scheme.as_object().cloned().unwrap_or_default()
}
