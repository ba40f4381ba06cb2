//! `config.json`, as Hugging Face writes it.
//!
//! Two generations are in use: hub files of today (transformers 4) with `rope_theta` and
//! `rope_scaling` at the top, and transformers 5 files with everything about rotary embedding in
//! `rope_parameters` and, for multimodal checkpoints, the language model in `text_config`. Defaults
//! of absent keys are those of the family's configuration class in transformers.

use std::path::Path;

use l1_tensor::ops::RopeScaling;
use serde_json::{Map, Value};

use super::{
    Activation, AttentionConfig, ConfigError, MlpConfig, ModelConfig, Norm, RopeConfig,
    llama_like_layer, numbers, quantization,
};

type Result<T> = std::result::Result<T, ConfigError>;

impl ModelConfig {
    /// Read a `config.json`, and the `hf_quant_config.json` that ModelOpt puts beside it.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn from_hf_file(path: &Path) -> Result<Self> {
        let config = Self::from_hf_json(&read_json(path)?)?;
        let modelopt = path.with_file_name(quantization::MODELOPT_FILE);
        if modelopt.exists() {
            quantization::check(&read_json(&modelopt)?)?;
        }
        Ok(config)
    }

    /// Read an already parsed `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn from_hf_json(value: &Value) -> Result<Self> {
        Keys::new(value)?.model()
    }
}

fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Io { path: path.into(), source })?;
    parse_python_json(&text)
        .map_err(|e| ConfigError::Json { path: path.into(), why: e.to_string() })
}

/// JSON as Python's `json` module writes it: `Infinity`, `-Infinity` and `NaN` may stand for
/// numbers. They become strings, so a key that needs a number refuses them by name.
pub(crate) fn parse_python_json(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).or_else(|first| {
        let mut out = String::with_capacity(text.len());
        let (mut in_string, mut escaped) = (false, false);
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if !in_string {
                let word =
                    ["-Infinity", "Infinity", "NaN"].into_iter().find(|w| rest.starts_with(w));
                if let Some(word) = word {
                    out.extend(["\"", word, "\""]);
                    rest = &rest[word.len()..];
                    continue;
                }
            }
            match c {
                _ if escaped => escaped = false,
                '\\' if in_string => escaped = true,
                '"' => in_string = !in_string,
                _ => {}
            }
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
        // If it is still not JSON, the first message is about the file as it is.
        serde_json::from_str(&out).map_err(|_| first)
    })
}

/// Keys of a config, `text_config` before the top level.
struct Keys<'a> {
    levels: Vec<&'a Map<String, Value>>,
}

impl<'a> Keys<'a> {
    fn new(value: &'a Value) -> Result<Self> {
        let top = value.as_object().ok_or_else(|| ConfigError::BadValue {
            key: "config.json".into(),
            value: short(value),
            why: "must be a JSON object".into(),
        })?;
        let inner = top.get("text_config").and_then(Value::as_object);
        Ok(Self { levels: inner.into_iter().chain([top]).collect() })
    }

