//! A draft head's `config.json`.
//!
//! An EAGLE head's config is that of a one-layer model of the target's family, with a few keys of its own. Whether
//! there are biases is not read here: families and trainers disagree on the keys, and the stored tensors are
//! unambiguous.

use std::path::Path;

use serde_json::Value;

use super::DraftHeadError;
use crate::config::{ConfigError, parse_python_json};
use crate::{ModelConfig, Result, Tap};

/// The key that only Medusa's configs have.
pub(super) const MEDUSA_HEADS: &str = "medusa_num_heads";
/// Maximum number of Medusa heads and of blocks in one. Published heads have five of one block.
pub(super) const MAX_MEDUSA: usize = 64;
/// Index of each auxiliary layer, as vLLM and EAGLE count: layer `i` means the rows that enter layer `i`.
const AUX: &str = "eagle_aux_hidden_state_layer_ids";

/// Reads `config.json` of a head's directory.
pub(super) fn read(dir: &Path) -> Result<Value> {
    let path = dir.join("config.json");
    // Reading a pipe would wait for its writer.
    if !path.is_file() {
        return Err(DraftHeadError::NoConfig { path: dir.into() }.into());
    }
    let text = std::fs::read_to_string(&path)
        .map_err(|source| ConfigError::Io { path: path.clone(), source })?;
    let value =
        parse_python_json(&text).map_err(|e| ConfigError::Json { path, why: e.to_string() })?;
    Ok(value)
}

/// What an EAGLE head's config says.
#[derive(Debug)]
pub(super) struct EagleConfig {
    /// The head as a model of one layer, with the biases of its family.
    pub(super) model: ModelConfig,
    /// EAGLE-3: number of tokens that the head can propose.
    pub(super) draft_vocab: usize,
    /// EAGLE-3: the residual stream of the layer begins with the normed hidden row.
    pub(super) norm_before_residual: bool,
    /// EAGLE-3: taps of the target, in the order of `fc`'s input.
    pub(super) aux: Option<[Tap; 3]>,
}

impl EagleConfig {
    /// Parses a config for a target, and checks that it was made for this target.
    pub(super) fn parse(value: &Value, target: &ModelConfig) -> Result<Self> {
        let model = ModelConfig::from_hf_json(value)?;
        fits("hidden_size", model.hidden, target.hidden)?;
        fits("vocab_size", model.vocab, target.vocab)?;
        if model.layers.len() != 1 {
            let why = format!("{} layers; heads of one layer are supported", model.layers.len());
            return unsupported("num_hidden_layers", why);
        }
        refuse_variants(value, target)?;
        let draft_vocab = match set(value, "draft_vocab_size") {
            None => model.vocab,
            Some(_) => whole(value, "draft_vocab_size", 1, model.vocab as u64)?,
        };
        Ok(Self {
            // RoPE has no largest position, and the code of EAGLE computes on past the length it was trained with.
            model: ModelConfig { max_context: target.max_context, ..model },
            draft_vocab,
            norm_before_residual: flag(value, "norm_before_residual")?,
            aux: aux_layers(value, target.layers.len())?,
        })
    }
}

/// What a Medusa head's config says.
#[derive(Debug)]
pub(super) struct MedusaConfig {
    /// Number of heads; more may be stored.
    pub(super) heads: usize,
    /// Number of residual blocks of each head.
    pub(super) blocks: usize,
}

impl MedusaConfig {
    pub(super) fn parse(value: &Value) -> Result<Self> {
        let blocks = match set(value, "medusa_num_layers") {
            None => 1,
            Some(_) => whole(value, "medusa_num_layers", 0, MAX_MEDUSA as u64)?,
        };
        Ok(Self { heads: whole(value, MEDUSA_HEADS, 1, MAX_MEDUSA as u64)?, blocks })
    }
}

/// Fails unless the head was made for a target with this number.
pub(super) fn fits(what: &'static str, head: usize, target: usize) -> Result<()> {
    if head == target {
        return Ok(());
    }
    Err(DraftHeadError::OtherTarget { what, head, target }.into())
}

/// Keys that change the maths. A head that sets one would propose nonsense if the key were ignored.
fn refuse_variants(value: &Value, target: &ModelConfig) -> Result<()> {
    for (key, what) in [
        ("norm_before_fc", "a norm of the target's hidden rows"),
        ("add_para_norm", "norms of embedding and hidden row before `fc` (HASS)"),
        ("parallel_drafting", "several tokens from one pass"),
    ] {
        if flag(value, key)? {
            return unsupported(key, format!("{what} is not supported; the head must be without"));
        }
    }
    if eagle_key(value, "use_aux_hidden_state").is_some_and(|v| v == &Value::Bool(false)) {
        let why = "an EAGLE-3 layer over the last hidden row alone is not supported".to_string();
        return unsupported("use_aux_hidden_state", why);
    }
    if set(value, "target_hidden_size").is_some() {
        let head = whole(value, "target_hidden_size", 1, u64::MAX)?;
        fits("target_hidden_size", head, target.hidden)?;
    }
    match set(value, "logit_scale").map(|v| v.as_f64()) {
        None | Some(Some(1.0)) => Ok(()),
        _ => unsupported("logit_scale", "scaled logits are not supported; it must be 1".into()),
    }
}

