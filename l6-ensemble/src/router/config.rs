//! The configuration of a router.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::format::FormatError;
use super::input::DEFAULT_MAX_BYTES;
use super::linear::LinearClassifier;
use super::tripwire::{Threshold, Tripwire};

/// Intents that are known unless a configuration adds others, and the class that each decides for.
const INTENTS: [(&str, Option<&str>); 5] = [
    ("codegen", None),
    ("debug", Some("debug")),
    ("build_fix", Some("build")),
    ("review", None),
    ("unspecified", None),
];

/// Bytes of a classifier's file that are read at most: 2^24 buckets of 64 classes, and the rest of the file.
const MAX_FILE: u64 = (64 << 24) + (1 << 16);

/// How requests are routed.
///
/// # Example
///
/// ```
/// use l6_ensemble::router::RouterConfig;
///
/// let config: RouterConfig = toml::from_str(
///     r#"
///     min_score = 0.5
///     intents.port.class = "systems"          # another intent, which decides
///     tripwires.stl_code.min_density = 0.2    # the other fields keep their defaults
///     tripwires.algo_code.enabled = false
///     lanes.memory = "systems"                # no lane of its own
///     "#,
/// )?;
/// assert!(config.validate().is_empty());
/// assert_eq!(config.intent_class("port"), Some("systems"));
/// assert_eq!(config.intent_class("debug"), Some("debug"), "the defaults remain");
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterConfig {
    /// The classifier: `builtin`, `off`, or the path of a file that `strata router train` made.
    pub classifier: ClassifierSource,
    /// Least probability of the best lane. Below it the classifier rejects, in [0, 1].
    pub min_score: f32,
    /// How many times as strong as the next the strongest density must be, at least 1.
    pub margin: f32,
    /// Bytes of a request that the tripwires look at. The built-in classifier looks at 64 KiB.
    pub max_bytes: usize,
    /// Intents beside the known ones, or with another class. A class that is not set decides nothing.
    pub intents: BTreeMap<String, IntentConfig>,
    /// Thresholds of the tripwires. Fields that are not set keep their defaults.
    pub tripwires: BTreeMap<Tripwire, TripwireConfig>,
    /// Lane of a class. A class that is not here is served by the lane of its own name.
    pub lanes: BTreeMap<String, String>,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            classifier: ClassifierSource::Builtin,
            min_score: 0.2,
            margin: 1.5,
            max_bytes: DEFAULT_MAX_BYTES,
            intents: BTreeMap::new(),
            tripwires: BTreeMap::new(),
            lanes: BTreeMap::new(),
        }
    }
}

/// What an intent decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IntentConfig {
    /// Class of every request with the intent; none if other rules and the classifier decide.
    pub class: Option<String>,
}

/// What a configuration changes about a tripwire.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TripwireConfig {
    /// Class that it decides for.
    pub class: Option<String>,
    /// Least sum of weights.
    pub min_hits: Option<f32>,
    /// Least density, in [0, 1].
    pub min_density: Option<f32>,
    /// Whether it is used.
    pub enabled: Option<bool>,
}

/// Where the classifier comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassifierSource {
    /// The classifier in the binary.
    Builtin,
    /// No classifier: rules only.
    Off,
    /// A file.
    File(PathBuf),
}

impl From<String> for ClassifierSource {
    fn from(text: String) -> Self {
        match text.as_str() {
            "builtin" => Self::Builtin,
            "off" => Self::Off,
            _ => Self::File(text.into()),
        }
    }
}

impl fmt::Display for ClassifierSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin => f.write_str("builtin"),
            Self::Off => f.write_str("off"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for ClassifierSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

impl Serialize for ClassifierSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Why a classifier cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the classifier {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        reason: std::io::Error,
    },
    /// The file is no classifier.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: FormatError,
    },
}

