//! A model's description as data.
//!
//! Strata has one decoder, and it knows no architecture by name. A checkpoint's own description
//! (`config.json`, or GGUF metadata) is parsed into a [`ModelConfig`]: sizes, and for every layer a list of
//! branches. A branch is `x + scale * op(norm(x))`; a Llama layer is two of them in sequence, attention and
//! MLP. A parallel block, a mixture of experts or a recurrent mixer is another list, or another [`Op`], not
//! another decoder.

mod gguf;
mod hf;
mod numbers;
mod quantization;
mod to_hf;

pub(crate) use hf::{parse_python_json, token_ids};

use std::path::PathBuf;

use l1_tensor::ops::RopeScaling;

/// Supported architecture families, as `config.json` names them.
pub const SUPPORTED: [(&str, &str); 4] = [
    ("llama", "LlamaForCausalLM: Llama 2 and 3, TinyLlama, SmolLM2; tied or untied, llama3 rope"),
    ("mistral", "MistralForCausalLM: Mistral 7B; sliding window"),
    ("qwen2", "Qwen2ForCausalLM: Qwen2 and Qwen2.5; bias on q, k and v"),
    ("qwen3", "Qwen3ForCausalLM: dense Qwen3; q/k norm, head_dim of its own"),
];

/// The key of the epsilon of every norm.
const EPS: &str = "rms_norm_eps";

/// A config that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Not JSON (Python's `Infinity` and `NaN` are accepted).
    #[error("{path}: not valid JSON: {why}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Position and reason.
        why: String,
    },
    /// The architecture is not supported.
    #[error(
        "architecture `{name}` is not supported: {missing}; supported are llama, mistral, qwen2 and qwen3"
    )]
    UnsupportedArchitecture {
        /// Name of the architecture in the checkpoint.
        name: String,
        /// Missing feature.
        missing: String,
    },
    /// A feature of a supported architecture is not supported.
    #[error("config key `{key}`: {why}")]
    Unsupported {
        /// Key of the feature.
        key: String,
        /// The unsupported feature.
        why: String,
    },
    /// A required key is missing.
    #[error("config key `{key}` is missing: {why}")]
    Missing {
        /// The key.
        key: String,
        /// Use of the key.
        why: &'static str,
    },
    /// A value has the wrong type or is out of range.
    #[error("config key `{key}` is {value}: {why}")]
    BadValue {
        /// The key.
        key: String,
        /// The value found.
        value: String,
        /// Valid values.
        why: String,
    },
}

/// A decoder-only transformer. Sizes are counts of elements; `H` is `hidden`, `V` is `vocab`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family, as in [`SUPPORTED`].
    pub architecture: String,
    /// Width of the residual stream, `H`.
    pub hidden: usize,
    /// Vocabulary size: number of rows of the embedding, `V`.
    pub vocab: usize,
    /// Maximum number of tokens of a sequence.
    pub max_context: usize,
    /// Whether the output projection is the embedding matrix.
    pub tied_embeddings: bool,
    /// The norm before the output projection.
    pub final_norm: Norm,
    /// Rotary position embedding, one for all layers.
    pub rope: RopeConfig,
    /// The layers, first to last.
    pub layers: Vec<LayerConfig>,
    /// Beginning of text, if the model has one.
    pub bos: Option<u32>,
    /// Tokens that end a generation, according to the config.
    pub eos: Vec<u32>,
}

/// One layer: branches that are added to the residual stream, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// The branches, first to last.
    pub branches: Vec<Branch>,
}

/// `residual += scale * op(norm(input))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// Norm of the branch's input.
    pub norm: Norm,
    /// The mixer or the MLP.
    pub op: Op,
    /// Input of the branch.
    pub mode: BranchMode,
    /// Factor of the branch's output (1 for all supported families).
    pub scale: f32,
}

/// Input of a branch: the residual stream as it is now, or as it was at the beginning of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchMode {
    /// Runs after the branches before it: `x += a(x); x += b(x)`.
    Sequential,
    /// Runs in parallel to the branches before it: `x += a(x0) + b(x0)`.
    Parallel,
}

/// Normalisation of a branch's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// Root mean square norm (Zhang and Sennrich 2019), with a weight.
    Rms {
        /// Epsilon, added to the mean square inside the root.
        eps: f32,
    },
    /// Layer norm (Ba et al. 2016), with weight and bias.
    Layer {
        /// Epsilon, added to the variance inside the root.
        eps: f32,
    },
}

/// Operation of a branch. Mixture of experts and recurrent mixers will be variants here.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Causal self-attention.
    Attention(AttentionConfig),
    /// A gated MLP.
    Mlp(MlpConfig),
}

