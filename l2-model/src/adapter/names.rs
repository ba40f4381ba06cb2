//! Names of an adapter's tensors.
//!
//! PEFT wraps the model twice, so a tensor of `model.layers.0.mlp.up_proj` is called
//! `base_model.model.model.layers.0.mlp.up_proj.lora_A.weight`. For a base model without a language model's head (class
//! `AutoModel`) the second `model.` is missing.

use super::Projection;
use super::error::AdapterError;

/// Which of the two matrices of a side term a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// `lora_A` `[r, K]`.
    A,
    /// `lora_B` `[N, r]`.
    B,
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) layer: usize,
    pub(super) projection: Projection,
    pub(super) side: Side,
}

/// Name of a module in the model, as the patterns of a config see it.
pub(super) fn module(layer: usize, projection: Projection) -> String {
    format!("model.layers.{layer}.{}", projection.module())
}

/// The place of the tensor of this name.
///
/// # Errors
/// [`AdapterError::Tensor`] for tensors of other parts of the model, and of other kinds of adapters.
pub(super) fn place(tensor: &str) -> Result<Place, AdapterError> {
    let bad = |why: &str| AdapterError::Tensor { tensor: tensor.into(), why: why.into() };
    if tensor.contains("lora_magnitude_vector") {
        return Err(bad("DoRA is not supported"));
    }
    if tensor.contains("lora_embedding_")
        || tensor.contains("embed_tokens")
        || tensor.contains("lm_head")
    {
        return Err(bad("adapters of the embedding or of the output projection are not supported"));
    }
    parse(tensor).ok_or_else(|| {
        bad("it is no LoRA matrix of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or down_proj, which are \
             supported")
    })
}

fn parse(tensor: &str) -> Option<Place> {
    let name = tensor.strip_prefix("base_model.model.")?;
    let name = name.strip_prefix("model.").unwrap_or(name).strip_prefix("layers.")?;
    let (layer, name) = name.split_once('.')?;
    let (module, kind) = name.split_once(".lora_")?;
    let side = match kind {
        "A.weight" | "A.default.weight" => Side::A,
        "B.weight" | "B.default.weight" => Side::B,
        _ => return None,
    };
    let projection = Projection::ALL.into_iter().find(|p| p.module() == module)?;
    Some(Place { layer: layer.parse().ok()?, projection, side })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_pefts() {
        let up = |side| Place { layer: 11, projection: Projection::Up, side };
        for (name, side) in [
            ("base_model.model.model.layers.11.mlp.up_proj.lora_A.weight", Side::A),
            ("base_model.model.layers.11.mlp.up_proj.lora_B.weight", Side::B),
            ("base_model.model.model.layers.11.mlp.up_proj.lora_B.default.weight", Side::B),
        ] {
            assert_eq!(place(name), Ok(up(side)), "{name}");
        }
        for projection in Projection::ALL {
            let name = format!("base_model.model.{}.lora_A.weight", module(0, projection));
            assert_eq!(place(&name).unwrap().projection, projection, "{name}");
        }
    }

    #[test]
    fn other_tensors_are_refused_by_name() {
        for (name, word) in [
            ("base_model.model.lm_head.lora_A.weight", "output projection"),
            ("base_model.model.model.embed_tokens.lora_embedding_A", "embedding"),
            ("base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector", "DoRA"),
            (
                "base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight",
                "no LoRA matrix",
            ),
            ("base_model.model.model.layers.0.mlp.up_proj.lora_A.bias", "no LoRA matrix"),
            ("base_model.model.model.layers.-1.mlp.up_proj.lora_A.weight", "no LoRA matrix"),
            ("model.layers.0.mlp.up_proj.weight", "no LoRA matrix"),
            ("", "no LoRA matrix"),
        ] {
            let error = place(name).unwrap_err().to_string();
            assert!(error.contains(word), "{name}: {error}");
        }
    }
}
