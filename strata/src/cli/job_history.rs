//! The file of `--job-history`: which blocks were held for agents' jobs, for how long, and of what use that was.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use l5_scheduler::{JobHistory, PinnedRequest};
use serde::Serialize;
use server::state_file;
use sha2::{Digest, Sha256};

use super::error::CliError;

/// Maximum number of leases that have ended in the file: some megabytes.
const MAX_PINNED_REQUESTS: usize = 16_384;

/// Digits of the digest of a tenant.
const TENANT_DIGITS: usize = 16;

/// A history and its file, which is replaced as a whole.
pub struct JobHistoryFile {
    path: PathBuf,
    history: JobHistory,
    /// Number of changes of the history that the file has.
    written: Mutex<u64>,
}

/// The file. Times are in seconds of the engine's clock, which begins when the engine starts.
#[derive(Serialize)]
struct Contents<'a> {
    pinned_requests: Vec<Record<'a>>,
    /// Number of older leases that are not in the list.
    dropped: u64,
}

/// A lease. The first three names are those of Continuum's history.
#[derive(Serialize)]
struct Record<'a> {
    pinned_time: f64,
    /// `null` while the blocks are held.
    unpinned_time: Option<f64>,
    /// Tokens of the held blocks that the job's next request hit; 0 if none came.
    hit_length: usize,
    job_id: Option<&'a str>,
    /// Digest of the tenant, which is no secret; `null` if requests share their cache.
    tenant: Option<String>,
    request_id: u64,
    tool: Option<&'a str>,
    blocks: usize,
    /// Why they are no longer held.
    reason: Option<&'static str>,
}

impl<'a> From<&'a PinnedRequest> for Record<'a> {
    fn from(pin: &'a PinnedRequest) -> Self {
        let job = pin.job.as_ref();
        Self {
            pinned_time: pin.pinned_time.seconds(),
            unpinned_time: pin.unpinned.map(|(at, _)| at.seconds()),
            hit_length: pin.hit_length,
            job_id: job.map(|job| job.id.as_str()),
            tenant: job.and_then(|job| job.tenant.as_deref()).map(digest),
            request_id: pin.request.0,
            tool: pin.tool.as_deref(),
            blocks: pin.blocks,
            reason: pin.unpinned.map(|(_, why)| why.as_str()),
        }
    }
}

/// Digest of a tenant's salt.
fn digest(salt: &str) -> String {
    let bytes = Sha256::digest(salt);
    bytes.iter().take(TENANT_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

impl JobHistoryFile {
    /// Writes an empty history to a file.
    ///
    /// # Errors
    /// [`CliError::Output`] if the file cannot be written.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let history = JobHistory::new(MAX_PINNED_REQUESTS);
        let file = Self { path: path.to_owned(), history, written: Mutex::new(u64::MAX) };
        file.store()?;
        Ok(file)
    }

    /// The history, which observes an engine.
    pub fn history(&self) -> &JobHistory {
        &self.history
    }

    /// Replaces the file, if the history has changed.
    ///
    /// # Errors
    /// [`CliError::Output`].
    pub fn store(&self) -> Result<(), CliError> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if *written == self.history.changes() {
            return Ok(());
        }
        let snapshot = self.history.snapshot();
        let pinned_requests = snapshot.pinned_requests.iter().map(|pin| Record::from(&**pin));
        let pinned_requests = pinned_requests.collect();
        let contents = Contents { pinned_requests, dropped: snapshot.dropped };
        let stored = serde_json::to_vec(&contents).map_err(io::Error::from);
        let stored = stored.and_then(|bytes| state_file::replace(&self.path, &bytes));
        stored.map_err(|reason| CliError::Output { path: self.path.clone(), reason })?;
        *written = snapshot.changes;
        Ok(())
    }
}
