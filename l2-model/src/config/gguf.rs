//! A model's description from GGUF metadata. Keys are those of the GGUF specification
//! (ggml/docs/gguf.md) and of llama.cpp's converters.

use l1_tensor::ops::RopeScaling;

use super::hf::missing_parts;
use super::{
    Activation, AttentionConfig, ConfigError, MlpConfig, ModelConfig, Norm, RopeConfig,
    llama_like_layer, numbers,
};
use crate::checkpoint::gguf::Metadata;
use crate::checkpoint::{GgufError, GgufFile, StoredType, quant};

type Result<T> = std::result::Result<T, ConfigError>;

impl ModelConfig {
    /// Reads the metadata (and the shape of the embedding) of a GGUF file.
    ///
    /// A file names its architecture: Mistral models are converted as `llama`, and are read as that
    /// here. Tied embeddings have no key: a file without `output.weight` has them. Llama 3 scaling
    /// has no key either: it is a tensor of factors, `rope_freqs.weight`.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn from_gguf(file: &GgufFile<'_>) -> Result<Self> {
        let architecture = file.architecture().map_err(gguf_error)?.to_string();
        if !["llama", "mistral", "qwen2", "qwen3"].contains(&architecture.as_str()) {
            let missing = missing_parts(&architecture);
            return Err(ConfigError::UnsupportedArchitecture { name: architecture, missing });
        }
        let keys = Keys { file, meta: file.metadata(), arch: &architecture };
        if keys.u64("expert_count")?.is_some_and(|n| n > 0) {
            return Err(ConfigError::UnsupportedArchitecture {
                missing: missing_parts("moe"),
                name: format!("{architecture} with experts"),
            });
        }
        let hidden = keys.size("embedding_length")?;
        let q_heads = keys.size("attention.head_count")?;
        let kv_heads = keys.u64("attention.head_count_kv")?.unwrap_or(q_heads);
        let default_head = hidden.checked_div(q_heads).unwrap_or(0);
        let head_dim = keys.u64("attention.key_length")?.unwrap_or(default_head);
        // The rows of q and k are put back in order by halves of a head.
        if !head_dim.is_multiple_of(2) {
            return Err(ConfigError::BadValue {
                key: keys.name("attention.key_length"),
                value: head_dim.to_string(),
                why: "must be even".into(),
            });
        }
        let value_dim = keys.u64("attention.value_length")?.unwrap_or(head_dim);
        if value_dim != head_dim {
            return Err(ConfigError::Unsupported {
                key: keys.name("attention.value_length"),
                why: format!("values of {value_dim} beside keys of {head_dim} are not supported"),
            });
        }
        let eps_key = "attention.layer_norm_rms_epsilon";
        let eps = keys.float(eps_key)?.unwrap_or(1e-6);
        numbers::check_norm(&keys.name(eps_key), Norm::Rms { eps })?;
        let intermediate = keys.size("feed_forward_length")?;
        let window = keys.u64("attention.sliding_window")?.filter(|w| *w > 0);
        let has = |name: &str| file.tensor(name).is_some();
        let n_layers = keys.size("block_count")?;
        if n_layers > 4096 {
            return Err(ConfigError::BadValue {
                key: keys.name("block_count"),
                value: n_layers.to_string(),
                why: "must be between 1 and 4096".into(),
            });
        }
        let layer = || {
            let attention = AttentionConfig {
                q_heads,
                kv_heads,
                head_dim,
                qkv_bias: architecture == "qwen2" || has("blk.0.attn_q.bias"),
                o_bias: has("blk.0.attn_output.bias"),
                qk_norm: (architecture == "qwen3").then_some(eps),
                window,
            };
            let bias = has("blk.0.ffn_gate.bias");
            let mlp = MlpConfig { intermediate, activation: Activation::Silu, bias };
            llama_like_layer(attention, mlp, eps)
        };
        let token = |key: &str| -> Result<Option<u32>> {
            let id = keys.meta.optional(key, Metadata::u64).map_err(gguf_error)?;
            Ok(id.and_then(|id| u32::try_from(id).ok()))
        };
        let mut eos = Vec::new();
        for key in ["eos", "eot", "eom"] {
            eos.extend(token(&format!("tokenizer.ggml.{key}_token_id"))?);
        }
        eos.dedup();
        let max_context = keys.size("context_length")?;
        ModelConfig {
            hidden,
            vocab: keys.vocab()?,
            max_context,
            tied_embeddings: !has("output.weight"),
            final_norm: Norm::Rms { eps },
            rope: keys.rope(head_dim, max_context)?,
            layers: (0..n_layers).map(|_| layer()).collect(),
            bos: token("tokenizer.ggml.bos_token_id")?,
            eos,
            architecture: architecture.clone(),
        }
        .check()
    }
}

struct Keys<'a, 'f> {
    file: &'a GgufFile<'f>,
    meta: Metadata<'a>,
    arch: &'a str,
}

