//! Checks of the ensemble file that look at several fields.

use std::collections::{BTreeMap, HashSet};

use super::{ConfigError, EnsembleConfig, MAX_SPECIALISTS, specialist};

/// Minimum share of the KV memory that must be left for each specialist that claims none.
const MIN_SHARE: f64 = 0.001;

/// Slack for shares that add up to 1 in decimal notation.
const ROUNDING: f64 = 1e-9;

/// Maximum length of a name of the ensemble or of an intent, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// Whether a name can be shown in headers, logs and labels of metrics.
fn is_shown(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES && !name.contains(char::is_control)
}

fn what_is_shown() -> String {
    format!("must have at most {MAX_NAME_BYTES} bytes and no control characters")
}

/// Adds the errors of a file whose fields are valid one by one.
pub(super) fn check(config: &EnsembleConfig, errors: &mut Vec<ConfigError>) {
    let has_errors = errors.iter().any(|error| error.path == "specialist");
    let mut error = |path: String, what: String| errors.push(ConfigError { path, what });
    let specialists = &config.specialists;
    let paths = specialist::paths(specialists.iter().map(|own| own.name.as_str()));
    if specialists.is_empty() && !has_errors {
        error(
            "specialist".into(),
            "is missing: an ensemble has at least one [[specialist]]".into(),
        );
    }
    if specialists.len() > MAX_SPECIALISTS {
        error("specialist".into(), format!("has more than {MAX_SPECIALISTS} entries"));
    }
    if config.name.is_empty() {
        error("name".into(), "must not be empty".into());
    }
    if !is_shown(&config.name) {
        error("name".into(), what_is_shown());
    }
    for intent in config.router.intents.keys().filter(|intent| !is_shown(intent)) {
        // The name itself may be anything.
        let path =
            format!("intents.{}", intent.chars().take(32).collect::<String>().escape_debug());
        error(path, what_is_shown());
    }

    let mut names = HashSet::new();
    for (at, specialist) in specialists.iter().enumerate() {
        let name = specialist.name.as_str();
        if !name.is_empty() && !names.insert(name) {
            let what = format!("is `{name}`, the name of an earlier specialist");
            error(format!("{}.name", paths[at]), what);
        }
        if name == config.name && !name.is_empty() {
            let what = "is the name of the ensemble: requests with this `model` are routed".into();
            error(format!("{}.name", paths[at]), what);
        }
    }

    let claimed: f64 = specialists.iter().map(|specialist| specialist.kv_share).sum();
    let with_engines = specialists.iter().filter(|specialist| specialist.replicas > 0);
    let least = with_engines.map(|specialist| specialist.kv_share).fold(1.0, f64::min);
    if claimed > 1.0 + ROUNDING || least < MIN_SHARE {
        let shares: Vec<String> = specialists
            .iter()
            .map(|specialist| format!("{} {:.3}", specialist.name, specialist.kv_share))
            .collect();
        let what = format!(
            "is divided into more than there is: the shares ({}) must add up to at most 1, and leave {MIN_SHARE} for \
             each specialist that claims none. Reduce `kv_share` of some",
            shares.join(", ")
        );
        error("kv_memory".into(), what);
    }

    for (field, of) in [("classes", 0), ("intents", 1)] {
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (specialist, path) in specialists.iter().zip(&paths) {
            let values = if of == 0 { &specialist.classes } else { &specialist.intents };
            for value in values {
                let path = format!("{path}.{field}");
                if value.is_empty() {
                    error(path, "must have no empty entries".into());
                } else if let Some(owner) = owners.insert(value, &specialist.name) {
                    let what = format!("has `{value}`, which `{owner}` has already: keep one");
                    error(path, what);
                }
            }
        }
    }

    // A class without a specialist is no error: text of that class counts as text that no specialist serves.
    for problem in config.router.validate() {
        let in_router = !problem.field.starts_with("intents.");
        let path = if in_router { format!("router.{}", problem.field) } else { problem.field };
        error(path, problem.problem);
    }
    let sections = [
        config.shadow.errors(),
        config.breaker.errors(),
        config.escalation.errors(),
        config.slo.errors(),
    ];
    for ConfigError { path, what } in sections.into_iter().flatten() {
        error(path, what);
    }
    for (specialist, own) in specialists.iter().zip(&paths) {
        for ConfigError { path, what } in specialist.slo.errors() {
            error(format!("{own}.{path}"), what);
        }
    }

    let unknown = |name: &str| {
        let known: Vec<&str> = specialists.iter().map(|own| own.name.as_str()).collect();
        format!("must be the name of a specialist ({}), got `{name}`", known.join(", "))
    };
    if let Some(name) = &config.fallback
        && config.index(name).is_none()
    {
        error("fallback".into(), unknown(name));
    }
    for (at, specialist) in specialists.iter().enumerate() {
        let Some(name) = &specialist.fallback else { continue };
        let path = format!("{}.fallback", paths[at]);
        if config.index(name).is_none() {
            error(path, unknown(name));
        } else if let Some(cycle) = cycle(config, at) {
            let what = format!(
                "leads back to itself ({}): while these specialists cannot serve, no specialist would",
                cycle.join(" -> ")
            );
            error(path, what);
        }
    }
}

/// The names on the way from specialist `at` back to it along the fallbacks; `None` if the way ends elsewhere.
fn cycle(config: &EnsembleConfig, at: usize) -> Option<Vec<&str>> {
    let name = |at: usize| config.specialists[at].name.as_str();
    let mut path = vec![name(at)];
    let mut next = config.fallback_of(at)?;
    while path.len() <= config.specialists.len() {
        path.push(name(next));
        if next == at {
            return Some(path);
        }
        next = config.fallback_of(next)?;
    }
    // A cycle that this specialist leads to, but is not part of: reported for those that are.
    None
}
