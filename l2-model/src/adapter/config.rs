//! `adapter_config.json`, as PEFT writes it.
//!
//! A key that changes the maths and is not supported is refused. If it were ignored, the adapter would compute something
//! other than it was trained for, without an error.

use std::io::{ErrorKind, Read};
use std::path::Path;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::error::{AdapterError, shortened};
use super::names::any_is;
use crate::checkpoint::{CheckpointError, open_regular};

/// Maximum length of a config, in bytes. Real ones have one or two thousand.
const MAX_CONFIG: u64 = 1 << 20;
/// Maximum number of entries of a pattern: one for each module of a model of 146 layers.
const MAX_PATTERNS: usize = 1024;
/// Maximum size of one compiled expression, in bytes. That of a module's full name has a tenth of it.
const MAX_EXPRESSION: usize = 64 << 10;

/// What the config says about the maths.
#[derive(Debug)]
pub(super) struct LoraConfig {
    rank: usize,
    alpha: f64,
    rank_stabilized: bool,
    ranks: Pattern,
    alphas: Pattern,
    /// Names of the adapted modules, where the config lists them.
    targets: Vec<String>,
    /// Whether only some layers have the modules of `targets`.
    pub(super) chooses_layers: bool,
    /// Modules of `targets` that are left out.
    pub(super) excluded: Excluded,
}

/// The value of `exclude_modules`.
#[derive(Debug)]
pub(super) enum Excluded {
    /// These, as in `target_modules`.
    Listed(Vec<String>),
    /// Those that an expression matches, or a value that is not known: it says nothing of a single module.
    Unknown,
}

impl Excluded {
    /// Whether this module may be excluded.
    pub(super) fn may_have(&self, module: &str) -> bool {
        match self {
            Self::Listed(all) => any_is(all, module),
            Self::Unknown => true,
        }
    }
}

/// Values of modules whose names match a regular expression, in the order of the file: the first match counts.
type Pattern = Vec<(Regex, f64)>;

