//! Intents of the ensemble file: `[intents.NAME]`, and those that specialists claim.

use toml::{Table, Value};

use super::SpecialistConfig;
use super::reader::Reader;
use crate::router::{IntentConfig, RouterConfig};
use crate::shadow::ShadowConfig;

/// Fields of an intent.
const FIELDS: [&str; 3] = ["class", "shadow_below", "spill_below"];

/// Reads `[intents.NAME]`: the class that an intent decides for, and the thresholds of its requests.
pub(super) fn read(reader: &mut Reader<'_>, router: &mut RouterConfig, shadow: &mut ShadowConfig) {
    let Some(all) = reader.table("intents") else { return };
    for (name, value) in all {
        let Value::Table(table) = value else {
            reader.error(&format!("intents.{name}"), "must be a table");
            continue;
        };
        one(&name, table, reader, router, shadow);
    }
}

fn one(
    name: &str,
    table: Table,
    reader: &mut Reader<'_>,
    router: &mut RouterConfig,
    shadow: &mut ShadowConfig,
) {
    let mut own = Reader::new(format!("intents.{name}"), table, reader.errors());
    if let Some(class) = own.string("class") {
        router.intents.insert(name.to_owned(), IntentConfig { class: Some(class) });
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
