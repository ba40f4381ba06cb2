//! What operators have set for lanes, kept in a file of `--state-dir` over a restart.
//!
//! ```json
//! {"escalation_level": null, "lanes": [{"lane": "debug", "breaker": "open", "priority_floor": 5}]}
//! ```

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use l6_ensemble::control::LanePatch;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::changes::LaneSettings;
use super::ensemble::Ensemble;
use super::{LOG, state_file};

/// Name of the file, and what the log names as the cause of what it restores.
pub const FILE: &str = "overrides.json";

/// Maximum size of the file, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Maximum number of lanes in the file.
const MAX_LANES: usize = 4096;

/// The file.
#[derive(Debug)]
pub struct OverridesFile {
    path: PathBuf,
    /// One write after the other, so that the last one has the last change.
    writing: Mutex<()>,
}

/// Contents of the file, to be written.
#[derive(Serialize)]
struct Stored<'a> {
    escalation_level: Option<usize>,
    lanes: Vec<StoredLane<'a>>,
}

#[derive(Serialize)]
struct StoredLane<'a> {
    lane: &'a str,
    #[serde(flatten)]
    settings: LaneSettings,
}

/// Contents of the file, as they are read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    escalation_level: Option<usize>,
    lanes: Vec<Map<String, Value>>,
}

impl OverridesFile {
    /// The file of a directory.
    pub fn new(directory: &std::path::Path) -> Self {
        Self { path: directory.join(FILE), writing: Mutex::default() }
    }

    /// Restores what the file has. What cannot be restored is reported and left out: a lane that is gone, a value that
    /// is invalid, or the whole file.
    pub fn restore(&self, ensemble: &Ensemble) {
        let path = self.path.display();
        match self.read() {
            Ok(None) => {}
            Ok(Some(read)) => {
                for why in apply(read, ensemble) {
                    tracing::warn!(target: LOG, "{path}: {why}");
                }
            }
            Err(why) => {
                tracing::warn!(
                    target: LOG,
                    "{path} is not restored, and the next change of a lane replaces it: {why}"
                );
            }
        }
    }

    fn read(&self) -> io::Result<Option<Read>> {
        let Some(bytes) = state_file::read_at_most(&self.path, MAX_BYTES)? else { return Ok(None) };
        let read: Read = serde_json::from_slice(&bytes)?;
        if read.lanes.len() > MAX_LANES {
            let why =
                format!("it has {} lanes, and at most {MAX_LANES} are read", read.lanes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Some(read))
    }

    /// Writes what is set now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, ensemble: &Ensemble) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let names = ensemble.config().specialists.iter().map(|own| own.name.as_str());
        let lanes = names.enumerate().map(|(at, lane)| (lane, ensemble.settings(at)));
        let set = lanes.filter(|(_, settings)| *settings != LaneSettings::default());
        let stored = Stored {
            escalation_level: ensemble.escalation_status().pinned,
            lanes: set.map(|(lane, settings)| StoredLane { lane, settings }).collect(),
        };
        state_file::replace(&self.path, &serde_json::to_vec(&stored)?)
    }
}

/// Applies what was read. Returns what is wrong with it.
fn apply(read: Read, ensemble: &Ensemble) -> Vec<String> {
    let mut wrong = Vec::new();
    let restored = read.escalation_level.map_or(Ok(()), |level| ensemble.pin(Some(level), FILE));
    wrong.extend(restored.err().map(|why| why.to_string()));
    for mut fields in read.lanes {
        let lane = match fields.remove("lane") {
            Some(Value::String(lane)) => lane,
            _ => {
                wrong.push("an entry of `lanes` is left out: its `lane` must be a name".to_owned());
                continue;
            }
        };
        // A name from the file, which may be of any length.
        let named = super::error::quoted(&lane);
        let Some(at) = ensemble.config().index(&lane) else {
            wrong.push(format!("what was set for `{named}` is left out: there is no such lane"));
            continue;
        };
        let patch = serde_json::from_value::<LanePatch>(Value::Object(fields));
        let applied = match patch {
            Ok(patch) => ensemble.patch(at, &patch, FILE).map_err(|why| why.to_string()),
            Err(why) => Err(why.to_string()),
        };
        if let Err(why) = applied {
            wrong.push(format!("what was set for `{named}` is left out: {why}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use l6_ensemble::EnsembleConfig;
    use l6_ensemble::control::BreakerMode;

    use super::*;
    use crate::metrics::Metrics;

    fn ensemble(names: [&str; 2]) -> Ensemble {
        let specialist = |name| format!("[[specialist]]\nname = \"{name}\"\n");
        let text = format!("name = \"e\"\nmodel = \"m\"\n{}", names.map(specialist).concat());
        let config = EnsembleConfig::parse(&text).unwrap();
        let counters = Metrics::default().routes(names.into_iter());
        Ensemble::new(config, counters).unwrap()
    }

    fn set(ensemble: &Ensemble, lane: usize, patch: &str) {
        ensemble.patch(lane, &serde_json::from_str(patch).unwrap(), "test").unwrap();
    }

    #[test]
    fn what_an_operator_set_is_restored_but_for_lanes_that_are_gone() {
        let directory = tempfile::tempdir().unwrap();
        let file = OverridesFile::new(directory.path());
        let before = ensemble(["one", "two"]);
        file.restore(&before);
        set(&before, 0, r#"{"breaker": "open", "shadow_below": 0.1, "priority_floor": -3}"#);
        set(&before, 1, r#"{"spill_below": 0.5}"#);
        before.pin(Some(1), "test").unwrap();
        file.store(&before).unwrap();
        let after = ensemble(["one", "two"]);
        file.restore(&after);
        assert_eq!(
            [0, 1].map(|lane| after.settings(lane)),
            [0, 1].map(|lane| before.settings(lane))
        );
        assert_eq!(after.escalation_status().pinned, Some(1));
        let other = ensemble(["zero", "one"]);
        let read = file.read().unwrap().unwrap();
        let wrong = apply(read, &other);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].contains("`two`") && wrong[0].contains("no such lane"), "{wrong:?}");
        assert_eq!(other.settings(0), LaneSettings::default());
        assert_eq!(other.settings(1).breaker, BreakerMode::Open, "by name, not by number");
    }

    #[test]
    fn a_file_that_is_invalid_changes_nothing_but_what_is_valid_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let (file, path) = (OverridesFile::new(directory.path()), directory.path().join(FILE));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            file.read()
        };
        for bad in ["", "{}", "[1]", r#"{"lanes": [], "colour": 1}"#, &" ".repeat(MAX_BYTES + 1)] {
            assert!(read(bad).is_err(), "{bad:.40}");
        }
        let many = format!(r#"{{"lanes": [{}{{}}]}}"#, "{},".repeat(MAX_LANES));
        assert!(read(&many).is_err());
        let mixed = r#"{"escalation_level": 99, "lanes": [
            {"lane": "one", "shadow_below": 7}, {"lane": "one", "colour": 1}, {"lane": 3}, {"breaker": "open"},
            {"lane": "two", "breaker": "open"}]}"#;
        let ensemble = ensemble(["one", "two"]);
        let wrong = apply(read(mixed).unwrap().unwrap(), &ensemble);
        assert_eq!(wrong.len(), 5, "{wrong:?}");
        assert_eq!(ensemble.settings(0), LaneSettings::default());
        assert_eq!(ensemble.settings(1).breaker, BreakerMode::Open);
        assert_eq!(ensemble.escalation_status().pinned, None);
    }
}
