//! `--trace-blocks`: a recording that the command and the block manager share.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use l3_paged_kv::trace::{BlockObserver, BlockOp, Recorder};

use super::error::CliError;

type Writer = Recorder<BufWriter<File>>;

/// A file that is being recorded to.
pub struct Recording {
    path: PathBuf,
    recorder: Shared,
}

/// The manager owns its observer, and a session owns the manager; whoever made the file wants to know whether
/// everything was written.
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
    /// Make the file.
    ///
    /// # Errors
    /// [`CliError::Output`] where it cannot be made.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let refused = |reason| CliError::Output { path: path.to_owned(), reason };
        let recorder = Recorder::create(path).map_err(refused)?;
        Ok(Self { path: path.to_owned(), recorder: Shared(Arc::new(Mutex::new(recorder))) })
    }

    /// For the block manager.
    pub fn observer(&self) -> Box<dyn BlockObserver> {
        Box::new(self.recorder.clone())
    }

    /// Write out what is buffered.
    ///
    /// # Errors
    /// [`CliError::Output`] with whatever went wrong since the beginning.
    pub fn finish(self) -> Result<(), CliError> {
        let finished = self.recorder.lock().finish();
        finished.map_err(|reason| CliError::Output { path: self.path.clone(), reason })
    }
}
