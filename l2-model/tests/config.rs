//! Published configs against transformers' own reading of them
//! (`fixtures/reference/make_config_expectations.py`), and configs that must be refused.

mod judge;

use std::path::{Path, PathBuf};

use l1_tensor::ops::{RopeScaling, RopeTable};
use l2_model::{
    AttentionConfig, Branch, ConfigError, LayerConfig, MlpConfig, ModelConfig, Norm, Op,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/configs")
}

fn tiny_llama() -> Value {
    let path = configs().join("../tiny-llama/config.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The two branches of a layer.
fn attention_and_mlp(layer: &LayerConfig) -> (&AttentionConfig, &MlpConfig) {
    match &layer.branches[..] {
        [Branch { op: Op::Attention(a), .. }, Branch { op: Op::Mlp(m), .. }] => (a, m),
        other => panic!("a layer is attention, then an MLP; this one is {other:?}"),
    }
}

/// The rope of a config, said the way `expected.json` says it.
fn rope_matches(config: &ModelConfig, expected: &Value) {
    let number = |key: &str| expected.get(key).and_then(Value::as_f64);
    assert_eq!(Some(config.rope.theta), number("rope_theta"));
    match (&config.rope.scaling, expected["rope_type"].as_str().unwrap()) {
        (RopeScaling::None, "default") => {}
        (RopeScaling::Linear { factor }, "linear") => assert_eq!(Some(*factor), number("factor")),
        (
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            },
            "llama3",
        ) => {
            assert_eq!(Some(*factor), number("factor"));
            assert_eq!(Some(*low_freq_factor), number("low_freq_factor"));
            assert_eq!(Some(*high_freq_factor), number("high_freq_factor"));
            let original = number("original_max_position_embeddings");
            assert_eq!(Some(*original_max_position as f64), original);
        }
        (RopeScaling::Yarn { factor, .. }, "yarn") => assert_eq!(Some(*factor), number("factor")),
        (got, expected) => panic!("{got:?} for {expected}"),
    }
}

#[test]
fn published_configs_mean_what_transformers_says_they_mean() {
    let text = std::fs::read_to_string(configs().join("expected.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let all = all["configs"].as_object().unwrap();
    let mut seen = 0;
    for (name, e) in all.iter().filter(|(name, _)| !name.starts_with("unsupported")) {
        let config = ModelConfig::from_hf_file(&configs().join(name))
            .unwrap_or_else(|err| panic!("{name}: {err}"));
        let of = |key: &str| format!("{key} of {name}");
        let size = |key: &str| e[key].as_u64().unwrap_or_else(|| panic!("{}", of(key))) as usize;
        let flag = |key: &str| e[key].as_bool().unwrap();
        assert_eq!(config.architecture, e["model_type"].as_str().unwrap(), "{}", of("model_type"));
        let tied = flag("tie_word_embeddings");
        assert_eq!(config.tied_embeddings, tied, "{}", of("tie_word_embeddings"));
        let ids = |key: &str| -> Vec<u32> {
            match &e[key] {
                Value::Array(ids) => ids.iter().map(|v| v.as_u64().unwrap() as u32).collect(),
                Value::Null => vec![],
                one => vec![one.as_u64().unwrap() as u32],
            }
        };
        let bos: Vec<u32> = config.bos.into_iter().collect();
        assert_eq!(bos, ids("bos_token_id"), "{}", of("bos_token_id"));
        assert_eq!(config.eos, ids("eos_token_ids"), "{}", of("eos_token_ids"));
        for (key, got) in [
            ("vocab_size", config.vocab),
            ("hidden_size", config.hidden),
            ("max_position_embeddings", config.max_context),
            ("num_hidden_layers", config.layers.len()),
        ] {
            assert_eq!(got, size(key), "{}", of(key));
        }
        rope_matches(&config, &e["rope_parameters"]);
        let windows = e["windows"].as_array().unwrap();
        for (i, (layer, window)) in config.layers.iter().zip(windows).enumerate() {
            let (a, m) = attention_and_mlp(layer);
            for (key, got) in [
                ("num_attention_heads", a.q_heads),
                ("num_key_value_heads", a.kv_heads),
                ("head_dim", a.head_dim),
                ("intermediate_size", m.intermediate),
            ] {
                assert_eq!(got, size(key), "{}, layer {i}", of(key));
            }
            assert_eq!(a.qkv_bias, flag("qkv_bias"), "bias on q, k and v of {name}, layer {i}");
            assert_eq!(a.qk_norm.is_some(), flag("qk_norm"), "q/k norm of {name}, layer {i}");
            let got = a.window.map(|w| w as u64);
            assert_eq!(got, window.as_u64(), "the window of {name}, layer {i}");
        }
        seen += 1;
    }
    assert!(seen >= 10, "only {seen} configs");
}

#[test]
fn a_config_that_is_written_is_read_as_the_same_model() {
    let mut seen = 0;
    for entry in std::fs::read_dir(configs()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("unsupported") || name == "expected.json" {
            continue;
        }
        let config = ModelConfig::from_hf_file(&path).unwrap();
        let written = config.to_hf_json().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(ModelConfig::from_hf_json(&written).unwrap(), config, "{name}");
        seen += 1;
    }
    assert!(seen >= 10, "only {seen} configs");
}

#[test]
fn what_no_config_of_the_family_says_is_not_written() {
    type Change = fn(&mut AttentionConfig);
    let changes: [(&str, Change); 3] = [
        ("biases on q, k and v", |a| a.qkv_bias = true),
        ("biases on the output of attention", |a| a.o_bias = true),
        ("describes this model", |a| a.qk_norm = Some(1e-6)),
    ];
    for (says, change) in changes {
        let mut config = variant("llama", json!({}));
        for branch in config.layers.iter_mut().flat_map(|layer| &mut layer.branches) {
            if let Op::Attention(attention) = &mut branch.op {
                change(attention);
            }
        }
        let error = config.to_hf_json().unwrap_err();
        let fits = matches!(error, ConfigError::Unsupported { .. });
        assert!(fits && error.to_string().contains(says), "{error}");
    }
    // In one layer only.
    let mut config = variant("llama", json!({}));
    config.layers[1].branches.reverse();
    let error = config.to_hf_json().unwrap_err();
    assert!(error.to_string().contains("describes this model"), "{error}");
}

#[test]
fn a_llama_with_a_sliding_window_is_written_as_mistral() {
    let mut config = variant("mistral", json!({"sliding_window": 32}));
    config.architecture = "llama".into();
    let written = config.to_hf_json().unwrap();
    assert_eq!(written["architectures"], json!(["MistralForCausalLM"]));
    assert_eq!(written["sliding_window"], 32);
}

/// `tiny-llama`'s config as one of another family, with these keys set (null: left out).
fn variant(family: &str, keys: Value) -> ModelConfig {
    let mut config = tiny_llama();
    config["model_type"] = family.into();
    for (key, value) in keys.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::from_hf_json(&config).unwrap()
}

#[test]
fn what_a_config_leaves_out_is_its_familys_default() {
    // hidden_size is 96; `head_dim` and `num_key_value_heads` of the configuration classes.
    let left_out = |family: &str, q_heads: usize| {
        let keys = json!({
            "num_attention_heads": q_heads, "num_key_value_heads": null, "head_dim": null,
        });
        let config = variant(family, keys);
        let (a, _) = attention_and_mlp(&config.layers[0]);
        (a.kv_heads, a.head_dim)
    };
    for (family, q_heads, expected) in [
        ("llama", 6, (6, 16)),
        ("llama", 2, (2, 48)),
        ("mistral", 24, (8, 4)),
        ("qwen2", 6, (6, 16)),
        ("qwen3", 6, (6, 128)),
    ] {
        let got = left_out(family, q_heads);
        let what = "KV heads and head_dim that the config does not say";
        assert_eq!(got, expected, "{what}: a {family} of {q_heads} heads, hidden_size 96");
    }
    let untold = variant("llama", json!({"tie_word_embeddings": null, "eos_token_id": null}));
    assert!(!untold.tied_embeddings, "a llama that does not say so is not tied");
    assert_eq!(untold.eos, [] as [u32; 0], "stop tokens of a config without eos_token_id");
}

#[test]
fn what_a_config_says_wins_over_every_default() {
    for family in ["llama", "mistral", "qwen2", "qwen3"] {
        let keys = json!({"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24});
        let config = variant(family, keys);
        let (a, _) = attention_and_mlp(&config.layers[1]);
        let got = (a.q_heads, a.kv_heads, a.head_dim);
        assert_eq!(
            got,
            (6, 3, 24),
            "heads, KV heads and head_dim of a {family} that says all three"
        );
    }
}

#[test]
fn the_eps_of_the_config_is_that_of_every_norm() {
    for (given, expected) in [(json!(0.25), 0.25), (Value::Null, 1e-6)] {
        for family in ["llama", "qwen3"] {
            let config = variant(family, json!({"rms_norm_eps": given}));
            let what = format!("of a {family} whose rms_norm_eps is {given}");
            let eps = Norm::Rms { eps: expected };
            assert_eq!(config.final_norm, eps, "the final norm {what}");
            for (i, layer) in config.layers.iter().enumerate() {
                for branch in &layer.branches {
                    assert_eq!(branch.norm, eps, "a norm in layer {i} {what}");
                }
                let (a, _) = attention_and_mlp(layer);
                let qk = (family == "qwen3").then_some(expected);
                assert_eq!(a.qk_norm, qk, "the eps of the q/k norm in layer {i} {what}");
            }
        }
    }
}

#[test]
fn architectures_that_are_not_built_say_what_is_missing() {
    for (file, word) in [
        ("unsupported-mixtral-8x7b.json", "mixture-of-experts"),
        ("unsupported-mamba2-2.7b.json", "state space"),
        ("unsupported-gemma2-2b.json", "soft-capped"),
        ("unsupported-longrope.json", "longrope"),
    ] {
        let expected = "UnsupportedArchitecture or Unsupported";
        let got = ModelConfig::from_hf_file(&configs().join(file));
        let error = judge::refused(file, expected, got);
        let typed = matches!(
            error,
            ConfigError::UnsupportedArchitecture { .. } | ConfigError::Unsupported { .. }
        );
        assert!(typed && error.to_string().contains(word), "{file}: {error}");
        assert!(!error.to_string().contains('\n'), "one line: {error}");
    }
}

/// A config whose value of `key` cannot be is refused, and the message names the key.
#[track_caller]
fn complains_about(key: &str, config: &Value) {
    let what = format!("a config with {key} = {}, head_dim = {}", config[key], config["head_dim"]);
    let expected = format!("an error that names {key}");
    let error = judge::refused(&what, &expected, ModelConfig::from_hf_json(config)).to_string();
    assert!(error.contains(key), "{what}\n  expected  {expected}\n  got       {error}");
}

#[test]
fn values_that_cannot_be_name_their_key() {
    for (key, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!("big")),
        ("hidden_size", json!(-5)),
        ("hidden_size", json!(9_000_000_000_000_000_000u64)),
        ("vocab_size", json!(1e30)),
        ("num_hidden_layers", json!(4_000_000_000u64)),
        ("num_hidden_layers", json!(0)),
        ("num_key_value_heads", json!(4)),
        ("head_dim", json!(1u64 << 40)),
        ("intermediate_size", json!(u64::MAX)),
        ("rms_norm_eps", json!([1])),
        ("tie_word_embeddings", json!("yes")),
        ("rope_scaling", json!(7)),
        ("max_position_embeddings", json!("x")),
        ("hidden_act", json!("relu")),
        ("eos_token_id", json!("</s>")),
        ("quantization_config", json!({"quant_method": "awq"})),
    ] {
        let mut config = tiny_llama();
        config[key] = value.clone();
        complains_about(key, &config);
    }
    // Without `head_dim` the head size is a division by the number of heads, which is refused only later.
    for head_dim in [json!(16), Value::Null] {
        let mut config = tiny_llama();
        config["num_attention_heads"] = 0.into();
        config["head_dim"] = head_dim;
        complains_about("num_attention_heads", &config);
    }
    for entry in [json!("linear_attention"), json!(7), Value::Null] {
        let mut config = tiny_llama();
        config["sliding_window"] = 64.into();
        config["layer_types"] = json!(["full_attention", entry, "full_attention"]);
        complains_about("layer_types", &config);
    }
    for key in ["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"] {
        let mut config = tiny_llama();
        config.as_object_mut().unwrap().shift_remove(key);
        let what = format!("a config without {key}");
        let got = ModelConfig::from_hf_json(&config);
        judge::fails_with!(what, got, ConfigError::Missing { key: k, .. } if k == key);
    }
}

#[test]
fn a_config_that_is_not_json_or_not_there_names_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let error = ModelConfig::from_hf_file(&path).unwrap_err();
    assert!(matches!(error, ConfigError::Io { .. }), "{error}");
    std::fs::write(&path, "{\"hidden_size\": ").unwrap();
    let error = ModelConfig::from_hf_file(&path).unwrap_err();
    assert!(matches!(error, ConfigError::Json { .. }), "{error}");
    std::fs::write(&path, "[1, 2]").unwrap();
    assert!(ModelConfig::from_hf_file(&path).is_err());
}

#[test]
fn kv_bytes_per_token_count_keys_and_values_of_all_layers() {
    let config = ModelConfig::from_hf_file(&configs().join("smollm2-135m.json")).unwrap();
    assert_eq!(config.kv_bytes_per_token(2), 30 * 2 * 3 * 64 * 2);
}

proptest! {
    /// Any JSON value at any key is either understood or refused; nothing panics or hangs.
    #[test]
    fn no_value_of_any_key_panics(key in 0usize..40, value in prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        "\\PC{0,8}".prop_map(Value::from),
        proptest::collection::vec(any::<u64>(), 0..4).prop_map(Value::from),
        Just(json!({"rope_type": "yarn", "factor": -1})),
        Just(json!({"rope_type": "llama3"})),
    ]) {
        let mut config = tiny_llama();
        let keys: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        config[&keys[key % keys.len()]] = value;
        let _ = ModelConfig::from_hf_json(&config);
    }
}

/// `quantization_config` of a checkpoint by compressed-tensors, with a key of its weights changed.
fn compressed_tensors(key: &str, value: Value) -> Value {
    let mut weights = json!({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
        "symmetric": true, "dynamic": false});
    weights[key] = value;
    json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head", "re:.*gate$"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
            "input_activations": {"num_bits": 4, "type": "float", "dynamic": "local"}}}})
}

