//! Fresh lanes: how long a new model, adapter or threshold is watched.

use serde::{Deserialize, Serialize};

/// What a lane's verdicts are about. Another value makes the lane fresh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneVersion {
    /// Digest or name of the model.
    pub model: String,
    /// Digest or name of the adapter, if the lane has one.
    pub adapter: Option<String>,
    /// Text of the thresholds that the lane is chosen by: the router's and the intents'.
    pub thresholds: String,
}

/// Number of verdicts about a lane since its version changed. A lane is fresh until it has `fresh_samples` of them;
/// then it is promoted, and stays so until its version changes.
///
/// It can be stored between two processes ([`serde`]); a lane whose stored version is the same goes on where it was.
///
/// # Example
///
/// ```
/// use l6_ensemble::shadow::{Freshness, LaneVersion};
///
/// let version = |model: &str| LaneVersion { model: model.into(), ..LaneVersion::default() };
/// let mut freshness = Freshness::new(version("stl@1"));
/// (0..200).for_each(|_| freshness.verdict());
/// assert!(!freshness.fresh(200));
/// assert!(freshness.update(version("stl@2")), "the model is another one");
/// assert!(freshness.fresh(200));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freshness {
    version: LaneVersion,
    verdicts: u64,
}

impl Freshness {
    /// A lane without verdicts.
    pub fn new(version: LaneVersion) -> Self {
        Self { version, verdicts: 0 }
    }

    /// Sets the version. Returns whether it is another one; the count begins at 0 then.
    pub fn update(&mut self, version: LaneVersion) -> bool {
        let other = version != self.version;
        if other {
            *self = Self::new(version);
        }
        other
    }

    /// Counts a verdict about a response of the lane, primary or shadow.
    pub fn verdict(&mut self) {
        self.verdicts = self.verdicts.saturating_add(1);
    }

    /// Whether the lane has fewer than `fresh_samples` verdicts.
    pub fn fresh(&self, fresh_samples: u64) -> bool {
        self.verdicts < fresh_samples
    }

    /// Number of verdicts since the version changed.
    pub fn verdicts(&self) -> u64 {
        self.verdicts
    }

    /// Version of the lane.
    pub fn version(&self) -> &LaneVersion {
        &self.version
    }
}