    /// Value of a key that is set: null is not.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.levels.iter().find_map(|l| l.get(key)).filter(|v| !v.is_null())
    }

    fn model(&self) -> Result<ModelConfig> {
        let architecture = self.architecture()?;
        let family = architecture.as_str();
        if let Some(scheme) = self.get(quantization::KEY) {
            quantization::check(scheme)?;
        }
        // exercise l2.config
        let hidden = self.size("hidden_size")?;
        let q_heads = self.size("num_attention_heads")?;
        let kv_heads =
            self.size_or("num_key_value_heads", if family == "mistral" { 8 } else { q_heads })?;
        let default_head =
            if family == "qwen3" { 128 } else { hidden.checked_div(q_heads).unwrap_or(0) };
        let head_dim = self.size_or("head_dim", default_head)?;
        let intermediate = self.size("intermediate_size")?;
        let eps = self.number_or("rms_norm_eps", 1e-6)? as f32;
        let max_context = self.size("max_position_embeddings")?;
        let activation = self.activation()?;
        let attention_bias = self.flag_or("attention_bias", false)?;
        let (qkv_bias, o_bias) = match family {
            "qwen2" => (true, false),
            "mistral" => (false, false),
            _ => (attention_bias, attention_bias),
        };
        let mlp_bias = family == "llama" && self.flag_or("mlp_bias", false)?;
        let n_layers = self.size("num_hidden_layers")?;
        if n_layers > 4096 {
            return Err(bad("num_hidden_layers", &n_layers.into(), "must be between 1 and 4096"));
        }
        let layers = (0..n_layers)
            .map(|i| {
                let attention = AttentionConfig {
                    q_heads,
                    kv_heads,
                    head_dim,
                    qkv_bias,
                    o_bias,
                    qk_norm: (family == "qwen3").then_some(eps),
                    window: self.window(family, i)?,
                };
                let mlp = MlpConfig { intermediate, activation, bias: mlp_bias };
                Ok(llama_like_layer(attention, mlp, eps))
            })
            .collect::<Result<_>>()?;
        ModelConfig {
            hidden,
            vocab: self.size("vocab_size")?,
            max_context,
            tied_embeddings: self.flag_or("tie_word_embeddings", false)?,
            final_norm: Norm::Rms { eps },
            rope: self.rope(head_dim, max_context)?,
            layers,
            bos: self.tokens("bos_token_id")?.first().copied(),
            eos: self.tokens("eos_token_id")?,
            architecture,
        }
        .check()
        // end of exercise
    }

    fn architecture(&self) -> Result<String> {
        let class = self
            .get("architectures")
            .and_then(|a| a.get(0))
            .and_then(Value::as_str)
            .unwrap_or_default();
        let name = match self.get("model_type").and_then(Value::as_str) {
            Some(name) => name.to_string(),
            None if class.is_empty() => {
                let why = "it names the architecture";
                return Err(ConfigError::Missing { key: "model_type".into(), why });
            }
            None => class.trim_end_matches("ForCausalLM").to_lowercase(),
        };
        if super::SUPPORTED.iter().any(|(family, _)| *family == name) {
            return Ok(name);
        }
        let missing = missing_parts(&name);
        Err(ConfigError::UnsupportedArchitecture { name, missing })
    }

    fn rope(&self, head_dim: usize, max_context: usize) -> Result<RopeConfig> {
        let modern = self.get("rope_parameters");
        let key = if modern.is_some() { "rope_parameters" } else { "rope_scaling" };
        let dict = modern.or_else(|| self.get("rope_scaling"));
        let empty = Map::new();
        let dict = match dict {
            None => &empty,
            Some(Value::Object(map)) => map,
            Some(other) => return Err(bad(key, other, "must be an object or null")),
        };
        if dict.values().any(Value::is_object) {
            let why = "rotary parameters that differ from layer to layer are not supported";
            return Err(unsupported(key, why.into()));
        }
        let set = |name: &str| dict.get(name).filter(|v| !v.is_null());
        let number = |name: &str, default: Option<f64>| match set(name) {
            Some(v) => {
                v.as_f64().ok_or_else(|| bad(&format!("{key}.{name}"), v, "must be a number"))
            }
            None => default.ok_or_else(|| ConfigError::Missing {
                key: format!("{key}.{name}"),
                why: "this kind of rope scaling needs it",
            }),
        };
        let optional = |name: &str| set(name).map(|_| number(name, None)).transpose();
        let theta = match set("rope_theta") {
            Some(_) => number("rope_theta", None)?,
            None => self.number_or("rope_theta", 10_000.0)?,
        };
        let partial = match set("partial_rotary_factor") {
            Some(_) => number("partial_rotary_factor", None)?,
            None => self.number_or("partial_rotary_factor", 1.0)?,
        };
        if !(partial > 0.0 && partial <= 1.0) {
            let why = "must be a number above 0, and at most 1".into();
            let (key, value) = ("partial_rotary_factor".into(), partial.to_string());
            return Err(ConfigError::BadValue { key, value, why });
        }
        let length = "original_max_position_embeddings";
        let original = match set(length) {
            Some(n) => {
                let whole = n.as_f64().filter(|n| n.fract() == 0.0 && (1.0..1e15).contains(n));
                let bad =
                    || bad(&format!("{key}.{length}"), n, "must be a whole number of at least 1");
                whole.ok_or_else(bad)? as usize
            }
            None => self.size_or(length, max_context)?,
        };
        let named = ["rope_type", "type"].into_iter().find_map(|name| Some((name, set(name)?)));
        let kind = match named {
            None => "default",
            Some((name, v)) => {
                v.as_str().ok_or_else(|| bad(&format!("{key}.{name}"), v, "must be a string"))?
            }
        };
        let scaling = match kind {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: number("factor", None)? },
            "llama3" => RopeScaling::Llama3 {
                factor: number("factor", None)?,
                low_freq_factor: number("low_freq_factor", None)?,
                high_freq_factor: number("high_freq_factor", None)?,
                original_max_position: original,
            },
            "yarn" => RopeScaling::Yarn {
                factor: number("factor", None)?,
                beta_fast: number("beta_fast", Some(32.0))?,
                beta_slow: number("beta_slow", Some(1.0))?,
                original_max_position: original,
                attention_factor: optional("attention_factor")?,
                mscale: optional("mscale")?,
                mscale_all_dim: optional("mscale_all_dim")?,
                truncate: match set("truncate") {
                    None => true,
                    Some(v) => v.as_bool().ok_or_else(|| {
                        bad(&format!("{key}.truncate"), v, "must be true or false")
                    })?,
                },
            },
            other => {
                let why = format!(
                    "rope scaling `{other}` is not supported; default, linear, llama3 and yarn are"
                );
                return Err(unsupported(&format!("{key}.rope_type"), why));
            }
        };
        let rope = RopeConfig { theta, rotary_dim: (head_dim as f64 * partial) as usize, scaling };
        // What is not in the object is at the top, or a default.
        let named = |p: &str| if set(p).is_some() { format!("{key}.{p}") } else { p.into() };
        numbers::check_rope(&rope, named)?;
        Ok(rope)
    }

    /// The sliding window of layer `i`.
    fn window(&self, family: &str, i: usize) -> Result<Option<usize>> {
        let key = "sliding_window";
        let window = match self.get(key) {
            None => return Ok(None),
            Some(v) => v.as_u64().ok_or_else(|| bad(key, v, "must be a whole number or null"))?,
        };
        // exercise l2.config
        let slides = match (family, self.get("layer_types").and_then(|t| t.get(i))) {
            (_, Some(Value::String(kind))) => match kind.as_str() {
                "sliding_attention" => true,
                "full_attention" => false,
                other => {
                    let why = format!("layers of type `{other}` are not supported");
                    return Err(unsupported("layer_types", why));
                }
            },
            (_, Some(other)) => return Err(bad("layer_types", other, "must be strings")),
            ("mistral", _) => true,
            ("qwen2" | "qwen3", _) => {
                self.flag_or("use_sliding_window", false)?
                    && i >= self.size_or("max_window_layers", 28)?
            }
            _ => false,
        };
        Ok(slides.then_some(window as usize))
        // end of exercise
    }

    fn activation(&self) -> Result<Activation> {
        let key = "hidden_act";
        match self.get(key).map(|v| v.as_str().ok_or(v)) {
            None | Some(Ok("silu" | "swish")) => Ok(Activation::Silu),
            Some(Ok("gelu")) => Ok(Activation::Gelu),
            Some(Ok("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast")) => Ok(Activation::GeluTanh),
            Some(Ok(other)) => {
                let why = format!("activation `{other}` is not supported; silu and gelu are");
                Err(unsupported(key, why))
            }
            Some(Err(v)) => Err(bad(key, v, "must be a string")),
        }
    }

    fn size(&self, key: &str) -> Result<usize> {
        let why = "the model cannot be sized without it";
        let v = self.get(key).ok_or_else(|| ConfigError::Missing { key: key.into(), why })?;
        let n = v.as_u64().and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| bad(key, v, "must be a whole number, not negative"))
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.get(key).is_some() { self.size(key) } else { Ok(default) }
    }

    fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_f64().ok_or_else(|| bad(key, v, "must be a number")),
        }
    }

    fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_bool().ok_or_else(|| bad(key, v, "must be true or false")),
        }
    }

    /// A token id, a list of them, or nothing.
    fn tokens(&self, key: &str) -> Result<Vec<u32>> {
        token_ids(self.get(key)).ok_or_else(|| {
            bad(key, self.get(key).unwrap_or(&Value::Null), "must be a token id or a list of them")
        })
    }
}

