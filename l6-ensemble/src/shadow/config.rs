//! Thresholds of intents, and how often fresh and demoted lanes have shadows.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::duration_text;

/// Configuration of shadows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShadowConfig {
    /// Thresholds by intent. An intent that is not listed has those of `unspecified`.
    pub intents: BTreeMap<String, IntentThresholds>,
    /// Fraction of the requests that a fresh lane is first or second choice of, from 0 to 1.
    pub fresh_fraction: f64,
    /// Number of verdicts after which a fresh lane is promoted.
    pub fresh_samples: u64,
    /// Fraction of the requests of a demoted lane that it shadows, from 0 to 1.
    pub demoted_fraction: f64,
    /// Expected wait of the second lane above which it gets no shadow.
    #[serde(with = "duration_text")]
    pub max_queue: Duration,
    /// Maximum number of shadows of the whole ensemble at once, from the admission of the primary to the shadow's end.
    pub max_in_flight: usize,
    /// Time without output after which a shadow is aborted: it waits, or it was preempted.
    #[serde(with = "duration_text")]
    pub max_wait: Duration,
}

/// Thresholds of an intent. Scores are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IntentThresholds {
    /// Score of the first choice below which a request has a shadow.
    pub shadow_below: f32,
    /// Score of the first choice below which a request may move to the second choice when the first refuses it for
    /// load.
    pub spill_below: f32,
}

impl Default for IntentThresholds {
    fn default() -> Self {
        Self { shadow_below: 0.5, spill_below: 0.4 }
    }
}

impl Default for ShadowConfig {
    fn default() -> Self {
        let intent = |name: &str, shadow_below, spill_below| {
            (name.to_owned(), IntentThresholds { shadow_below, spill_below })
        };
        Self {
            intents: BTreeMap::from([
                intent("codegen", 0.3, 0.5),
                intent("debug", 0.5, 0.4),
                intent("build_fix", 0.5, 0.4),
                intent("review", 0.9, 0.3),
                intent("unspecified", 0.5, 0.4),
            ]),
            fresh_fraction: 0.5,
            fresh_samples: 200,
            demoted_fraction: 0.5,
            max_queue: Duration::from_secs(1),
            max_in_flight: 8,
            max_wait: Duration::from_secs(10),
        }
    }
}

impl ShadowConfig {
    /// Thresholds of an intent.
    pub fn intent(&self, name: &str) -> IntentThresholds {
        let listed = self.intents.get(name).or_else(|| self.intents.get("unspecified"));
        listed.copied().unwrap_or_default()
    }

    /// Every error of the configuration; empty if it is valid.
    pub fn errors(&self) -> Vec<ConfigError> {
        let mut errors = vec![];
        for (name, intent) in &self.intents {
            for (field, score) in
                [("shadow_below", intent.shadow_below), ("spill_below", intent.spill_below)]
            {
                if !(0.0..=1.0).contains(&score) {
                    let what = format!("must be a score from 0 to 1, got {score}");
                    errors.push(ConfigError::new(format!("intents.{name}.{field}"), what));
                }
            }
        }
        for (field, fraction) in
            [("fresh_fraction", self.fresh_fraction), ("demoted_fraction", self.demoted_fraction)]
        {
            if !(0.0..=1.0).contains(&fraction) {
                let what = format!("must be a fraction from 0 to 1, got {fraction}");
                errors.push(ConfigError::new(format!("shadow.{field}"), what));
            }
        }
        errors
    }
}
