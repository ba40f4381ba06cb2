//! The router: which lane serves a request.
//!
//! A request is routed once, before it is admitted, and never again. The order is fixed:
//!
//! 1. **Declared intent.** If the configuration has a class for it, that decides.
//! 2. **Tripwires.** The first report that fires decides, else the strongest density ([`Tripwire`] has the rules). If
//!    densities of two lanes are close, no tripwire decides.
//! 3. **Classifier.** The most probable lane, if its probability is at least `min_score` and greater than that of all
//!    text that no lane serves; otherwise the request is rejected, and the caller has a fallback or an error for
//!    that.
//!
//! Rules come first because a learned classifier is weak on packages that it has not seen, while a sanitizer report
//! looks the same everywhere. The classifier has *classes*; the ensemble has *lanes*. A class is served by the lane
//! of its name unless the configuration names another; the probabilities of the classes of a lane are added.
//!
//! The router reads the text of a request and nothing else: no load, no clock, no blocks. The same request and
//! configuration give the same route.

mod classifier;
mod config;
mod evaluate;
mod example;
mod features;
mod format;
mod input;
mod lexicon;
mod linear;
mod scan;
mod train;
mod tripwire;
mod why;

#[cfg(test)]
mod tests;

pub use classifier::{Classifier, REJECT};
pub use config::{
    ClassifierSource, ConfigError, IntentConfig, LoadError, RouterConfig, TripwireConfig,
};
pub use evaluate::{ClassFigures, Evaluation, RuleFigures, evaluate};
pub use example::{Example, ExampleError, ExamplePart, read_examples};
pub use format::FormatError;
pub use input::{DEFAULT_MAX_BYTES, Part, PartKind, RouteInput, View};
pub use linear::{BITS, LinearClassifier, MAX_CLASSES};
pub use train::{TrainError, TrainOptions, held_out, train};
pub use tripwire::{Finding, Findings, Threshold, Tripwire};
pub use why::Why;

use std::fmt;

use serde::Serialize;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Route {
    /// Name of the lane; `None` if the request is rejected or nothing decided ([`Route::why`] says which).
    pub primary: Option<String>,
    /// The next best lane, for shadows and spill: by the classifier's probabilities or, without a classifier, by the
    /// strength of the tripwires.
    pub second: Option<String>,
    /// Calibrated probability that the classifier gives the primary, whatever decided. For a rejected request that of
    /// the best lane. `None` without a classifier.
    pub score: Option<f32>,
    /// Probability of each lane, in the order of [`Router::lanes`]; the rest to 1 is text that no lane serves. Empty
    /// without a classifier.
    pub scores: Vec<f32>,
    /// Whether the current turn has a unified diff.
    pub diff: bool,
    /// What decided.
    pub why: Why,
}

/// Rules, classifier and lanes.
///
/// # Example
///
/// ```
/// use l6_ensemble::router::{LinearClassifier, Part, RouteInput, Router, RouterConfig, Why};
///
/// let lanes = ["stl", "memory", "debug"].map(String::from).to_vec();
/// let classifier = Box::new(LinearClassifier::builtin());
/// let router = Router::new(RouterConfig::default(), Some(classifier), lanes)?;
///
/// let parts = [Part::user(
///     "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010\n    #0 0x4f in main a.cpp:5",
/// )];
/// let route = router.route(&RouteInput { intent: None, parts: &parts });
/// assert_eq!(route.primary.as_deref(), Some("debug"));
/// assert!(matches!(route.why, Why::Rule { .. }), "{}", route.why);
/// # Ok::<(), l6_ensemble::router::RouterError>(())
/// ```
pub struct Router {
    config: RouterConfig,
    classifier: Option<Box<dyn Classifier>>,
    lanes: Vec<String>,
    /// Lane of each class of the classifier.
    lane_of_class: Vec<Option<usize>>,
    thresholds: [Threshold; Tripwire::ALL.len()],
}

/// Why a router cannot be created: all problems at once.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the router's configuration is invalid: {}", joined(.0))]
pub struct RouterError(pub Vec<ConfigError>);

fn joined(errors: &[ConfigError]) -> String {
    errors.iter().map(ConfigError::to_string).collect::<Vec<_>>().join("; ")
}