/// A token id, a list of them, or (null, absent) none; `None` for anything else.
pub(crate) fn token_ids(value: Option<&Value>) -> Option<Vec<u32>> {
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        None | Some(Value::Null) => Some(vec![]),
        Some(Value::Array(list)) => list.iter().map(one).collect(),
        Some(v) => Some(vec![one(v)?]),
    }
}

fn bad(key: &str, value: &Value, why: &str) -> ConfigError {
    ConfigError::BadValue { key: key.into(), value: short(value), why: why.into() }
}

fn unsupported(key: &str, why: String) -> ConfigError {
    ConfigError::Unsupported { key: key.into(), why }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// Missing feature of an unsupported architecture that people are likely to try.
pub(super) fn missing_parts(name: &str) -> String {
    let parts = match name {
        n if n.contains("moe") || n.contains("mixtral") || n.starts_with("deepseek") => {
            "mixture-of-experts layers are not built yet"
        }
        n if n.contains("mamba") => "recurrent (state space) mixers are not built yet",
        n if n.contains("qwen3_next") || n.contains("deltanet") => {
            "gated DeltaNet mixers are not built yet"
        }
        n if n.starts_with("gemma") => {
            "norms after the branches, scaled embeddings and soft-capped scores are not built"
        }
        n if n.starts_with("phi") => "fused projections and LongRoPE are not built",
        n if n.starts_with("gpt") => "learned position embeddings and ungated MLPs are not built",
        n if n.starts_with("bert") || n.starts_with("t5") => {
            "only decoder-only language models can run"
        }
        _ => "the engine does not know this architecture",
    };
    parts.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_numbers_outside_of_strings_become_strings_and_inside_stay() {
        let v =
            parse_python_json(r#"{"a": Infinity, "b": [-Infinity, NaN], "c": "NaN \" Infinity"}"#)
                .unwrap();
        assert!(v["a"] == "Infinity" && v["b"][0] == "-Infinity" && v["b"][1] == "NaN");
        assert_eq!(v["c"], "NaN \" Infinity");
        assert!(parse_python_json("{\"a\": Infinit}").is_err());
    }
}