#[test]
fn nvfp4_schemes_of_both_writers_are_accepted_and_change_nothing() {
    let plain = ModelConfig::from_hf_json(&tiny_llama()).unwrap();
    let mut grouped = compressed_tensors("num_bits", 4.into());
    grouped["format"] = "mixed-precision".into();
    grouped["config_groups"]["group_0"]["format"] = "nvfp4-pack-quantized".into();
    for scheme in [
        compressed_tensors("num_bits", 4.into()),
        grouped,
        json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}),
        json!({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "group_size": 16}),
        json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16,
            "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}),
    ] {
        let mut config = tiny_llama();
        config["quantization_config"] = scheme.clone();
        let got = ModelConfig::from_hf_json(&config);
        assert_eq!(judge::works(scheme, got), plain);
    }
}

#[test]
fn other_schemes_are_refused_with_what_is_supported() {
    let mut fp8 = compressed_tensors("num_bits", 8.into());
    fp8["format"] = "float-quantized".into();
    let modelopt = |algorithm: &str| json!({"quant_method": "modelopt", "quant_algo": algorithm});
    for scheme in [
        fp8,
        compressed_tensors("num_bits", 8.into()),
        compressed_tensors("type", "int".into()),
        compressed_tensors("group_size", 32.into()),
        compressed_tensors("symmetric", false.into()),
        json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
        json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}),
        modelopt("FP8"),
        modelopt("NVFP4_AWQ"),
        json!({"quant_method": "modelopt"}),
        json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}),
        json!({"quant_method": "gptq", "bits": 4}),
        json!({}),
        json!("nvfp4"),
    ] {
        let mut config = tiny_llama();
        config["quantization_config"] = scheme.clone();
        let error = judge::refused(&scheme, "NVFP4", ModelConfig::from_hf_json(&config));
        let error = error.to_string();
        assert!(error.contains("NVFP4 in groups of 16"), "{scheme}: {error}");
    }
    let mut config = tiny_llama();
    config["quantization_config"] = compressed_tensors("num_bits", 4.into());
    config["quantization_config"]["ignore"] = json!([1]);
    complains_about("quantization_config", &config);
}

