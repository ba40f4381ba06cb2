//! Names of an adapter's tensors.
//!
//! PEFT wraps the model twice, so a tensor of `model.layers.0.mlp.up_proj` is called
//! `base_model.model.model.layers.0.mlp.up_proj.lora_A.weight`. For a base model without a language model's head (class
//! `AutoModel`) the second `model.` is missing.

use super::Projection;
use super::error::{AdapterError, shortened};

/// What PEFT puts in front of a module's name.
const WRAPPED: &str = "base_model.model.";

/// Which of the two matrices of a side term a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// `lora_A` `[r, K]`.
    A,
    /// `lora_B` `[N, r]`.
    B,
}

/// Role of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorRole {
    pub(super) layer: usize,
    pub(super) projection: Projection,
    pub(super) side: Side,
}

/// Name of a tensor's module in the model, as the patterns of a config see it: the tensor's name without PEFT's parts.
pub(super) fn module(tensor: &str) -> &str {
    let name = tensor.strip_prefix(WRAPPED).unwrap_or(tensor);
    name.split_once(".lora_").map_or(name, |(module, _)| module)
}

/// Whether an entry of `target_modules` or `exclude_modules` is this module: it is the module's name, or the end of it
/// from behind a dot.
pub(super) fn any_is(entries: &[String], module: &str) -> bool {
    let rest = |entry: &String| module.strip_suffix(entry.as_str());
    let is = |entry| rest(entry).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    entries.iter().any(is)
}

/// Role of the tensor of this name.
///
/// # Errors
/// [`AdapterError::Tensor`] for tensors of other parts of the model, and of other kinds of adapters.
pub(super) fn role(tensor: &str) -> Result<TensorRole, AdapterError> {
    let bad = |why: &str| AdapterError::Tensor { tensor: shortened(tensor), why: why.into() };
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
        bad("it is not a LoRA matrix of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or down_proj, which are \
             supported")
    })
}

fn parse(tensor: &str) -> Option<TensorRole> {
    let name = tensor.strip_prefix(WRAPPED)?;
    let name = name.strip_prefix("model.").unwrap_or(name).strip_prefix("layers.")?;
    let (layer, name) = name.split_once('.')?;
    let (module, kind) = name.split_once(".lora_")?;
    let side = match kind {
        "A.weight" | "A.default.weight" => Side::A,
        "B.weight" | "B.default.weight" => Side::B,
        _ => return None,
    };
    let projection = Projection::ALL.into_iter().find(|p| p.module() == module)?;
    Some(TensorRole { layer: layer.parse().ok()?, projection, side })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_pefts() {
        let up = |side| TensorRole { layer: 11, projection: Projection::Up, side };
        for (name, side) in [
            ("base_model.model.model.layers.11.mlp.up_proj.lora_A.weight", Side::A),
            ("base_model.model.layers.11.mlp.up_proj.lora_B.weight", Side::B),
            ("base_model.model.model.layers.11.mlp.up_proj.lora_B.default.weight", Side::B),
        ] {
            assert_eq!(role(name), Ok(up(side)), "{name}");
        }
        for projection in Projection::ALL {
            let name =
                format!("base_model.model.model.layers.0.{}.lora_A.weight", projection.module());
            assert_eq!(role(&name).unwrap().projection, projection, "{name}");
        }
    }

    #[test]
    fn a_module_has_the_name_that_it_has_in_the_wrapped_model() {
        for module_name in ["model.layers.3.mlp.up_proj", "layers.3.mlp.up_proj"] {
            let tensor = format!("base_model.model.{module_name}.lora_B.weight");
            assert_eq!(module(&tensor), module_name);
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
                "not a LoRA matrix",
            ),
            ("base_model.model.model.layers.0.mlp.up_proj.lora_A.bias", "not a LoRA matrix"),
            ("base_model.model.model.layers.-1.mlp.up_proj.lora_A.weight", "not a LoRA matrix"),
            ("model.layers.0.mlp.up_proj.weight", "not a LoRA matrix"),
            ("", "not a LoRA matrix"),
        ] {
            let error = role(name).unwrap_err().to_string();
            assert!(error.contains(word), "{name}: {error}");
        }
    }
}
