//! Files that a run is recorded in: `--trace` (steps of the engine) and `--trace-blocks` (operations of the block
//! pool).

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use l3_paged_kv::trace::{BlockObserver, BlockOp, Recorder};
use l5_scheduler::EngineHandle;
use l5_scheduler::trace::{EnsembleRecorder, Recorder as StepRecorder};

use super::error::CliError;

type Writer = Recorder<BufWriter<File>>;

/// A recording of block operations, which the command and the block manager share.
pub struct Recording {
    path: PathBuf,
    recorder: Shared,
}

/// The manager owns its observer and a session owns the manager, but the command that created the file must learn
/// whether everything was written.
#[derive(Clone)]
struct Shared(Arc<Mutex<Writer>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockObserver for Shared {
    fn observe(&mut self, op: &BlockOp<'_>) {
        self.lock().observe(op);
    }

    fn finish(&mut self) -> io::Result<()> {
        self.lock().finish()
    }
}

impl Recording {
    /// Creates the file.
    ///
    /// # Errors
    /// [`CliError::Output`] if it cannot be created.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let refused = |reason| CliError::Output { path: path.to_owned(), reason };
        let recorder = Recorder::create(path).map_err(refused)?;
        Ok(Self { path: path.to_owned(), recorder: Shared(Arc::new(Mutex::new(recorder))) })
    }

    /// An observer for the block manager.
    pub fn observer(&self) -> Box<dyn BlockObserver> {
        Box::new(self.recorder.clone())
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// [`CliError::Output`] with the first error since the file was created.
    pub fn finish(self) -> Result<(), CliError> {
        let finished = self.recorder.lock().finish();
        finished.map_err(|reason| CliError::Output { path: self.path.clone(), reason })
    }
}

/// A recording of an engine's steps.
pub struct StepRecording {
    path: PathBuf,
    recorder: StepRecorder,
}

impl StepRecording {
    /// Creates the file. `model` is the name that the recording states.
    ///
    /// # Errors
    /// [`CliError::Output`] if it cannot be created.
    pub fn create(path: &Path, model: &str) -> Result<Self, CliError> {
        let refused = |reason| CliError::Output { path: path.to_owned(), reason };
        let recorder = StepRecorder::create(path).map_err(refused)?.with_model(model);
        Ok(Self { path: path.to_owned(), recorder })
    }

    /// Records the steps of this engine from now on.
    ///
    /// # Errors
    /// An engine that has ended.
    pub fn observe(&self, engine: &EngineHandle) -> anyhow::Result<()> {
        Ok(engine.observe(self.recorder.observer())?)
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// [`CliError::Output`] with the first error since the file was created.
    pub fn finish(self) -> Result<(), CliError> {
        let path = self.path;
        self.recorder.finish().map_err(|reason| CliError::Output { path, reason })
    }
}

/// A recording of the engines and the router of an ensemble.
pub struct EnsembleRecording {
    path: PathBuf,
    recorder: EnsembleRecorder,
}

impl EnsembleRecording {
    /// Creates the file.
    ///
    /// # Errors
    /// [`CliError::Output`] if it cannot be created.
    pub fn create(path: &Path, ensemble: &str, lanes: &[&str]) -> Result<Self, CliError> {
        let refused = |reason| CliError::Output { path: path.to_owned(), reason };
        let recorder = EnsembleRecorder::create(path, ensemble, lanes).map_err(refused)?;
        Ok(Self { path: path.to_owned(), recorder })
    }

    /// The recorder, for the router.
    pub fn recorder(&self) -> &EnsembleRecorder {
        &self.recorder
    }

    /// Records the steps of a replica of a lane from now on. `model` is the name that the recording states.
    ///
    /// # Errors
    /// An engine that has ended.
    pub fn observe(
        &self,
        lane: &str,
        replica: u32,
        model: &str,
        engine: &EngineHandle,
    ) -> anyhow::Result<()> {
        let recorder = self.recorder.engine(lane, replica, model);
        Ok(engine.observe(recorder.observer())?)
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// [`CliError::Output`] with the first error since the file was created.
    pub fn finish(self) -> Result<(), CliError> {
        let path = self.path;
        self.recorder.finish().map_err(|reason| CliError::Output { path, reason })
    }
}

/// The recording of a server.
pub enum ServerRecording {
    /// Of its only engine.
    Engine(StepRecording),
    /// Of an ensemble.
    Ensemble(EnsembleRecording),
}

impl ServerRecording {
    /// Writes out what is buffered.
    ///
    /// # Errors
    /// [`CliError::Output`] with the first error since the file was created.
    pub fn finish(self) -> Result<(), CliError> {
        match self {
            Self::Engine(recording) => recording.finish(),
            Self::Ensemble(recording) => recording.finish(),
        }
    }
}