impl Keys<'_, '_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn u64(&self, key: &str) -> Result<Option<usize>> {
        let n = self.meta.optional(&self.name(key), Metadata::u64).map_err(gguf_error)?;
        Ok(n.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    fn size(&self, key: &str) -> Result<usize> {
        let why = "the model cannot be sized without it";
        self.u64(key)?.ok_or_else(|| ConfigError::Missing { key: self.name(key), why })
    }

    fn float(&self, key: &str) -> Result<Option<f32>> {
        self.meta.optional(&self.name(key), Metadata::f32).map_err(gguf_error)
    }

    /// Number of rows of the embedding matrix: the metadata of some files have another number.
    fn vocab(&self) -> Result<usize> {
        let rows = self.file.tensor("token_embd.weight").and_then(|t| t.shape.first().copied());
        let why = "it is the embedding matrix";
        rows.ok_or_else(|| ConfigError::Missing { key: "token_embd.weight".into(), why })
    }

    fn rope(&self, head_dim: usize, max_context: usize) -> Result<RopeConfig> {
        let theta = f64::from(self.float("rope.freq_base")?.unwrap_or(10_000.0));
        let rotary_dim = self.u64("rope.dimension_count")?.unwrap_or(head_dim);
        let key = self.name("rope.scaling.type");
        let kind = self.meta.optional(&key, Metadata::str).map_err(gguf_error)?;
        let given = match self.float("rope.scaling.factor")? {
            // Older files have a key of their own for linear scaling.
            None => self.float("rope.scale_linear")?,
            some => some,
        };
        let factor = || {
            let why = "this kind of rope scaling needs it";
            let missing = || ConfigError::Missing { key: self.name("rope.scaling.factor"), why };
            given.map(f64::from).ok_or_else(missing)
        };
        let scaling = match kind {
            _ if self.file.tensor("rope_freqs.weight").is_some() => self.factors(rotary_dim)?,
            // llama.cpp takes linear for the default of a factor.
            None if given.is_some_and(|f| f != 1.0) => RopeScaling::Linear { factor: factor()? },
            None | Some("none") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: factor()? },
            Some("yarn") if self.float("rope.scaling.attn_factor")?.is_some_and(|f| f != 1.0) => {
                let (key, why) =
                    (self.name("rope.scaling.attn_factor"), "only 1 is supported".into());
                return Err(ConfigError::Unsupported { key, why });
            }
            Some("yarn") => RopeScaling::Yarn {
                factor: factor()?,
                beta_fast: self.float("rope.scaling.yarn_beta_fast")?.map_or(32.0, f64::from),
                beta_slow: self.float("rope.scaling.yarn_beta_slow")?.map_or(1.0, f64::from),
                original_max_position: self
                    .u64("rope.scaling.original_context_length")?
                    .unwrap_or(max_context),
                attention_factor: None,
                mscale: None,
                mscale_all_dim: None,
                truncate: true,
            },
            Some(other) => {
                let why =
                    format!("rope scaling `{other}` is not supported; none, linear and yarn are");
                return Err(ConfigError::Unsupported { key, why });
            }
        };
        let rope = RopeConfig { theta, rotary_dim, scaling };
        numbers::check_rope(&rope, |parameter| self.rope_key(parameter))?;
        Ok(rope)
    }

    /// The key for a parameter of Hugging Face's name.
    fn rope_key(&self, parameter: &str) -> String {
        let scaling = |key: &str| self.name(&format!("rope.scaling.{key}"));
        match parameter {
            "rope_theta" => self.name("rope.freq_base"),
            "factor" if self.meta.get(&scaling("factor")).is_none() => {
                self.name("rope.scale_linear")
            }
            "original_max_position_embeddings" => scaling("original_context_length"),
            "beta_fast" | "beta_slow" => scaling(&format!("yarn_{parameter}")),
            "rope_freqs.weight" => parameter.into(),
            _ => scaling(parameter),
        }
    }

    /// `rope_freqs.weight`: divisor of each frequency.
    fn factors(&self, rotary_dim: usize) -> Result<RopeScaling> {
        let key = "rope_freqs.weight";
        let bad = |value: String, why: &str| ConfigError::BadValue {
            key: key.into(),
            value,
            why: why.into(),
        };
        let why = "the tensor is listed but cannot be read";
        let Some(t) = self.file.tensor(key) else {
            return Err(ConfigError::Missing { key: key.into(), why });
        };
        if t.ty != StoredType::F32 || t.len() != rotary_dim / 2 {
            let found = format!("{:?} {:?}", t.ty, t.shape);
            return Err(bad(found, "must hold one F32 factor for each pair that rotates"));
        }
        let mut factors = vec![0.0; t.len()];
        quant::dequantize(t.ty, t.bytes, &mut factors)
            .map_err(|e| bad(e.to_string(), "must hold one F32 factor for each pair"))?;
        Ok(RopeScaling::Factors(factors))
    }
}

fn gguf_error(e: GgufError) -> ConfigError {
    let key = match &e {
        GgufError::MissingKey { key } => {
            return ConfigError::Missing { key: key.clone(), why: "every GGUF model has it" };
        }
        _ => "metadata".to_string(),
    };
    ConfigError::BadValue { key, value: "malformed".into(), why: e.to_string() }
}
