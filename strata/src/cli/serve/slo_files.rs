//! Files of `--state-dir`, in which service levels and the freshness of lanes survive a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use l6_ensemble::shadow::Freshness;
use server::Lanes;
use server::ensemble::Ensemble;
use server::metrics::SharedSlo;
use server::state_file;
use tokio::time::{MissedTickBehavior, interval};

use super::start::LOG;
use crate::cli::error::CliError;

/// Interval at which the files are written: rates are counted by the minute.
const INTERVAL: Duration = Duration::from_secs(60);

/// The files of each lane.
pub struct SloFiles {
    files: Vec<SloFile>,
    /// The lanes of an ensemble, whose freshness is kept.
    ensemble: Option<Arc<Ensemble>>,
}

struct SloFile {
    slo: SharedSlo,
    path: PathBuf,
    /// File of the lane's freshness.
    freshness: PathBuf,
    /// What the measurements are about: those of another model are not restored.
    model: String,
}

impl SloFiles {
    /// Creates the directory, and restores what it has. A file that cannot be restored is reported and replaced.
    ///
    /// # Errors
    /// [`CliError::Output`] if the directory cannot be created.
    pub fn open(directory: &Path, lanes: &Lanes) -> Result<Arc<Self>, CliError> {
        let failed = |reason| CliError::Output { path: directory.to_owned(), reason };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let file = |lane: &server::ServedLane| {
            let model = lane.model();
            // The name of a lane is a file name; that of the only model of a server can be one of the hub.
            let kept = |c: char| c.is_ascii_alphanumeric() || c == '-';
            let name = model.name().replace(|c| !kept(c), "_");
            SloFile {
                slo: lane.metrics().slo().clone(),
                path: directory.join(format!("slo-{name}.json")),
                freshness: directory.join(format!("freshness-{name}.json")),
                model: model.root.clone(),
            }
        };
        let files: Vec<SloFile> = lanes.iter().map(file).collect();
        for SloFile { slo, path, model, .. } in &files {
            if let Err(why) = slo.restore(path, model) {
                let path = path.display();
                tracing::warn!(target: LOG, "{path} is not restored, and will be replaced: {why}");
            }
        }
        let ensemble = lanes.router().cloned();
        for (at, file) in files.iter().enumerate() {
            let Some(ensemble) = &ensemble else { break };
            match read_freshness(&file.freshness) {
                // Of another version: the lane is fresh.
                Ok(Some(stored)) => _ = ensemble.restore_freshness(at, stored),
                Ok(None) => {}
                Err(why) => {
                    let path = file.freshness.display();
                    tracing::warn!(target: LOG, "{path} is not restored, and will be replaced: {why}");
                }
            }
        }
        Ok(Arc::new(Self { files, ensemble }))
    }

    /// Writes the files every minute.
    pub async fn keep(self: Arc<Self>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let files = self.clone();
            let _ = tokio::task::spawn_blocking(move || files.store()).await;
        }
    }

    /// Writes the files.
    pub fn store(&self) {
        for (at, SloFile { slo, path, model, freshness }) in self.files.iter().enumerate() {
            if let Err(why) = slo.store(path, model) {
                tracing::warn!(target: LOG, "{why}");
            }
            let Some(ensemble) = &self.ensemble else { continue };
            if let Err(why) = write_freshness(freshness, &ensemble.stored_freshness(at)) {
                tracing::warn!(target: LOG, "{}: {why}", freshness.display());
            }
        }
    }
}

fn read_freshness(path: &Path) -> io::Result<Option<Freshness>> {
    let bytes = state_file::read(path)?;
    Ok(bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose()?)
}

fn write_freshness(path: &Path, freshness: &Freshness) -> io::Result<()> {
    state_file::replace(path, &serde_json::to_vec(freshness)?)
}
