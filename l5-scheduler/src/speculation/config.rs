//! Configuration of speculation: `--speculative-config`, with the fields of vLLM's.

use l4_sampler::draft::{
    DraftError, Drafter, MAX_CACHED_TOKENS, MAX_NGRAM, NgramDrafter, SuffixDrafter, SuffixOptions,
};
use serde::{Deserialize, Serialize};

/// Maximum of `num_speculative_tokens`.
const MAX_DRAFTS: usize = 64;

/// Maximum of `suffix_decoding_max_tree_depth`.
const MAX_DEPTH: usize = 256;

/// How drafts are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftMethod {
    /// What followed the last tokens where they occurred first in the prompt and the output (prompt lookup).
    Ngram,
    /// What followed the last tokens in the prompt, the output and earlier outputs of the same tenant (SuffixDecoding).
    Suffix,
    /// A smaller model with the same vocabulary.
    DraftModel,
    /// An EAGLE head, of the generations that read the model's last hidden rows (EAGLE and EAGLE-2).
    Eagle,
    /// An EAGLE-3 head.
    Eagle3,
    /// Medusa heads.
    Medusa,
}

/// How a drafter with a network chooses a draft from its probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftSampleMethod {
    /// It takes the likeliest token. Drafts change no token.
    #[default]
    Greedy,
    /// For a request that samples, it draws the token, which is then accepted more often. The distribution of the
    /// output stays as it is; the tokens of a seed depend on the drafts that were made.
    Probabilistic,
}

/// How many drafts of a proposal are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowMode {
    /// As many as save more time than they cost, by measurements of this engine.
    #[default]
    Adaptive,
    /// All of them.
    Fixed,
}

/// Configuration of speculation. Names, meanings and defaults are vLLM's, where vLLM has them; vLLM's `max_model_len`
/// and parallel sizes of a draft model do not apply here.
///
/// ```
/// use l5_scheduler::speculation::{DraftMethod, SpeculativeConfig};
///
/// let config = SpeculativeConfig::from_json(r#"{"method": "ngram", "num_speculative_tokens": 5}"#)?;
/// assert_eq!(config.method, DraftMethod::Ngram);
/// assert_eq!(config.ngram(), (5, 5), "tokens of an n-gram, at least and at most");
/// # Ok::<(), l5_scheduler::speculation::SpeculationError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeculativeConfig {
    /// How drafts are made.
    pub method: DraftMethod,
    /// Maximum number of drafts of one request in a step. `None`: with `suffix`, the depth of the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_speculative_tokens: Option<usize>,
    /// How many drafts of a proposal are verified.
    #[serde(default)]
    pub window: WindowMode,
    /// With `draft_model`, `eagle`, `eagle3` and `medusa`: how a draft is chosen. `None`: greedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_sample_method: Option<DraftSampleMethod>,
    /// With `ngram`: minimum number of tokens of an n-gram. `None`: the maximum, or 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_lookup_min: Option<usize>,
    /// With `ngram`: maximum number of tokens of an n-gram. `None`: the minimum, or 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_lookup_max: Option<usize>,
    /// With `suffix`: maximum number of tokens of a match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix_decoding_max_tree_depth: Option<usize>,
    /// With `suffix`: maximum number of tokens of earlier outputs that are remembered, all tenants together. 0: an
    /// output learns from its own request only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix_decoding_max_cached_tokens: Option<usize>,
    /// With `suffix`: maximum number of drafts for each token of the match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix_decoding_max_spec_factor: Option<f64>,
    /// With `suffix`: probability below which a draft is not proposed, as the share of the occurrences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix_decoding_min_token_prob: Option<f64>,
    /// With `draft_model`: directory or file of the smaller model. With `eagle`, `eagle3` and `medusa`: directory of
    /// the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Why a configuration of speculation is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpeculationError {
    /// Not JSON, or unknown or missing fields.
    #[error("the speculative config is invalid: {0}")]
    Json(String),
    /// A value is out of its range.
    #[error("the speculative config is invalid: {name} must be {expected}, got {got}")]
    OutOfRange {
        /// Name of the field.
        name: &'static str,
        /// What it must be.
        expected: String,
        /// Its value.
        got: f64,
    },
    /// A field is missing.
    #[error("the speculative config is invalid: method {method} needs {name}: {why}")]
    Missing {
        /// Name of the method.
        method: &'static str,
        /// Name of the field.
        name: &'static str,
        /// What it is.
        why: &'static str,
    },
    /// A field belongs to another method.
    #[error(
        "the speculative config is invalid: {name} is a field of {of}, and the method is {method}: remove it"
    )]
    OfOtherMethod {
        /// Name of the field.
        name: &'static str,
        /// Methods that it belongs to.
        of: &'static str,
        /// Method of this configuration.
        method: &'static str,
    },
    /// The options of a lookup are out of range.
    #[error("the speculative config is invalid: {0}")]
    Lookup(#[from] DraftError),
    /// The draft model or head cannot be read.
    #[error("cannot use `model` of the speculative config: {0}")]
    Model(String),
    /// The draft model cannot be used.
    #[error("the draft model cannot be used: {0}")]
    DraftModel(String),
    /// The draft head cannot be used.
    #[error("the draft head cannot be used: {0}")]
    Head(String),
}