#[test]
fn a_scheme_in_modelopts_own_file_is_checked_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    std::fs::write(&path, tiny_llama().to_string()).unwrap();
    let scheme = |algorithm: &str| {
        let text =
            json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algorithm}});
        std::fs::write(dir.path().join("hf_quant_config.json"), text.to_string()).unwrap();
        ModelConfig::from_hf_file(&path)
    };
    judge::works("NVFP4", scheme("NVFP4"));
    judge::refused("FP8", "quant_algo FP8", scheme("FP8"));
}

/// tiny-llama with this `rope_scaling`, or without one.
fn with_rope(scaling: Value) -> Value {
    let mut config = tiny_llama();
    config["rope_scaling"] = scaling;
    config
}

#[test]
fn numbers_that_no_norm_or_angle_can_be_computed_with_name_their_key_and_the_value() {
    let llama3 = |key: &str, value: Value| {
        let mut scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
        scaling[key] = value;
        with_rope(scaling)
    };
    let yarn =
        |key: &str, value: f64| with_rope(json!({"rope_type": "yarn", "factor": 4.0, key: value}));
    let top = |key: &str, value: f64| {
        let mut config = with_rope(Value::Null);
        config[key] = value.into();
        config
    };
    let mut modern = tiny_llama();
    modern["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 0.0});
    let (theta, scaling) = ("rope_theta", "rope_scaling.");
    for (key, value, config) in [
        ("rms_norm_eps", "-1", top("rms_norm_eps", -1.0)),
        ("rms_norm_eps", "inf", top("rms_norm_eps", 1e300)),
        (theta, "0", top(theta, 0.0)),
        (theta, "-1", top(theta, -1.0)),
        (theta, "1", top(theta, 1.0)),
        ("partial_rotary_factor", "0", top("partial_rotary_factor", 0.0)),
        ("partial_rotary_factor", "-1", top("partial_rotary_factor", -1.0)),
        ("rope_parameters.rope_theta", "0", modern),
        (&format!("{scaling}factor"), "0", with_rope(json!({"rope_type": "linear", "factor": 0}))),
        (&format!("{scaling}factor"), "0", llama3("factor", json!(0))),
        (&format!("{scaling}low_freq_factor"), "-1", llama3("low_freq_factor", json!(-1))),
        (&format!("{scaling}high_freq_factor"), "1", llama3("high_freq_factor", json!(1.0))),
        (
            &format!("{scaling}original_max_position_embeddings"),
            "0",
            llama3("original_max_position_embeddings", json!(0)),
        ),
        (
            &format!("{scaling}original_max_position_embeddings"),
            "64.5",
            llama3("original_max_position_embeddings", json!(64.5)),
        ),
        (&format!("{scaling}rope_type"), "5", with_rope(json!({"rope_type": 5, "factor": 4.0}))),
        (
            &format!("{scaling}truncate"),
            "0",
            with_rope(json!({"rope_type": "yarn", "factor": 4.0, "truncate": 0})),
        ),
        (&format!("{scaling}factor"), "-2", yarn("factor", -2.0)),
        (&format!("{scaling}beta_fast"), "0", yarn("beta_fast", 0.0)),
        (&format!("{scaling}beta_slow"), "0", yarn("beta_slow", 0.0)),
        (&format!("{scaling}attention_factor"), "0", yarn("attention_factor", 0.0)),
        (&format!("{scaling}mscale"), "-1", yarn("mscale", -1.0)),
        (&format!("{scaling}mscale_all_dim"), "-1", yarn("mscale_all_dim", -1.0)),
    ] {
        let what = format!("a config whose {key} is {value}");
        let got = ModelConfig::from_hf_json(&config);
        judge::fails_with!(what, got, ConfigError::BadValue { key: k, value: v, .. } if k == key && v == value);
    }
    // f32, in which frequencies are computed, has neither of them.
    for (factor, text) in [(1e-60, "1e-60"), (1e60, "1e60")] {
        let config = with_rope(json!({"rope_type": "linear", "factor": factor}));
        let got = ModelConfig::from_hf_json(&config);
        judge::fails_with!(factor, got, ConfigError::BadValue { value, .. } if value == text);
    }
    judge::works("an eps of 0", ModelConfig::from_hf_json(&top("rms_norm_eps", 0.0)));
}

/// A key that is read must not count as absent because Python wrote a number that JSON has not.
#[test]
fn a_number_that_json_has_not_is_refused_where_a_number_is_needed_and_ignored_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let read = |key: &str, word: &str| {
        let mut config = with_rope(json!({"rope_type": "linear", "factor": 2.0}));
        let at = if key == "factor" { &mut config["rope_scaling"] } else { &mut config };
        at[key] = "WORD".into();
        std::fs::write(&path, config.to_string().replace("\"WORD\"", word)).unwrap();
        ModelConfig::from_hf_file(&path)
    };
    for key in ["rms_norm_eps", "rope_theta", "factor", "hidden_size", "sliding_window"] {
        for word in ["NaN", "Infinity", "-Infinity"] {
            let what = format!("{key} of {word}");
            let error = judge::refused(&what, "BadValue", read(key, word)).to_string();
            assert!(error.contains(&format!("{key}` is \"{word}\": must be")), "{what}: {error}");
        }
    }
    judge::works("a key that is not read", read("attention_dropout", "NaN"));
}

