//! Names of tensors, and the tensors that a model must have.
//!
//! Hugging Face names a weight by its place in the Python module tree
//! (`model.layers.3.self_attn.q_proj.weight`); GGUF by a short fixed vocabulary
//! (`blk.3.attn_q.weight`). The models of the families llama, mistral, qwen2 and qwen3 use the
//! same vocabulary, so one table serves all. Source: `gguf-py/gguf/tensor_mapping.py` in
//! llama.cpp, and `modeling_llama.py`, `modeling_qwen3.py` in transformers.

use std::collections::HashMap;

/// Names outside the layers: (Hugging Face, GGUF).
const OUTSIDE: [(&str, &str); 3] =
    [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

/// Names inside layer i: after `model.layers.{i}.` and after `blk.{i}.`.
const INSIDE: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The GGUF name of a Hugging Face tensor; `None` for a name that no table row covers.
pub fn to_gguf(hf: &str) -> Option<String> {
    // exercise l2.names
    let (module, kind) = split_kind(hf)?;
    if let Some((_, gguf)) = OUTSIDE.iter().find(|(h, _)| *h == module) {
        return Some(format!("{gguf}.{kind}"));
    }
    let (layer, part) = split_layer(module.strip_prefix("model.layers.")?)?;
    let (_, gguf) = INSIDE.iter().find(|(h, _)| *h == part)?;
    Some(format!("blk.{layer}.{gguf}.{kind}"))
    // end of exercise
}

/// The Hugging Face name of a GGUF tensor; `None` for a name that no table row covers, such as
/// `rope_freqs.weight`, which has no counterpart.
pub fn to_hf(gguf: &str) -> Option<String> {
    // exercise l2.names
    let (module, kind) = split_kind(gguf)?;
    if let Some((hf, _)) = OUTSIDE.iter().find(|(_, g)| *g == module) {
        return Some(format!("{hf}.{kind}"));
    }
    let (layer, part) = split_layer(module.strip_prefix("blk.")?)?;
    let (hf, _) = INSIDE.iter().find(|(_, g)| *g == part)?;
    Some(format!("model.layers.{layer}.{hf}.{kind}"))
    // end of exercise
}

/// `a.b.weight` into (`a.b`, `weight`); only weights and biases are tensors of a model.
fn split_kind(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('.').filter(|(_, kind)| matches!(*kind, "weight" | "bias"))
}

/// `12.attn_q` into (`12`, `attn_q`); the number in its one canonical spelling.
fn split_layer(rest: &str) -> Option<(&str, &str)> {
    // exercise l2.names
    let (layer, part) = rest.split_once('.')?;
    let canonical = layer.bytes().all(|b| b.is_ascii_digit())
        && !layer.is_empty()
        && (layer == "0" || !layer.starts_with('0'));
    canonical.then_some((layer, part))
    // end of exercise
}

/// Returns whether a GGUF of this architecture keeps the rows of this (Hugging Face) tensor
/// permuted.
///
/// Only `general.architecture = llama`, which mistral files carry too, and there only the query
/// and key projections, weights and biases alike; see [`unpermute_rows`].
pub fn rows_are_permuted(architecture: &str, hf: &str) -> bool {
    architecture == "llama"
        && split_kind(hf).is_some_and(|(module, _)| {
            module.ends_with("self_attn.q_proj") || module.ends_with("self_attn.k_proj")
        })
}

/// Undoes llama.cpp's permutation of query and key rows: row r of the Hugging Face matrix is row
/// `map[r]` of the GGUF one. Empty for an odd `head_dim`, which rotary embedding cannot have, or
/// when `head_dim * n_heads` overflows.
///
/// Why there is one: rotary embedding turns pairs of elements of a head. Transformers pairs
/// element i with i + head_dim/2 ("rotate half"), the original Llama code paired neighbours 2i
/// and 2i + 1, and llama.cpp kept the neighbours. Its converter therefore moves row
/// `h * head_dim/2 + i` of each head to row `2i + h` (h = 0, 1). Source: `LlamaModel.permute` in
/// `convert_hf_to_gguf.py`.
///
/// `n_heads` is the number of query heads for q, of key/value heads for k.
pub fn unpermute_rows(head_dim: usize, n_heads: usize) -> Vec<usize> {
    if !head_dim.is_multiple_of(2) || head_dim.checked_mul(n_heads).is_none() {
        return Vec::new();
    }
    // exercise l2.names
    let half = head_dim / 2;
    (0..head_dim * n_heads)
        .map(|row| {
            let (head, within) = (row / head_dim, row % head_dim);
            head * head_dim + 2 * (within % half) + within / half
        })
        .collect()
    // end of exercise
}

/// Tensors that some checkpoints carry and no model needs: buffers that are computed from the
/// config (old rotary tables, causal masks), GGUF's table of rotary factors, which the config
/// reads on its own, and the tables of a draft head's vocabulary, which the head reads on its own.
pub fn is_ignorable(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with("rotary_emb.cos_cached")
        || name.ends_with("rotary_emb.sin_cached")
        || name.ends_with(".attn.bias")
        || name.ends_with(".attn.masked_bias")
        || name.ends_with("position_ids")
        || name == "rope_freqs.weight"
        || name == "d2t"
        || name == "t2d"
}

/// A tensor of one shape expected, of another found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MisShaped {
    /// The tensor.
    pub name: String,
    /// The shape that the config implies, row-major.
    pub expected: Vec<usize>,
    /// The shape that the checkpoint holds.
    pub found: Vec<usize>,
}

