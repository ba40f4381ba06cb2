//! The ensemble file: which specialists there are, and how requests are divided among them.

mod check;
mod intents;
mod paths;
mod reader;
mod reload;
mod remote;
pub(crate) mod section;
mod specialist;
mod speculation;
#[cfg(test)]
mod tests;

use std::fmt;

use l3_paged_kv::sizing::Budget;
use toml::{Table, Value};

use crate::breaker::BreakerConfig;
use crate::escalation::EscalationConfig;
use crate::router::RouterConfig;
use crate::shadow::ShadowConfig;
use crate::slo::SloOptions;
use reader::Reader;
pub use reload::{EngineChange, NeedsRestart};
pub use remote::{RemoteApi, RemoteConfig};
pub use specialist::{DecodingPolicy, SpecialistConfig};

/// KV memory of an ensemble whose file does not say how much: that of one engine on a CPU.
pub const DEFAULT_KV_MEMORY: u64 = 4 << 30;

/// Maximum number of specialists.
pub const MAX_SPECIALISTS: usize = 64;

/// An ensemble: specialists behind one router.
///
/// # Example
///
/// ```
/// use l6_ensemble::EnsembleConfig;
///
/// let file = r#"
///     name = "cpp"
///     model = "smollm2"
///     kv_memory = "1GiB"
///     fallback = "stl"
///
///     [[specialist]]
///     name = "stl"
///     block_size = 8
///
///     [[specialist]]
///     name = "debug"
///     intents = ["debug"]
///     fallback = "stl"
/// "#;
/// let config = EnsembleConfig::parse(file)?;
/// assert_eq!(config.specialists[1].fallback.as_deref(), Some("stl"));
/// assert_eq!(config.specialists[1].kv_share, 0.5, "memory that no specialist claims is divided equally");
///
/// let errors = EnsembleConfig::parse("[[specialist]]\nname = \"a\"\nreplicas = 0").unwrap_err();
/// assert_eq!(errors.0.len(), 2, "all errors at once: {errors}");
/// # Ok::<(), l6_ensemble::ConfigErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EnsembleConfig {
    /// Name of the ensemble: a request with this `model`, or none, is routed.
    pub name: String,
    /// KV memory of all specialists together.
    pub kv_memory: Budget,
    /// Specialist of requests that the router assigns to none. `None`: such requests are rejected.
    pub fallback: Option<String>,
    /// Specialists, in the order of the file.
    pub specialists: Vec<SpecialistConfig>,
    /// The router: `[router]`, the classes of intents, and the specialists of classes.
    pub router: RouterConfig,
    /// Shadows: `[shadow]`, and the thresholds of intents.
    pub shadow: ShadowConfig,
    /// Circuit breakers of all lanes: `[breaker]`.
    pub breaker: BreakerConfig,
    /// Escalation under load: `[escalation]`.
    pub escalation: EscalationConfig,
    /// How objectives are measured: `[slo]`.
    pub slo: SloOptions,
}

/// An error of the ensemble file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Path of the field, as in `specialist.template.replicas`.
    pub path: String,
    /// What is wrong, and what to do.
    pub what: String,
}

impl ConfigError {
    /// Error of the field at `path`.
    pub(crate) fn new(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self { path: path.into(), what: what.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, what } = self;
        if path.is_empty() { f.write_str(what) } else { write!(f, "`{path}` {what}") }
    }
}

/// All errors of an ensemble file; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            let end = if i + 1 < self.0.len() { "\n" } else { "" };
            write!(f, "{error}{end}")?;
        }
        Ok(())
    }
}

/// Maximum number of errors that are listed: a file that is something else altogether can have one in each line.
const MAX_ERRORS: usize = 100;

/// Fields of the file.
const FIELDS: [&str; 11] = [
    "name",
    "model",
    "kv_memory",
    "fallback",
    "specialist",
    "router",
    "intents",
    "shadow",
    "breaker",
    "escalation",
    "slo",
];