impl DraftMethod {
    /// Name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ngram => "ngram",
            Self::Suffix => "suffix",
            Self::DraftModel => "draft_model",
            Self::Eagle => "eagle",
            Self::Eagle3 => "eagle3",
            Self::Medusa => "medusa",
        }
    }

    /// What `model` is the path of; `None` for a method without weights.
    fn weights(self) -> Option<&'static str> {
        match self {
            Self::Ngram | Self::Suffix => None,
            Self::DraftModel => Some("the path of a smaller model with the same vocabulary"),
            Self::Eagle | Self::Eagle3 | Self::Medusa => {
                Some("the directory of a head that was trained for this model")
            }
        }
    }
}

impl SpeculativeConfig {
    /// Drafts by a method, with the defaults of everything else.
    pub fn new(method: DraftMethod, num_speculative_tokens: usize) -> Self {
        Self {
            method,
            num_speculative_tokens: Some(num_speculative_tokens),
            window: WindowMode::default(),
            draft_sample_method: None,
            prompt_lookup_min: None,
            prompt_lookup_max: None,
            suffix_decoding_max_tree_depth: None,
            suffix_decoding_max_cached_tokens: None,
            suffix_decoding_max_spec_factor: None,
            suffix_decoding_min_token_prob: None,
            model: None,
        }
    }

    /// Reads a configuration, and validates it.
    ///
    /// # Errors
    /// [`SpeculationError`], naming the field.
    pub fn from_json(json: &str) -> Result<Self, SpeculationError> {
        let config = Self::read(json).map_err(SpeculationError::Json)?;
        config.validate()?;
        Ok(config)
    }