/// All differences between a checkpoint's tensors and the model, in one error.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("the checkpoint's tensors do not fit its config:{}", self.describe())]
pub struct TensorSetError {
    /// Missing tensors: (name, expected shape).
    pub missing: Vec<(String, Vec<usize>)>,
    /// Unexpected tensors: (name, shape found).
    pub extra: Vec<(String, Vec<usize>)>,
    /// Tensors with another shape.
    pub mis_shaped: Vec<MisShaped>,
}

impl TensorSetError {
    fn describe(&self) -> String {
        let mut parts = Vec::new();
        let list = |tensors: &[(String, Vec<usize>)]| {
            let each: Vec<_> = tensors.iter().map(|(n, s)| format!("{n} {s:?}")).collect();
            each.join(", ")
        };
        if !self.missing.is_empty() {
            parts.push(format!(" {} missing: {}", self.missing.len(), list(&self.missing)));
        }
        if !self.extra.is_empty() {
            parts.push(format!(" {} unexpected: {}", self.extra.len(), list(&self.extra)));
        }
        if !self.mis_shaped.is_empty() {
            let each: Vec<_> = self
                .mis_shaped
                .iter()
                .map(|m| format!("{} is {:?}, expected {:?}", m.name, m.found, m.expected))
                .collect();
            parts.push(format!(" {} mis-shaped: {}", each.len(), each.join(", ")));
        }
        if self.missing.iter().any(|(n, _)| n == "lm_head.weight") {
            parts.push(" (is tie_word_embeddings missing from the config?)".into());
        }
        parts.join(";")
    }
}

/// Compares the tensors a model expects with those found, by Hugging Face name and row-major
/// shape.
///
/// Tolerated: what [`is_ignorable`], and an `lm_head.weight` that is not expected. Some tools
/// write the head of a model with tied embeddings a second time; the embedding is used.
///
/// # Errors
/// [`TensorSetError`], listing all that is missing, unexpected or mis-shaped, each list in the
/// order given.
pub fn check_tensors<'a>(
    expected: &[(String, Vec<usize>)],
    found: impl IntoIterator<Item = (&'a str, &'a [usize])>,
) -> Result<(), TensorSetError> {
    // exercise l2.names
    let mut wanted: HashMap<&str, &[usize]> =
        expected.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    let mut error = TensorSetError::default();
    for (name, shape) in found {
        match wanted.remove(name) {
            Some(want) if want == shape => {}
            Some(want) => error.mis_shaped.push(MisShaped {
                name: name.into(),
                expected: want.into(),
                found: shape.into(),
            }),
            None if is_ignorable(name) || name == "lm_head.weight" => {}
            None => error.extra.push((name.into(), shape.into())),
        }
    }
    error.missing =
        expected.iter().filter(|(name, _)| wanted.contains_key(name.as_str())).cloned().collect();
    if error == TensorSetError::default() { Ok(()) } else { Err(error) }
    // end of exercise
}