/// Attention with grouped queries.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads, `H_q`.
    pub q_heads: usize,
    /// Key and value heads, `H_kv`; divides `q_heads`.
    pub kv_heads: usize,
    /// Elements of one head, `D`. Need not be `hidden / q_heads`.
    pub head_dim: usize,
    /// Bias on the q, k and v projections.
    pub qkv_bias: bool,
    /// Bias on the output projection.
    pub o_bias: bool,
    /// RMS norm over each head of q and k before rope, with this eps.
    pub qk_norm: Option<f32>,
    /// Sliding window: maximum number of keys that a query sees, itself included.
    pub window: Option<usize>,
}

/// `down(act(gate(x)) * up(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpConfig {
    /// Intermediate width, `I`.
    pub intermediate: usize,
    /// Activation of the gate.
    pub activation: Activation,
    /// Bias on all three projections.
    pub bias: bool,
}

/// The nonlinearity of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// Gelu, exact (erf).
    Gelu,
    /// Gelu, tanh approximation.
    GeluTanh,
}

/// Rotary position embedding (Su et al. 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Elements of a head that rotate, from the front; even, at most `head_dim`.
    pub rotary_dim: usize,
    /// Method of stretching frequencies for long contexts.
    pub scaling: RopeScaling,
}

impl ModelConfig {
    /// Attention branches of every layer, with the layer index.
    pub fn attention_layers(&self) -> impl Iterator<Item = (usize, &AttentionConfig)> {
        self.layers.iter().enumerate().flat_map(|(i, layer)| {
            layer.branches.iter().filter_map(move |b| match &b.op {
                Op::Attention(a) => Some((i, a)),
                Op::Mlp(_) => None,
            })
        })
    }

    /// Size of one token's keys and values in all layers, in bytes, for elements of `element` bytes.
    ///
    /// ```text
    /// sum over attention layers of 2 * H_kv * D * element
    /// ```
    pub fn kv_bytes_per_token(&self, element: usize) -> usize {
        // exercise l2.config
        self.attention_layers().map(|(_, a)| 2 * a.kv_heads * a.head_dim * element).sum()
        // end of exercise
    }

    /// Rejects impossible sizes before anything is allocated for them, and norms that cannot be computed.
    pub(crate) fn check(self) -> Result<Self, ConfigError> {
        let bad = |key: &str, value: usize, why: &str| ConfigError::BadValue {
            key: key.into(),
            value: value.to_string(),
            why: why.into(),
        };
        let within = |key: &str, value: usize, max: usize| {
            if value == 0 || value > max {
                return Err(bad(key, value, &format!("must be between 1 and {max}")));
            }
            Ok(())
        };
        within("hidden_size", self.hidden, 1 << 20)?;
        within("vocab_size", self.vocab, 1 << 24)?;
        within("max_position_embeddings", self.max_context, 1 << 30)?;
        within("num_hidden_layers", self.layers.len(), 4096)?;
        numbers::check_norm(EPS, self.final_norm)?;
        for branch in self.layers.iter().flat_map(|l| &l.branches) {
            numbers::check_norm(EPS, branch.norm)?;
            match &branch.op {
                Op::Attention(a) => {
                    within("num_attention_heads", a.q_heads, 1 << 12)?;
                    within("num_key_value_heads", a.kv_heads, 1 << 12)?;
                    within("head_dim", a.head_dim, 1 << 12)?;
                    if !a.q_heads.is_multiple_of(a.kv_heads) {
                        let why = "must divide num_attention_heads";
                        return Err(bad("num_key_value_heads", a.kv_heads, why));
                    }
                    let rotary = self.rope.rotary_dim;
                    if rotary == 0 || rotary > a.head_dim || !rotary.is_multiple_of(2) {
                        let why = "the part of a head that rotates must be even, at least 2, and fit the head";
                        return Err(bad("rotary_dim", rotary, why));
                    }
                    if let Some(eps) = a.qk_norm {
                        numbers::check_norm(EPS, Norm::Rms { eps })?;
                    }
                    if a.window == Some(0) {
                        return Err(bad("sliding_window", 0, "must be at least 1, or null"));
                    }
                }
                Op::Mlp(m) => within("intermediate_size", m.intermediate, 1 << 22)?,
            }
        }
        Ok(self)
    }
}

/// The two branches of a layer of every supported family: attention, then a gated MLP, each behind an
/// RMS norm.
pub(crate) fn llama_like_layer(
    attention: AttentionConfig,
    mlp: MlpConfig,
    eps: f32,
) -> LayerConfig {
    let branch =
        |op| Branch { norm: Norm::Rms { eps }, op, mode: BranchMode::Sequential, scale: 1.0 };
    LayerConfig { branches: vec![branch(Op::Attention(attention)), branch(Op::Mlp(mlp))] }
}
