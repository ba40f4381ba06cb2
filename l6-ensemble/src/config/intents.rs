//! Intents of the ensemble file: `[intents.NAME]`, and those that specialists claim.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::reader::Reader;
use super::{ConfigError, SpecialistConfig};
use crate::router::{IntentConfig, RouterConfig};
use crate::shadow::ShadowConfig;

/// Fields of an intent.
const FIELDS: [&str; 3] = ["class", "shadow_below", "spill_below"];

/// Reads `[intents.NAME]`: the class that an intent decides for, and the thresholds of its requests.
///
/// Returns the intents with a class in the file, and their classes.
pub(super) fn read(
    reader: &mut Reader<'_>,
    router: &mut RouterConfig,
    shadow: &mut ShadowConfig,
) -> Vec<(String, String)> {
    let mut declared = Vec::new();
    for (name, value) in reader.table("intents").unwrap_or_default() {
        let Value::Table(table) = value else {
            reader.error(&format!("intents.{name}"), "must be a table");
            continue;
        };
        let class = one(&name, table, reader, router, shadow);
        declared.extend(class.map(|class| (name, class)));
    }
    declared
}

/// Reports classes of intents that no specialist serves: such an intent would decide nothing.
pub(super) fn check_classes(
    declared: &[(String, String)],
    specialists: &[SpecialistConfig],
    router: &RouterConfig,
    errors: &mut Vec<ConfigError>,
) {
    let names = specialists.iter().map(|own| own.name.as_str());
    let served: BTreeSet<&str> = router.lanes.keys().map(String::as_str).chain(names).collect();
    // An empty class has an error of its own.
    for (intent, class) in declared.iter().filter(|(_, class)| !class.is_empty()) {
        if !served.contains(class.as_str()) {
            let known: Vec<&str> = served.iter().copied().filter(|name| !name.is_empty()).collect();
            let what = format!(
                "must be a class that a specialist serves ({}), got `{class}`",
                known.join(", ")
            );
            errors.push(ConfigError::new(format!("intents.{intent}.class"), what));
        }
    }
}

fn one(
    name: &str,
    table: Table,
    reader: &mut Reader<'_>,
    router: &mut RouterConfig,
    shadow: &mut ShadowConfig,
) -> Option<String> {
    let mut own = Reader::new(format!("intents.{name}"), table, reader.errors());
    let class = own.string("class");
    if class.is_some() {
        router.intents.insert(name.to_owned(), IntentConfig { class: class.clone() });
    } else {
        // Without a class the intent is known, and decides nothing that is not decided by default.
        router.intents.entry(name.to_owned()).or_insert_with(|| IntentConfig {
            class: RouterConfig::default().intent_class(name).map(str::to_owned),
        });
    }
    let mut thresholds = shadow.intent(name);
    for (field, value) in [
        ("shadow_below", &mut thresholds.shadow_below),
        ("spill_below", &mut thresholds.spill_below),
    ] {
        *value = own.number(field, 0.0, 1.0).map_or(*value, |score| score as f32);
    }
    own.end(&FIELDS);
    shadow.intents.insert(name.to_owned(), thresholds);
    class
}

/// Assigns classes and intents to the specialists that claim them.
pub(super) fn assign(specialists: &[SpecialistConfig], router: &mut RouterConfig) {
    // A name that is missing has been reported.
    for specialist in specialists.iter().filter(|own| !own.name.is_empty()) {
        for class in &specialist.classes {
            router.lanes.insert(class.clone(), specialist.name.clone());
        }
        for intent in &specialist.intents {
            // A class that is served by this specialist; its own name is one, unless another one claims that.
            let class = specialist.classes.first().unwrap_or(&specialist.name).clone();
            router.intents.insert(intent.clone(), IntentConfig { class: Some(class) });
        }
    }
}