    fn read(json: &str) -> Result<Self, String> {
        let value = match serde_json::from_str(json) {
            Ok(value @ serde_json::Value::Object(_)) => value,
            Err(e) if json.trim_start().starts_with('{') => return Err(e.to_string()),
            _ => {
                let example = r#"{"method": "ngram", "num_speculative_tokens": 5}"#;
                return Err(format!("it must be a JSON object, such as {example}"));
            }
        };
        let named = |e: serde_path_to_error::Error<serde_json::Error>| {
            let why = e.inner().to_string();
            let why = why.replace("expected usize", "expected a whole number");
            let why = why.replace("expected f64", "expected a number");
            // An unknown or missing field is named by the error itself.
            match e.path().to_string() {
                path if path == "." || why.contains("field") => why,
                path => format!("{path}: {why}"),
            }
        };
        let _: Self = serde_path_to_error::deserialize(value).map_err(named)?;
        // Only the text says that a field is there twice.
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`SpeculationError`], naming the field.
    pub fn validate(&self) -> Result<(), SpeculationError> {
        self.belongs()?;
        let Self { method, num_speculative_tokens, .. } = self;
        if num_speculative_tokens.is_none() && *method != DraftMethod::Suffix {
            let (method, name) = (method.name(), "num_speculative_tokens");
            let why = "the maximum number of drafts of one request in a step";
            return Err(SpeculationError::Missing { method, name, why });
        }
        let unnamed = self.model.as_ref().is_none_or(String::is_empty);
        if let Some(why) = method.weights().filter(|_| unnamed) {
            let method = method.name();
            return Err(SpeculationError::Missing { method, name: "model", why });
        }
        between("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFTS)?;
        between("prompt_lookup_min", self.prompt_lookup_min, 1, MAX_NGRAM)?;
        between("prompt_lookup_max", self.prompt_lookup_max, 1, MAX_NGRAM)?;
        between(
            "suffix_decoding_max_tree_depth",
            self.suffix_decoding_max_tree_depth,
            2,
            MAX_DEPTH,
        )?;
        between(
            "suffix_decoding_max_cached_tokens",
            self.suffix_decoding_max_cached_tokens,
            0,
            MAX_CACHED_TOKENS,
        )?;
        let (min, max) = self.ngram();
        if min > max {
            return Err(out_of_range(
                "prompt_lookup_min",
                format!("at most prompt_lookup_max, {max}"),
                min as f64,
            ));
        }
        let factor = self.suffix_decoding_max_spec_factor;
        if let Some(got) = factor.filter(|factor| !(factor.is_finite() && *factor > 0.0)) {
            return Err(out_of_range("suffix_decoding_max_spec_factor", "above 0".into(), got));
        }
        let prob = self.suffix_decoding_min_token_prob;
        if let Some(got) = prob.filter(|prob| !(0.0..=1.0).contains(prob)) {
            return Err(out_of_range("suffix_decoding_min_token_prob", "from 0 to 1".into(), got));
        }
        self.suffix().check()?;
        Ok(())
    }

    /// Checks that no field belongs to another method: it would have no effect.
    fn belongs(&self) -> Result<(), SpeculationError> {
        use DraftMethod::{DraftModel, Eagle, Eagle3, Medusa, Ngram, Suffix};
        type Of = (&'static [DraftMethod], &'static str);
        const NGRAM: Of = (&[Ngram], "method ngram");
        const SUFFIX: Of = (&[Suffix], "method suffix");
        const WEIGHTS: Of =
            (&[DraftModel, Eagle, Eagle3, Medusa], "methods draft_model, eagle, eagle3 and medusa");
        let fields = [
            ("prompt_lookup_min", NGRAM, self.prompt_lookup_min.is_some()),
            ("prompt_lookup_max", NGRAM, self.prompt_lookup_max.is_some()),
            (
                "suffix_decoding_max_tree_depth",
                SUFFIX,
                self.suffix_decoding_max_tree_depth.is_some(),
            ),
            (
                "suffix_decoding_max_cached_tokens",
                SUFFIX,
                self.suffix_decoding_max_cached_tokens.is_some(),
            ),
            (
                "suffix_decoding_max_spec_factor",
                SUFFIX,
                self.suffix_decoding_max_spec_factor.is_some(),
            ),
            (
                "suffix_decoding_min_token_prob",
                SUFFIX,
                self.suffix_decoding_min_token_prob.is_some(),
            ),
            ("draft_sample_method", WEIGHTS, self.draft_sample_method.is_some()),
            ("model", WEIGHTS, self.model.is_some()),
        ];
        let other = |&(_, (of, _), given): &(&str, Of, bool)| given && !of.contains(&self.method);
        match fields.into_iter().find(other) {
            Some((name, (_, of), _)) => {
                let method = self.method.name();
                Err(SpeculationError::OfOtherMethod { name, of, method })
            }
            None => Ok(()),
        }
    }

    /// Creates the drafter of a method that looks drafts up.
    ///
    /// # Errors
    /// [`SpeculationError::Lookup`].
    pub(crate) fn lookup(&self) -> Result<Box<dyn Drafter>, SpeculationError> {
        if self.method == DraftMethod::Suffix {
            let options = self.suffix();
            options.check()?;
            return Ok(Box::new(SuffixDrafter::new(options)));
        }
        let (min, max) = self.ngram();
        Ok(Box::new(NgramDrafter::new(min, max)?))
    }

    /// Options of [`DraftMethod::Suffix`].
    pub fn suffix(&self) -> SuffixOptions {
        let default = SuffixOptions::default();
        SuffixOptions {
            max_tree_depth: self.suffix_decoding_max_tree_depth.unwrap_or(default.max_tree_depth),
            max_cached_tokens: self
                .suffix_decoding_max_cached_tokens
                .unwrap_or(default.max_cached_tokens),
            max_spec_factor: self
                .suffix_decoding_max_spec_factor
                .unwrap_or(default.max_spec_factor),
            min_token_prob: self.suffix_decoding_min_token_prob.unwrap_or(default.min_token_prob),
        }
    }

    /// Minimum and maximum number of tokens of an n-gram.
    pub fn ngram(&self) -> (usize, usize) {
        match (self.prompt_lookup_min, self.prompt_lookup_max) {
            (None, None) => (5, 5),
            (Some(one), None) | (None, Some(one)) => (one, one),
            (Some(min), Some(max)) => (min, max),
        }
    }

    /// Whether drafts are drawn, for requests that sample.
    pub fn draws(&self) -> bool {
        self.draft_sample_method == Some(DraftSampleMethod::Probabilistic)
    }

    /// Maximum number of drafts of one request in a step.
    pub fn num_drafts(&self) -> usize {
        self.num_speculative_tokens.unwrap_or(self.suffix().max_tree_depth.min(MAX_DRAFTS))
    }
}

fn between(
    name: &'static str,
    got: Option<usize>,
    min: usize,
    max: usize,
) -> Result<(), SpeculationError> {
    match got.filter(|got| !(min..=max).contains(got)) {
        Some(got) => Err(out_of_range(name, format!("from {min} to {max}"), got as f64)),
        None => Ok(()),
    }
}

fn out_of_range(name: &'static str, expected: String, got: f64) -> SpeculationError {
    SpeculationError::OutOfRange { name, expected, got }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(json: &str) -> String {
        SpeculativeConfig::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_those_of_vllm() {
        let of = |json: &str| SpeculativeConfig::from_json(json).unwrap();
        let ngram = |lengths: &str| {
            let json = format!(r#"{{"method": "ngram", "num_speculative_tokens": 4{lengths}}}"#);
            of(&json).ngram()
        };
        assert_eq!(ngram(""), (5, 5));
        assert_eq!(ngram(r#", "prompt_lookup_max": 3"#), (3, 3));
        assert_eq!(ngram(r#", "prompt_lookup_min": 2"#), (2, 2));
        assert_eq!(ngram(r#", "prompt_lookup_min": 2, "prompt_lookup_max": 4"#), (2, 4));
        let suffix = of(r#"{"method": "suffix"}"#);
        assert_eq!((suffix.num_drafts(), suffix.suffix().min_token_prob), (24, 0.1));
        let shallow = of(r#"{"method": "suffix", "suffix_decoding_max_tree_depth": 6}"#);
        assert_eq!(shallow.num_drafts(), 6, "at most as many drafts as the match may have tokens");
    }

    #[test]
    fn an_error_names_the_field_and_what_it_must_be() {
        for (json, parts) in [
            ("ngram", &["it must be a JSON object", r#"{"method": "ngram""#][..]),
            ("[]", &["it must be a JSON object"]),
            (r#"{"method": "ngram",}"#, &["trailing comma", "column"]),
            (
                r#"{"method": "ngram", "num_speculative_tokens": "5"}"#,
                &["num_speculative_tokens: invalid type: string \"5\", expected a whole number"],
            ),
            (
                r#"{"method": "eagle", "num_speculative_tokens": 2, "model": "x", "draft_sample_method": true}"#,
                &["draft_sample_method: invalid type: boolean `true`"],
            ),
            (
                r#"{"method": "ngram", "method": "suffix", "num_speculative_tokens": 2}"#,
                &["duplicate field `method`"],
            ),
            (
                r#"{"method": "lookahead", "num_speculative_tokens": 2}"#,
                &["lookahead", "ngram", "draft_model", "eagle3"],
            ),
            (r#"{"method": "ngram"}"#, &["ngram", "num_speculative_tokens"]),
            (r#"{"method": "ngram", "num_speculative_tokens": 0}"#, &["from 1 to 64, got 0"]),
            (r#"{"method": "ngram", "num_speculative_tokens": 65}"#, &["from 1 to 64, got 65"]),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 2, "tree": 1}"#,
                &["unknown field `tree`"],
            ),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 4, "prompt_lookup_max": 3}"#,
                &["prompt_lookup_min", "at most prompt_lookup_max, 3", "got 4"],
            ),
            (
                r#"{"method": "ngram", "num_speculative_tokens": 2, "model": "x"}"#,
                &["model is a field of methods draft_model, eagle", "the method is ngram"],
            ),
            (
                r#"{"method": "suffix", "draft_sample_method": "probabilistic"}"#,
                &["draft_sample_method is a field of methods draft_model", "the method is suffix"],
            ),
            (
                r#"{"method": "eagle", "num_speculative_tokens": 2, "model": "x", "draft_sample_method": "block"}"#,
                &["unknown variant `block`", "greedy", "probabilistic"],
            ),
            (
                r#"{"method": "eagle3", "num_speculative_tokens": 2}"#,
                &["method eagle3 needs model: the directory of a head"],
            ),
            (r#"{"method": "draft_model", "num_speculative_tokens": 2}"#, &["needs model"]),
            (
                r#"{"method": "suffix", "suffix_decoding_min_token_prob": 1.5}"#,
                &["suffix_decoding_min_token_prob", "from 0 to 1", "1.5"],
            ),
            (
                r#"{"method": "suffix", "suffix_decoding_max_spec_factor": 0.0}"#,
                &["suffix_decoding_max_spec_factor", "above 0"],
            ),
            (
                r#"{"method": "suffix", "suffix_decoding_max_cached_tokens": 1000000000000}"#,
                &["suffix_decoding_max_cached_tokens must be from 0 to 268435456"],
            ),
        ] {
            let error = error(json);
            for part in parts {
                assert!(error.contains(part), "{json}: {error}");
            }
        }
    }

    #[test]
    fn a_config_is_written_as_it_is_read() {
        let config = SpeculativeConfig::from_json(
            r#"{"method": "ngram", "num_speculative_tokens": 4, "window": "fixed"}"#,
        );
        let config = config.unwrap();
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(SpeculativeConfig::from_json(&json), Ok(config), "{json}");
    }
}
