//! Files of `--state-dir`, in which service levels survive a restart.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use server::Lanes;
use server::metrics::SharedSlo;
use tokio::time::{MissedTickBehavior, interval};

use super::start::LOG;
use crate::cli::error::CliError;

/// Interval at which the files are written: rates are counted by the minute.
const INTERVAL: Duration = Duration::from_secs(60);

/// The file of each lane.
pub struct SloFiles(Vec<SloFile>);

struct SloFile {
    slo: SharedSlo,
    path: PathBuf,
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
            // A name can be that of a model on the hub.
            let name = model.name().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            SloFile {
                slo: lane.metrics().slo().clone(),
                path: directory.join(format!("slo-{name}.json")),
                model: model.root.clone(),
            }
        };
        let files: Vec<SloFile> = lanes.iter().map(file).collect();
        for SloFile { slo, path, model } in &files {
            if let Err(why) = slo.restore(path, model) {
                let path = path.display();
                tracing::warn!(target: LOG, "{path} is not restored, and will be replaced: {why}");
            }
        }
        Ok(Arc::new(Self(files)))
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
        for SloFile { slo, path, model } in &self.0 {
            if let Err(why) = slo.store(path, model) {
                tracing::warn!(target: LOG, "{why}");
            }
        }
    }
}