impl Router {
    /// Creates a router for lanes with these names. A class that no lane serves counts as [`REJECT`] in the
    /// classifier's probabilities, and intents and tripwires for it decide nothing.
    ///
    /// # Errors
    /// [`RouterError`]: what [`RouterConfig::validate`] lists, and lanes in it that are not among `lanes`.
    pub fn new(
        config: RouterConfig,
        classifier: Option<Box<dyn Classifier>>,
        lanes: Vec<String>,
    ) -> Result<Self, RouterError> {
        let mut errors = config.validate();
        let mut problem =
            |field: String, problem: String| errors.push(ConfigError { field, problem });
        for (class, lane) in &config.lanes {
            if !lanes.contains(lane) {
                let known = lanes.join(", ");
                problem(
                    format!("lanes.{class}"),
                    format!("is {lane:?}, which is no lane: use one of {known}"),
                );
            }
        }
        if lanes.is_empty() {
            problem("lanes".to_owned(), "are missing: a router needs at least one lane".to_owned());
        }
        if !errors.is_empty() {
            return Err(RouterError(errors));
        }
        let thresholds = Tripwire::ALL.map(|tripwire| config.threshold(tripwire));
        let mut router = Self { config, classifier, lanes, lane_of_class: Vec::new(), thresholds };
        if let Some(classifier) = &router.classifier {
            let classes = classifier.classes();
            router.lane_of_class = classes.iter().map(|class| router.lane_of(class)).collect();
        }
        Ok(router)
    }

    /// Names of the lanes, in the order of [`Route::scores`].
    pub fn lanes(&self) -> &[String] {
        &self.lanes
    }

    /// The configuration.
    pub fn config(&self) -> &RouterConfig {
        &self.config
    }

    /// Number of the lane that serves a class.
    fn lane_of(&self, class: &str) -> Option<usize> {
        if class == REJECT {
            return None;
        }
        let lane = self.config.lanes.get(class).map_or(class, String::as_str);
        self.lanes.iter().position(|name| name == lane)
    }

    /// What the tripwires find in a request.
    pub fn findings(&self, input: &RouteInput<'_>) -> Findings {
        let views = input.views(self.config.max_bytes);
        Findings::of(&views, |tripwire| self.thresholds[tripwire as usize].clone())
    }

    /// Decides where a request goes. The time is bounded by `max_bytes`.
    pub fn route(&self, input: &RouteInput<'_>) -> Route {
        let findings = self.findings(input);
        let scores = self.lane_scores(input);
        let (lane, why) = self.decide(input, &findings, &scores);
        let second = match scores.is_empty() {
            true => self.second_by_rule(&findings, lane),
            false => best(&scores, lane).map(|(i, _)| i),
        };
        let score = match lane {
            Some(lane) => scores.get(lane).copied(),
            None => best(&scores, None).map(|(_, score)| score),
        };
        let name = |lane: usize| self.lanes[lane].clone();
        let (primary, second) = (lane.map(name), second.map(name));
        Route { primary, second, score, scores, diff: findings.diff, why }
    }

    fn decide(
        &self,
        input: &RouteInput<'_>,
        findings: &Findings,
        scores: &[f32],
    ) -> (Option<usize>, Why) {
        // exercise l6.rules
        if let Some(intent) = input.intent
            && let Some(lane) =
                self.config.intent_class(intent).and_then(|class| self.lane_of(class))
        {
            return (Some(lane), Why::DeclaredIntent { intent: intent.to_owned() });
        }
        if let Some(finding) = findings.decide(self.config.margin, |t| self.lane_of_tripwire(t)) {
            let why = Why::Rule { name: finding.tripwire, evidence: finding.summary() };
            return (self.lane_of_tripwire(finding.tripwire), why);
        }
        // end of exercise
        // exercise l6.reject
        match best(scores, None) {
            None => (None, Why::Fallback),
            Some((lane, score)) if score >= self.config.min_score && score > unserved(scores) => {
                (Some(lane), Why::Classifier { score })
            }
            Some((_, score)) => (None, Why::Rejected { score }),
        }
        // end of exercise
    }

    fn lane_of_tripwire(&self, tripwire: Tripwire) -> Option<usize> {
        self.lane_of(&self.thresholds[tripwire as usize].class)
    }

    /// Probability of each lane; empty without a classifier.
    fn lane_scores(&self, input: &RouteInput<'_>) -> Vec<f32> {
        let Some(classifier) = &self.classifier else { return Vec::new() };
        let mut scores = vec![0.0; self.lanes.len()];
        for (lane, score) in self.lane_of_class.iter().zip(classifier.scores(input)) {
            if let Some(lane) = lane {
                scores[*lane] += score;
            }
        }
        scores
    }

    /// Lane of the strongest tripwire that fired for another lane than the first.
    fn second_by_rule(&self, findings: &Findings, first: Option<usize>) -> Option<usize> {
        let fired = findings.findings.iter().filter(|f| f.strength >= 1.0);
        let lanes = fired.filter_map(|f| Some((self.lane_of_tripwire(f.tripwire)?, f.strength)));
        let others = lanes.filter(|(lane, _)| Some(*lane) != first);
        others.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(lane, _)| lane)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("lanes", &self.lanes)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The best of the scores but one, the first of equals.
fn best(scores: &[f32], but: Option<usize>) -> Option<(usize, f32)> {
    let others = scores.iter().copied().enumerate().filter(|(i, _)| Some(*i) != but);
    others.reduce(|best, this| if this.1 > best.1 { this } else { best })
}

/// Probability of text that no lane serves.
fn unserved(scores: &[f32]) -> f32 {
    1.0 - scores.iter().sum::<f32>()
}