/// The taps of [`AUX`]: `None` where the config has no such key.
fn aux_layers(value: &Value, layers: usize) -> Result<Option<[Tap; 3]>> {
    let Some(ids) = eagle_key(value, AUX) else { return Ok(None) };
    let bad = |why: String| DraftHeadError::AuxLayers { why };
    let list = || ids.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>();
    let ids = list().ok_or_else(|| bad(format!("{ids} is not a list of layers")))?;
    let mut three = <[u64; 3]>::try_from(ids)
        .map_err(|ids| bad(format!("{ids:?} are not three layers, the inputs of `fc`")))?;
    // The rows come in the order in which the target computes them, whatever the order of the list.
    three.sort_unstable();
    if three[0] == three[1] || three[1] == three[2] || three[2] > layers as u64 {
        let why = format!("{three:?} must be different and at most {layers}, the model's layers");
        return Err(bad(why).into());
    }
    Ok(Some(three.map(|id| tap_before(id as usize))))
}

/// The taps of an EAGLE-3 head whose config names none: layers 2, `L / 2` and `L - 3`, as in the code of EAGLE-3 and in
/// vLLM.
pub(super) fn default_aux(layers: usize) -> Result<[Tap; 3]> {
    if layers < 7 {
        let why = format!(
            "the key is missing, and layers 2, L / 2 and L - 3 are not three layers of a model of L = {layers}: state \
             the layers that the head was trained with"
        );
        return Err(DraftHeadError::AuxLayers { why }.into());
    }
    Ok([2, layers / 2, layers - 3].map(tap_before))
}

/// The tap with the rows that enter layer `i`.
fn tap_before(i: usize) -> Tap {
    i.checked_sub(1).map_or(Tap::Embed, Tap::Residual)
}

/// Value of a key that is set: null is not.
fn set<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|v| !v.is_null())
}

/// A key at the top, or in `eagle_config`.
fn eagle_key<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    set(value, key).or_else(|| set(value.get("eagle_config")?, key))
}

fn flag(value: &Value, key: &str) -> Result<bool> {
    match set(value, key) {
        None => Ok(false),
        Some(v) => v.as_bool().ok_or_else(|| bad(key, v, "must be true or false".into()).into()),
    }
}

/// A whole number in a range.
fn whole(value: &Value, key: &str, min: u64, max: u64) -> Result<usize> {
    let Some(v) = set(value, key) else {
        let why = "the draft head cannot be sized without it";
        return Err(ConfigError::Missing { key: key.into(), why }.into());
    };
    let within = v.as_u64().filter(|n| (min..=max).contains(n));
    let n = within.and_then(|n| usize::try_from(n).ok());
    n.ok_or_else(|| bad(key, v, format!("must be between {min} and {max}")).into())
}

fn bad(key: &str, value: &Value, why: String) -> ConfigError {
    let value = value.to_string().chars().take(60).collect();
    ConfigError::BadValue { key: key.into(), value, why }
}

fn unsupported<T>(key: &'static str, why: String) -> Result<T> {
    Err(DraftHeadError::Unsupported { key, why }.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Error;

    /// vLLM and EAGLE take the rows before the layers 2, 16 and 29 of a model of 32 layers, and so after the layers 1,
    /// 15 and 28.
    #[test]
    fn aux_rows_are_those_that_enter_the_layers() {
        let taps = default_aux(32).unwrap();
        assert_eq!(taps, [Tap::Residual(1), Tap::Residual(15), Tap::Residual(28)]);
        assert_eq!(default_aux(7).unwrap(), [1, 2, 3].map(Tap::Residual));
        for layers in 0..7 {
            let error = default_aux(layers).unwrap_err();
            assert!(matches!(error, Error::DraftHead(DraftHeadError::AuxLayers { .. })), "{error}");
        }
    }

    #[test]
    fn named_aux_layers_are_read_in_the_order_of_the_model() {
        let named = Some([Tap::Embed, Tap::Residual(0), Tap::Residual(3)]);
        for config in [json!({ AUX: [4, 0, 1] }), json!({ "eagle_config": { AUX: [0, 1, 4] } })] {
            assert_eq!(aux_layers(&config, 4).unwrap(), named, "{config}");
        }
        assert_eq!(aux_layers(&json!({}), 4).unwrap(), None);
        for wrong in
            [json!([1, 2]), json!([1, 1, 2]), json!([1, 2, 5]), json!([1, 2, -1]), json!(3)]
        {
            let error = aux_layers(&json!({ AUX: wrong }), 4).unwrap_err();
            assert!(matches!(error, Error::DraftHead(DraftHeadError::AuxLayers { .. })), "{error}");
        }
    }
}
