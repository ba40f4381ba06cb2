//! The calibration stream: what the router decided, and which specialist was right.
//!
//! Each routed request may leave a [`CalibrationRecord`], one line of JSON. The record has the scores, the primary, the
//! shadow if there was one, the verdicts about both responses, and how they agree. [`tune`](crate::tune) reads the
//! stream and proposes thresholds.
//!
//! Prompts are tenant data. A record identifies its input by a salted [`InputDigest`], and has the prompt itself only
//! if [`CalibrationConfig::store_prompts`] is set: the queue removes it otherwise.
//!
//! Recording never delays a request. [`CalibrationQueue::push`] appends a line to a bounded queue, or drops and counts
//! it. A thread of the caller moves the lines to a [`RotatingFiles`], which bounds the bytes of a file and the number
//! of files.
//!
//! # Example
//!
//! ```
//! use l6_ensemble::calibration::{
//!     CalibrationConfig, CalibrationQueue, CalibrationRecord, FsDirectory, InputDigest, RotatingFiles,
//! };
//!
//! let config = CalibrationConfig::default();
//! let queue = CalibrationQueue::new(&config);
//! let digest = InputDigest::new(b"random bytes of this process", ["Explain SFINAE"]);
//! queue.push(CalibrationRecord::new(1.7e9, digest, "unspecified", "template", 0.93));
//!
//! # let dir = tempfile::tempdir()?;
//! # let directory = dir.path();
//! let mut files = RotatingFiles::open(FsDirectory::new(directory)?, &config)?;
//! files.write(&queue.take())?;
//! assert_eq!(files.counts().written, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agreement;
mod digest;
mod directory;
mod files;
mod queue;
mod record;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use agreement::{Agreement, Outcome, Verdicts, normalized};
pub use digest::{InputDigest, InvalidDigest};
pub use directory::{Directory, FsDirectory};
pub use files::{FileCounts, RotatingFiles, WriteError};
pub use queue::{CalibrationQueue, QueueCounts};
pub use record::{CalibrationRecord, DecidedBy, RECORD_VERSION, Response, ShadowResponse};

/// Configuration of the calibration stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrationConfig {
    /// Whether records have the prompt itself. It is tenant data; the default is false.
    pub store_prompts: bool,
    /// Maximum size of a file, in bytes.
    pub max_file_bytes: u64,
    /// Maximum number of files. The oldest is deleted when another one begins.
    pub max_files: usize,
    /// Maximum size of the queue between the requests and the writer, in bytes.
    pub max_queue_bytes: usize,
}

impl Default for CalibrationConfig {
    fn default() -> Self {
        Self {
            store_prompts: false,
            max_file_bytes: 16 << 20,
            max_files: 8,
            max_queue_bytes: 4 << 20,
        }
    }
}

impl CalibrationConfig {
    /// Every error of the configuration; empty if it is valid.
    pub fn errors(&self) -> Vec<String> {
        let mut errors = vec![];
        if self.max_file_bytes < 4096 {
            errors.push(format!(
                "calibration.max_file_bytes is {}: a file needs at least 4096",
                self.max_file_bytes
            ));
        }
        if self.max_files == 0 {
            errors.push("calibration.max_files is 0: keep at least one file".into());
        }
        if self.max_queue_bytes < 4096 {
            errors.push(format!(
                "calibration.max_queue_bytes is {}: the queue needs at least 4096",
                self.max_queue_bytes
            ));
        }
        errors
    }
}