impl LoraConfig {
    /// Reads the config in a directory. Returns its bytes too, for the digest.
    pub(super) fn read(dir: &Path) -> crate::Result<(Self, Vec<u8>)> {
        let path = dir.join("adapter_config.json");
        let file = |why: String| AdapterError::File { path: path.clone(), why };
        let io = |reason| CheckpointError::Io { path: path.clone(), reason };
        let opened = match open_regular(&path) {
            Err(e) if e.kind() == ErrorKind::NotADirectory => {
                return Err(AdapterError::NotADirectory { path: dir.into() }.into());
            }
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(io(e).into()),
            opened => opened.ok().flatten(),
        };
        let opened = opened.ok_or_else(|| match dir.try_exists() {
            Ok(false) => AdapterError::NoDirectory { path: dir.into() },
            _ => AdapterError::NoConfig { path: dir.into() },
        })?;
        let mut text = String::new();
        opened.take(MAX_CONFIG + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > MAX_CONFIG {
            let why = format!("an adapter_config.json has at most {MAX_CONFIG} bytes");
            return Err(file(why).into());
        }
        // Strictly: NaN as Python writes it would have to be an error in any case.
        let value =
            serde_json::from_str(&text).map_err(|e| file(format!("not valid JSON: {e}")))?;
        let Value::Object(map) = value else {
            return Err(file("it must be an object".into()).into());
        };
        Ok((Self::parse(&map)?, text.into_bytes()))
    }

    fn parse(map: &Map<String, Value>) -> Result<Self, AdapterError> {
        refuse_variants(map)?;
        let keys = Keys(map);
        let list = |names: &Vec<Value>| -> Vec<String> {
            names.iter().filter_map(|name| Some(name.as_str()?.to_string())).collect()
        };
        let targets = match keys.get("target_modules") {
            Some(Value::Array(names)) => list(names),
            // A regular expression, or `all-linear`: the stored tensors say which modules it is.
            _ => Vec::new(),
        };
        let excluded = match keys.get("exclude_modules") {
            None => Excluded::Listed(Vec::new()),
            Some(Value::Array(names)) => Excluded::Listed(list(names)),
            Some(Value::String(expression)) if expression.is_empty() => {
                Excluded::Listed(Vec::new())
            }
            Some(_) => Excluded::Unknown,
        };
        let outside = |target: &&String| {
            OUTSIDE.contains(&target.rsplit('.').next().unwrap_or("")) && !excluded.may_have(target)
        };
        if let Some(target) = targets.iter().find(outside) {
            let why = "adapters of the embedding or of the output projection are not supported: train without it";
            let value = keys.get("target_modules").unwrap_or(&Value::Null);
            return Err(unsupported("target_modules", value, format!("`{target}`: {why}")));
        }
        Ok(Self {
            rank: keys.rank("r", 8)?,
            alpha: keys.number("lora_alpha", 8.0)?,
            rank_stabilized: keys.flag("use_rslora")?,
            ranks: keys.pattern("rank_pattern")?,
            alphas: keys.pattern("alpha_pattern")?,
            targets,
            chooses_layers: keys.get("layers_to_transform").is_some(),
            excluded,
        })
    }

    /// Whether the config lists names of modules.
    pub(super) fn lists_targets(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Whether the config lists this module.
    pub(super) fn targets(&self, module: &str) -> bool {
        any_is(&self.targets, module)
    }

    /// Rank of a module, by its name in the model: `model.layers.0.mlp.up_proj`.
    pub(super) fn rank(&self, module: &str) -> usize {
        first_match(&self.ranks, module).map_or(self.rank, |rank| rank as usize)
    }

    /// Factor of a module's side term: `alpha / r`, or `alpha / sqrt(r)` with rank stabilisation.
    pub(super) fn scale(&self, module: &str) -> f32 {
        // exercise l2.lora
        let (rank, alpha) =
            (self.rank(module) as f64, first_match(&self.alphas, module).unwrap_or(self.alpha));
        (alpha / if self.rank_stabilized { rank.sqrt() } else { rank }) as f32
        // end of exercise
    }
}

/// Value of the first expression that matches a module's name.
fn first_match(pattern: &Pattern, module: &str) -> Option<f64> {
    pattern.iter().find(|(name, _)| name.is_match(module)).map(|(_, value)| *value)
}

/// Keys that change what an adapter computes unless they are null, false or empty, and what to say about them.
const VARIANTS: [(&str, &str); 16] = [
    ("use_dora", "DoRA is not supported"),
    ("lora_bias", "biases of side terms are not supported: train without lora_bias"),
    ("fan_in_fan_out", "transposed weights are not supported"),
    (
        "modules_to_save",
        "modules that are saved whole are not supported: train with LoRA layers only",
    ),
    ("trainable_token_indices", "trained embeddings of single tokens are not supported"),
    (
        "target_parameters",
        "side terms of parameters that belong to no linear layer are not supported",
    ),
    ("layer_replication", "replicated layers are not supported"),
    ("alora_invocation_tokens", "activated LoRA is not supported"),
    ("use_qalora", "QALoRA is not supported"),
    ("use_bdlora", "block-diagonal LoRA is not supported"),
    ("arrow_config", "Arrow routing is not supported"),
    ("velora_config", "VeLoRA is not supported"),
    ("kasa_config", "KaSA is not supported"),
    ("monteclora_config", "MonteCLoRA is not supported"),
    ("megatron_config", "layers of Megatron are not supported"),
    ("ensure_weight_tying", "tied side terms are not supported"),
];

/// Keys that look like those of variants, and change nothing when an adapter is used.
const HARMLESS: [&str; 6] = [
    "use_rslora",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "runtime_config",
];

/// Modules with weights that belong to no layer.
const OUTSIDE: [&str; 2] = ["lm_head", "embed_tokens"];

fn refuse_variants(map: &Map<String, Value>) -> Result<(), AdapterError> {
    let keys = Keys(map);
    match keys.get("peft_type") {
        Some(Value::String(kind)) if kind.eq_ignore_ascii_case("lora") => {}
        None => {
            let why = "the key is missing: this is not the config of a LoRA adapter".into();
            return Err(unsupported("peft_type", &Value::Null, why));
        }
        Some(other) => {
            return Err(unsupported("peft_type", other, "only LORA is supported".into()));
        }
    }
    for (key, value) in map {
        let off = match value {
            Value::Null => true,
            Value::Bool(on) => !on,
            Value::Array(all) => all.is_empty(),
            Value::Object(all) => all.is_empty(),
            _ => false,
        };
        let variant = VARIANTS.iter().find(|(name, _)| name == key).map(|(_, why)| *why);
        // PEFT names its variants so. Trainers write keys of their own, which are notes.
        let named = key.starts_with("use_") || key.ends_with("_config");
        let unknown = named && !HARMLESS.contains(&key.as_str());
        let why = variant.or(unknown.then_some("this variant of LoRA is not known"));
        if let Some(why) = why.filter(|_| !off) {
            return Err(unsupported(key, value, why.into()));
        }
    }
    match keys.get("bias") {
        None => {}
        Some(Value::String(bias)) if bias == "none" => {}
        Some(other) => {
            let why = "trained biases are not supported: it must be \"none\"".into();
            return Err(unsupported("bias", other, why));
        }
    }
    refuse_changed_base(&keys)
}

/// Some ways to begin the training take a part of the base model's weights into the adapter.
fn refuse_changed_base(keys: &Keys<'_>) -> Result<(), AdapterError> {
    let Some(value @ Value::String(init)) = keys.get("init_lora_weights") else { return Ok(()) };
    let init = init.to_ascii_lowercase();
    let begins = |name: &&str| init.starts_with(*name);
    let why = if ["pissa", "olora", "corda", "lora_ga"].iter().any(begins) {
        "it changes the weights of the base model, which this adapter then needs: save it with PEFT's \
         `path_initial_model_for_weight_conversion`, which makes a plain adapter of it"
    } else if init.starts_with("loftq") {
        "it changes the weights of the base model, which this adapter then needs: merge the adapter into that model"
    } else {
        return Ok(());
    };
    Err(unsupported("init_lora_weights", value, why.into()))
}

/// The keys of a config; null is not set.
struct Keys<'a>(&'a Map<String, Value>);

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn rank(&self, key: &str, default: usize) -> Result<usize, AdapterError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let rank =
            value.as_u64().filter(|rank| *rank >= 1).and_then(|rank| usize::try_from(rank).ok());
        rank.ok_or_else(|| {
            unsupported(key, value, "it must be a whole number of at least 1".into())
        })
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, AdapterError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| unsupported(key, value, "it must be a finite number".into()))
    }

    /// A pattern as PEFT reads it: a key is a regular expression for the end of a module's name, from the start of the
    /// name or from behind a dot. Maps keep the order of the file.
    fn pattern(&self, key: &str) -> Result<Pattern, AdapterError> {
        let entries = match self.get(key) {
            None => return Ok(Pattern::new()),
            Some(Value::Object(entries)) if entries.len() <= MAX_PATTERNS => entries,
            Some(other) => {
                let why = format!("it must be an object of at most {MAX_PATTERNS} entries");
                return Err(unsupported(key, other, why));
            }
        };
        let entry = |(name, value): (&String, &Value)| {
            let bad = |why: &str| unsupported(&format!("{key}.{name}"), value, why.into());
            let number = match key {
                "rank_pattern" => value.as_u64().filter(|rank| *rank >= 1).map(|rank| rank as f64),
                _ => value.as_f64().filter(|alpha| alpha.is_finite()),
            };
            let number =
                number.ok_or_else(|| bad("it must be a rank of at least 1, or a finite alpha"))?;
            let name =
                expression(name).ok_or_else(|| bad("its key is not a supported expression"))?;
            Ok((name, number))
        };
        entries.iter().map(entry).collect()
    }

    fn flag(&self, key: &str) -> Result<bool, AdapterError> {
        match self.get(key) {
            None => Ok(false),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| unsupported(key, value, "it must be true or false".into())),
        }
    }
}

/// Compiles the key of a pattern. `None` for syntax that Python's `re` and this library read differently: possessive
/// quantifiers, operators in classes, parentheses that do not match by themselves.
fn expression(name: &str) -> Option<Regex> {
    let compile = |text: &str| RegexBuilder::new(text).size_limit(MAX_EXPRESSION).build().ok();
    let differs = ["++", "*+", "?+", "}+", "&&", "--", "~~"].iter().any(|op| name.contains(op));
    compile(name).filter(|_| !differs)?;
    compile(&format!(r"^(.*\.)?({name})$"))
}

fn unsupported(key: &str, value: &Value, why: String) -> AdapterError {
    AdapterError::Unsupported { key: shortened(key), value: shortened(&value.to_string()), why }
}
