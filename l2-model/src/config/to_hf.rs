//! Writing a `config.json` for a model whose description came from elsewhere, such as GGUF metadata.
//!
//! The keys are those that transformers 4 wrote and all later versions read: `rope_theta` and `rope_scaling` at the
//! top, and `torch_dtype`. What is written is read back by `config/hf.rs` and compared, so a model that the family's
//! configuration class cannot describe is refused and not changed.

use l1_tensor::ops::{RopeScaling, RopeTable};
use serde_json::{Map, Value, json};

use super::{
    Activation, AttentionConfig, ConfigError, MlpConfig, ModelConfig, Norm, Op, RopeConfig,
};

type Result<T> = std::result::Result<T, ConfigError>;

/// Largest relative difference between a frequency of a table of factors and that of the rule which is written for it.
/// Converters compute factors from f32 frequencies, which costs about 1e-5 of the largest factor.
const SAME_FREQUENCY: f32 = 1e-4;

impl ModelConfig {
    /// The `config.json` of this model with weights in bf16. Describes the model to transformers: architecture, sizes,
    /// biases, rotary embedding, token ids.
    ///
    /// A llama model with a sliding window, which a GGUF file can have, is written as mistral. Llama 3's table of
    /// rotary factors becomes the rule that it was computed with.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`], naming the key, for what no `config.json` of the family can say.
    pub fn to_hf_json(&self) -> Result<Value> {
        let (attention, mlp, eps) = self.first_layer()?;
        let family = match (self.architecture.as_str(), attention.window) {
            ("llama", Some(_)) => "mistral",
            (family, _) => family,
        };
        check_biases(family, attention, mlp)?;
        let rope = self.rope_for_hf(attention.head_dim)?;
        let class = match family {
            "llama" => "LlamaForCausalLM",
            "mistral" => "MistralForCausalLM",
            "qwen2" => "Qwen2ForCausalLM",
            "qwen3" => "Qwen3ForCausalLM",
            other => return Err(unsupported("model_type", format!("`{other}` is not written"))),
        };
        let mut value = json!({
            "architectures": [class],
            "model_type": family,
            "torch_dtype": "bfloat16",
            "hidden_size": self.hidden,
            "intermediate_size": mlp.intermediate,
            "num_hidden_layers": self.layers.len(),
            "num_attention_heads": attention.q_heads,
            "num_key_value_heads": attention.kv_heads,
            "head_dim": attention.head_dim,
            "hidden_act": activation(mlp.activation),
            "rms_norm_eps": shortest(eps),
            "max_position_embeddings": self.max_context,
            "rope_theta": rope.theta,
            "rope_scaling": scaling(&rope.scaling),
            "tie_word_embeddings": self.tied_embeddings,
            "vocab_size": self.vocab,
            "bos_token_id": self.bos,
            "eos_token_id": one_or_all(&self.eos),
            "attention_bias": attention.qkv_bias && attention.o_bias,
        });
        if family == "llama" {
            value["mlp_bias"] = mlp.bias.into();
        } else {
            let window = self.attention_layers().find_map(|(i, a)| a.window.map(|w| (i, w)));
            value["sliding_window"] = window.map(|(_, w)| w).into();
            if family != "mistral" {
                value["use_sliding_window"] = window.is_some().into();
                value["max_window_layers"] = window.map_or(self.layers.len(), |(i, _)| i).into();
            }
        }
        let said = Self { architecture: family.into(), rope, ..self.clone() };
        if Self::from_hf_json(&value)? != said {
            let why = format!("no config.json of the architecture `{family}` describes this model");
            return Err(unsupported("config.json", why));
        }
        Ok(value)
    }

    /// Attention, MLP and epsilon of the first layer. Others that differ are found when the result is read back.
    fn first_layer(&self) -> Result<(&AttentionConfig, &MlpConfig, f32)> {
        let branches = self.layers.first().map_or(&[][..], |layer| &layer.branches);
        match (branches, self.final_norm) {
            ([a, b], Norm::Rms { eps }) => match (&a.op, &b.op) {
                (Op::Attention(attention), Op::Mlp(mlp)) => Some((attention, mlp, eps)),
                _ => None,
            },
            _ => None,
        }
        .ok_or_else(|| {
            unsupported("config.json", "only layers of attention and an MLP are written".into())
        })
    }

