//! Loads the configuration of an ensemble again, without dropping a request.
//!
//! ```text
//! SIGHUP, POST /strata/reload -> read and check all of it -> other engines needed? -> next version in force
//!                                 \- every error at once      \- every such change
//!                                    nothing has changed         nothing has changed
//! ```
//!
//! The engines run on. Requests that have arrived keep the version with which they were routed ([`LiveLanes`]); those
//! that arrive afterwards get the next one. Breakers, overrides, the level of escalation and what was measured stay.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use l6_ensemble::{ConfigErrors, EnsembleConfig, NeedsRestart};
use serde::Serialize;
use tokio::sync::Mutex;

use super::LOG;
use super::ensemble::EnsembleError;
use super::lanes::{Lanes, LiveLanes};
use super::metrics::Metrics;
use super::middleware::access_log::rfc3339;

/// Reads the configuration from where it was read at the start.
pub type EnsembleSource = Arc<dyn Fn() -> Result<EnsembleConfig, SourceError> + Send + Sync>;

/// Why there is no configuration to load.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file cannot be read.
    #[error("{file}: {reason}")]
    Unreadable {
        /// Name of the file.
        file: String,
        /// What the system says.
        reason: io::Error,
    },
    /// The file is invalid.
    #[error("{file}: {errors}")]
    Invalid {
        /// Name of the file.
        file: String,
        /// Every error.
        errors: ConfigErrors,
    },
}

/// Why a configuration was not loaded. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// There is no valid file.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A change needs other engines.
    #[error(transparent)]
    NeedsRestart(#[from] NeedsRestart),
    /// There is no router for the file.
    #[error(transparent)]
    Ensemble(#[from] EnsembleError),
    /// The work failed.
    #[error("the configuration was not loaded: {0}")]
    Failed(String),
}

/// What can come of a reload, in labels of metrics.
pub const OUTCOMES: [&str; 4] = ["applied", "unreadable", "invalid", "needs_restart"];

impl ReloadError {
    /// Name of the outcome, in labels of metrics.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Source(SourceError::Unreadable { .. }) | Self::Failed(_) => "unreadable",
            Self::Source(SourceError::Invalid { .. }) | Self::Ensemble(_) => "invalid",
            Self::NeedsRestart(_) => "needs_restart",
        }
    }

    /// Each problem, with its path.
    pub fn problems(&self) -> Vec<String> {
        match self {
            Self::Source(SourceError::Invalid { errors, .. }) => {
                errors.0.iter().map(ToString::to_string).collect()
            }
            Self::NeedsRestart(changes) => changes.0.iter().map(ToString::to_string).collect(),
            why => vec![why.to_string()],
        }
    }
}

/// A version of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigVersion {
    /// 1 at the start of the server, and one more with each reload.
    pub version: u64,
    /// When it was loaded, in UTC.
    pub loaded: String,
}

impl ConfigVersion {
    /// That of the start.
    pub fn first() -> Self {
        Self { version: 1, loaded: rfc3339(SystemTime::now()) }
    }

    /// The one after this, loaded now.
    #[must_use]
    pub fn next(&self) -> Self {
        Self { version: self.version + 1, ..Self::first() }
    }
}

/// Loads the configuration again. Clones share everything.
#[derive(Clone)]
pub struct Reloader {
    lanes: LiveLanes,
    metrics: Arc<Metrics>,
    source: EnsembleSource,
    /// One reload after the other: the next version follows the one in force.
    turn: Arc<Mutex<()>>,
}

impl Reloader {
    /// Puts lanes with what `source` reads in force.
    pub fn new(lanes: LiveLanes, metrics: Arc<Metrics>, source: EnsembleSource) -> Self {
        metrics.register_reloads();
        Self { lanes, metrics, source, turn: Arc::default() }
    }

    /// Loads the configuration again, and logs and counts what came of it. `by`: what asked for it. Returns the lanes
    /// that are in force from here on.
    ///
    /// # Errors
    /// [`ReloadError`]; then nothing has changed.
    pub async fn reload(&self, by: &str) -> Result<Lanes, ReloadError> {
        let _turn = self.turn.lock().await;
        let (source, lanes) = (self.source.clone(), self.lanes.now());
        // A file, and a classifier, which may be large.
        let loaded = tokio::task::spawn_blocking(move || load(&source, &lanes)).await;
        let loaded = loaded.unwrap_or_else(|why| Err(ReloadError::Failed(why.to_string())));
        let outcome = loaded.as_ref().map_or_else(ReloadError::outcome, |_| OUTCOMES[0]);
        self.metrics.count_reload(outcome);
        match &loaded {
            Ok(lanes) => {
                // No await between the two: both are done, or none.
                lanes.put_in_force();
                self.lanes.set(lanes.clone());
                let version = lanes.router().map_or(0, |ensemble| ensemble.version().version);
                tracing::info!(target: LOG, "{by}: version {version} of the ensemble's configuration is in force");
            }
            Err(why) => {
                tracing::error!(target: LOG, "{by}: the configuration of the ensemble has not changed: {why}");
            }
        }
        loaded
    }
}

/// The lanes of the next version.
fn load(source: &EnsembleSource, lanes: &Lanes) -> Result<Lanes, ReloadError> {
    let new = source()?;
    let Some(ensemble) = lanes.router() else { return Ok(lanes.clone()) };
    let new = ensemble.config().reloaded(new)?;
    Ok(lanes.reloaded(new)?)
}