impl EnsembleConfig {
    /// Reads and validates an ensemble file.
    ///
    /// # Errors
    /// Every error of the file.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        let table: Table = text.parse().map_err(|why: toml::de::Error| {
            let what = why.to_string().trim().to_owned();
            ConfigErrors(vec![ConfigError { path: String::new(), what }])
        })?;
        let mut errors = Vec::new();
        let config = Self::read(table, &mut errors);
        check::check(&config, &mut errors);
        if errors.len() > MAX_ERRORS {
            let more = errors.len() - MAX_ERRORS;
            errors.truncate(MAX_ERRORS);
            errors.push(ConfigError::new("", format!("and {more} more errors")));
        }
        if errors.is_empty() { Ok(config) } else { Err(ConfigErrors(errors)) }
    }

    fn read(table: Table, errors: &mut Vec<ConfigError>) -> Self {
        let mut reader = Reader::new("", table, errors);
        let name = reader.string("name").unwrap_or_else(|| "ensemble".to_owned());
        let model = reader.string("model");
        let kv_memory = reader.parsed("kv_memory").unwrap_or(Budget::exact(DEFAULT_KV_MEMORY));
        let fallback = reader.string("fallback");
        let tables = reader.tables("specialist").unwrap_or_default();
        let mut specialists = Vec::new();
        let names = tables.iter().map(|table| table.get("name").and_then(Value::as_str));
        let paths = specialist::paths(names.map(Option::unwrap_or_default));
        for (path, table) in paths.into_iter().zip(tables).take(MAX_SPECIALISTS + 1) {
            specialists.push(specialist::read(path, table, model.as_deref(), reader.errors()));
        }
        let mut router: RouterConfig = reader.section("router");
        let mut shadow: ShadowConfig = reader.section("shadow");
        let (breaker, escalation): (BreakerConfig, EscalationConfig) =
            (reader.section("breaker"), reader.section("escalation"));
        let slo: SloOptions = reader.section("slo");
        if !router.intents.is_empty() {
            let what = "is unknown: intents have tables of their own, as in [intents.review]";
            reader.error("router.intents", what);
        }
        if !router.lanes.is_empty() {
            let what = "is unknown: a specialist names the classes that it serves, as `classes`";
            reader.error("router.lanes", what);
        }
        let declared = intents::read(&mut reader, &mut router, &mut shadow);
        intents::assign(&specialists, &mut router);
        intents::check_classes(&declared, &specialists, &router, reader.errors());
        reader.end(&FIELDS);
        divide_memory(&mut specialists);
        Self { name, kv_memory, fallback, specialists, router, shadow, breaker, escalation, slo }
    }

    /// Whether a specialist serves this class of the router: it claims the class, or has its name.
    pub fn serves(&self, class: &str) -> bool {
        self.router.lanes.contains_key(class) || self.index(class).is_some()
    }

    /// Index of the specialist of this name.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.specialists.iter().position(|specialist| specialist.name == name)
    }

    /// Index of the specialist that serves requests in place of specialist `at`.
    pub fn fallback_of(&self, at: usize) -> Option<usize> {
        self.index(self.specialists.get(at)?.fallback.as_deref()?)
    }
}

/// Divides memory that no specialist claims equally among those that claim none.
fn divide_memory(specialists: &mut [SpecialistConfig]) {
    let claimed: f64 = specialists.iter().map(|specialist| specialist.kv_share).sum();
    // A specialist without engines here needs no memory here.
    let waits = |own: &SpecialistConfig| own.kv_share == 0.0 && own.replicas > 0;
    let without = specialists.iter().filter(|own| waits(own)).count();
    let each = (1.0 - claimed).max(0.0) / without.max(1) as f64;
    for specialist in specialists.iter_mut().filter(|own| waits(own)) {
        specialist.kv_share = each;
    }
}