    /// Rotary embedding as a `config.json` can say it.
    fn rope_for_hf(&self, head_dim: usize) -> Result<RopeConfig> {
        let rope = &self.rope;
        if rope.rotary_dim != head_dim {
            let why = format!(
                "{} of {head_dim} elements of a head rotate; transformers rotates all of them",
                rope.rotary_dim
            );
            return Err(unsupported("rope.dimension_count", why));
        }
        let RopeScaling::Factors(factors) = &rope.scaling else { return Ok(rope.clone()) };
        let scaling = rule_of(factors, rope).ok_or_else(|| {
            let why = "its factors are not those of Llama 3's rule with a low_freq_factor of 1 and a high_freq_factor \
                       of 4, and a config.json has no key for others";
            unsupported("rope_freqs.weight", why.into())
        })?;
        Ok(RopeConfig { scaling, ..rope.clone() })
    }
}

/// The rule of Llama 3 with which a table of factors was computed: its largest factor, and the original context with
/// which the table comes out. Where several do, Llama 3's own is taken; they have the same frequencies.
fn rule_of(factors: &[f32], rope: &RopeConfig) -> Option<RopeScaling> {
    let table = |scaling: &RopeScaling| RopeTable::new(rope.rotary_dim, rope.theta, scaling).ok();
    let wanted = table(&rope.scaling)?;
    let largest = f64::from(factors.iter().copied().fold(0.0, f32::max));
    // Computed with f32: 8 may be 7.9999995.
    let whole = largest.round();
    let factor = if (largest - whole).abs() < 1e-4 * largest { whole } else { largest };
    let contexts = std::iter::once(8192).chain((4..=20).map(|power| 1usize << power));
    let rules = contexts.map(|original_max_position| RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position,
    });
    std::iter::once(RopeScaling::None).chain(rules).find(|rule| {
        table(rule).is_some_and(|table| {
            let pairs = table.inv_freq().iter().zip(wanted.inv_freq());
            pairs.into_iter().all(|(a, b)| (a - b).abs() <= SAME_FREQUENCY * b)
        })
    })
}

fn check_biases(family: &str, attention: &AttentionConfig, mlp: &MlpConfig) -> Result<()> {
    let (qkv, o) = (attention.qkv_bias, attention.o_bias);
    let fits = match family {
        "mistral" => !qkv && !o && !mlp.bias,
        "qwen2" => qkv && !o && !mlp.bias,
        "qwen3" => qkv == o && !mlp.bias,
        _ => qkv == o,
    };
    let biases = [("q, k and v", qkv), ("the output of attention", o), ("the MLP", mlp.bias)];
    let present: Vec<&str> = biases.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    if fits {
        return Ok(());
    }
    let list = if present.is_empty() { "nothing".into() } else { present.join(" and ") };
    let why = format!("biases on {list}: no config.json of the architecture `{family}` says that");
    Err(unsupported("attention_bias", why))
}

fn activation(of: Activation) -> &'static str {
    match of {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
    }
}

/// The number with the fewest digits that is this f32: 1e-5, and not 9.999999747378752e-6.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

fn one_or_all(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [one] => (*one).into(),
        all => all.into(),
    }
}

/// `rope_scaling`. A table of factors has none.
fn scaling(of: &RopeScaling) -> Value {
    match *of {
        RopeScaling::None | RopeScaling::Factors(_) => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position,
        }),
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_position,
            attention_factor,
            mscale,
            mscale_all_dim,
            truncate,
        } => {
            let mut yarn = Map::new();
            let mut set = |key: &str, value: Value| drop(yarn.insert(key.into(), value));
            set("rope_type", "yarn".into());
            set("factor", factor.into());
            set("beta_fast", beta_fast.into());
            set("beta_slow", beta_slow.into());
            set("original_max_position_embeddings", original_max_position.into());
            let optional = [
                ("attention_factor", attention_factor),
                ("mscale", mscale),
                ("mscale_all_dim", mscale_all_dim),
            ];
            for (key, value) in optional.into_iter().filter(|(_, value)| value.is_some()) {
                set(key, value.into());
            }
            if !truncate {
                set("truncate", false.into());
            }
            Value::Object(yarn)
        }
    }
}

fn unsupported(key: &str, why: String) -> ConfigError {
    ConfigError::Unsupported { key: key.into(), why }
}