impl ClassifierSource {
    /// Loads the classifier; `None` for [`ClassifierSource::Off`].
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(&self) -> Result<Option<LinearClassifier>, LoadError> {
        let path = match self {
            Self::Builtin => return Ok(Some(LinearClassifier::builtin())),
            Self::Off => return Ok(None),
            Self::File(path) => path,
        };
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| {
                std::io::Read::read_to_end(&mut std::io::Read::take(file, MAX_FILE), &mut bytes)
            })
            .map_err(|reason| LoadError::Read { path: path.clone(), reason })?;
        LinearClassifier::from_bytes(&bytes)
            .map(Some)
            .map_err(|reason| LoadError::Format { path: path.clone(), reason })
    }
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{field}` {problem}")]
pub struct ConfigError {
    /// Path of the field: `tripwires.stl_code.min_density`.
    pub field: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl RouterConfig {
    /// Threshold of a tripwire: its default, with what the configuration changes.
    pub fn threshold(&self, tripwire: Tripwire) -> Threshold {
        let mut threshold = tripwire.default_threshold();
        if let Some(config) = self.tripwires.get(&tripwire) {
            let TripwireConfig { class, min_hits, min_density, enabled } = config;
            threshold.class = class.clone().unwrap_or(threshold.class);
            threshold.min_hits = min_hits.unwrap_or(threshold.min_hits);
            threshold.min_density = min_density.unwrap_or(threshold.min_density);
            threshold.enabled = enabled.unwrap_or(threshold.enabled);
        }
        threshold
    }

    /// Turns off declared intents and all tripwires, so that the classifier alone decides.
    pub fn disable_rules(&mut self) {
        for (name, _) in INTENTS {
            self.intents.insert(name.to_owned(), IntentConfig::default());
        }
        self.intents.values_mut().for_each(|intent| intent.class = None);
        for tripwire in Tripwire::ALL {
            self.tripwires.entry(tripwire).or_default().enabled = Some(false);
        }
    }

    /// Names of all known intents, in alphabetical order.
    pub fn intents(&self) -> BTreeSet<&str> {
        INTENTS
            .iter()
            .map(|(name, _)| *name)
            .chain(self.intents.keys().map(String::as_str))
            .collect()
    }

    /// Class that an intent decides for; `None` if it decides nothing, or is unknown.
    pub fn intent_class(&self, intent: &str) -> Option<&str> {
        match self.intents.get(intent) {
            Some(config) => config.class.as_deref(),
            None => INTENTS.iter().find(|(name, _)| *name == intent).and_then(|(_, class)| *class),
        }
    }

    /// Returns everything that is wrong with the configuration by itself. Whether its lanes exist is checked by
    /// [`Router::new`](super::Router::new).
    pub fn validate(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut check = |field: String, holds: bool, problem: &str| {
            if !holds {
                errors.push(ConfigError { field, problem: problem.to_owned() });
            }
        };
        let share = |x: f32| (0.0..=1.0).contains(&x);
        check("min_score".into(), share(self.min_score), "must be in [0, 1]");
        let finite = self.margin.is_finite() && self.margin >= 1.0;
        check("margin".into(), finite, "must be at least 1");
        check("max_bytes".into(), self.max_bytes > 0, "must be at least 1");
        for (tripwire, config) in &self.tripwires {
            let hits = config.min_hits.is_none_or(|x| x.is_finite() && x > 0.0);
            check(format!("tripwires.{tripwire}.min_hits"), hits, "must be greater than 0");
            let density = config.min_density.is_none_or(share);
            check(format!("tripwires.{tripwire}.min_density"), density, "must be in [0, 1]");
            let unused = tripwire.is_report() && config.min_density.is_some();
            let problem = "is not used by a tripwire that looks for reports: remove it";
            check(format!("tripwires.{tripwire}.min_density"), !unused, problem);
            let named = config.class.as_deref() != Some("");
            check(format!("tripwires.{tripwire}.class"), named, "must not be empty");
        }
        for (intent, config) in &self.intents {
            check(format!("intents.{intent}"), !intent.is_empty(), "must have a name");
            let named = config.class.as_deref() != Some("");
            let problem = "must not be empty: remove it if the intent decides nothing";
            check(format!("intents.{intent}.class"), named, problem);
        }
        for (class, lane) in &self.lanes {
            check(
                format!("lanes.{class}"),
                !class.is_empty() && !lane.is_empty(),
                "must not be empty",
            );
            let problem = "has no lane: a request of this class is rejected; use the fallback of the ensemble";
            check(format!("lanes.{class}"), class != super::REJECT, problem);
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_configuration_is_valid_and_an_empty_file_is_the_default() {
        assert_eq!(RouterConfig::default().validate(), []);
        assert_eq!(toml::from_str(""), Ok(RouterConfig::default()));
    }

    #[test]
    fn all_errors_are_listed_at_once() {
        let config: RouterConfig = toml::from_str(
            r#"
            min_score = 1.5
            margin = 0.5
            max_bytes = 0
            intents.x.class = ""
            tripwires.stl_code = { min_hits = 0.0, min_density = -1.0 }
            tripwires.linker_error.min_density = 0.5
            lanes.reject = "stl"
            "#,
        )
        .unwrap();
        let fields: Vec<_> = config.validate().into_iter().map(|e| e.field).collect();
        assert_eq!(
            fields,
            [
                "min_score",
                "margin",
                "max_bytes",
                "tripwires.linker_error.min_density",
                "tripwires.stl_code.min_hits",
                "tripwires.stl_code.min_density",
                "intents.x.class",
                "lanes.reject",
            ]
        );
    }

    #[test]
    fn unknown_fields_and_tripwires_are_errors() {
        for text in ["min_scores = 1", "tripwires.regex.enabled = true", "intents.x.lane = 'y'"] {
            assert!(toml::from_str::<RouterConfig>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_known_intent_can_be_given_another_class_or_none() {
        let text = "intents.debug = {}\nintents.review.class = 'review'";
        let config: RouterConfig = toml::from_str(text).unwrap();
        assert_eq!(config.intent_class("debug"), None);
        assert_eq!(config.intent_class("review"), Some("review"));
        assert_eq!(config.intent_class("build_fix"), Some("build"));
        assert_eq!(config.intent_class("dance"), None);
        assert!(config.intents().contains("codegen") && !config.intents().contains("dance"));
    }

    #[test]
    fn a_file_that_is_missing_or_no_classifier_is_an_error_that_names_it() {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for (path, reason) in [("/no/such/file", "cannot read"), (here, "not a router classifier")]
        {
            let error = ClassifierSource::from(path.to_owned()).load().unwrap_err().to_string();
            assert!(error.contains(path) && error.contains(reason), "{error}");
        }
        assert_eq!(ClassifierSource::Off.load().unwrap(), None);
    }
}