proptest! {
    /// The config and the table of frequencies have the same rules: what is read can be computed.
    #[test]
    fn whatever_rotary_embedding_is_read_has_finite_frequencies(
        theta in prop_oneof![Just(0.0), Just(1.0), Just(f64::MAX), any::<f64>(), 0.5..1e7],
        kind in prop_oneof![Just("default"), Just("linear"), Just("llama3"), Just("yarn")],
        numbers in proptest::collection::vec(prop_oneof![Just(0.0), any::<f64>(), -1.0..64.0, 0.5..2.0], 7),
    ) {
        let mut scaling = json!({"rope_type": kind, "original_max_position_embeddings": numbers[6]});
        let keys = ["factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"];
        for (key, number) in keys.iter().zip(&numbers) {
            scaling[key] = json!(number);
        }
        let mut config = with_rope(scaling);
        config["rope_theta"] = json!(theta);
        if let Ok(config) = ModelConfig::from_hf_json(&config) {
            let rope = config.rope;
            let table = RopeTable::new(rope.rotary_dim, rope.theta, &rope.scaling);
            let table = table.unwrap_or_else(|e| panic!("{e}"));
            prop_assert!(table.inv_freq().iter().all(|f| f.is_finite()), "{:?}", table.inv_freq());
            prop_assert!(table.attention_scaling().is_finite());
        }
    }
}
