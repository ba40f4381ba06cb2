//! An empty directory for one run.

use std::fs::DirBuilder;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::SandboxError;

/// Beginning of a directory's name.
pub const PREFIX: &str = "strata-compile-check-";

/// Number of names that are tried.
const ATTEMPTS: u64 = 16;

/// A directory that only its owner may enter. It is removed when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory in `parent` under a random name, for user and group `owner`.
    ///
    /// # Errors
    /// [`SandboxError::Directory`].
    pub fn new(parent: &Path, owner: Option<u32>) -> Result<Self, SandboxError> {
        let random = RandomState::new();
        let mut reason = io::Error::from(io::ErrorKind::AlreadyExists);
        for attempt in 0..ATTEMPTS {
            let name = format!("{PREFIX}{:016x}", random.hash_one((std::process::id(), attempt)));
            let path = parent.join(name);
            // Whatever is there under this name, also a link, belongs to another: only a new directory will do.
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    // Where root may not change owners, or the user does not exist, the step that becomes this user
                    // fails and says so.
                    if let Some(id) = owner {
                        let _ = std::os::unix::fs::chown(&path, Some(id), Some(id));
                    }
                    return Ok(Self(path));
                }
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => reason = why,
                Err(why) => {
                    reason = why;
                    break;
                }
            }
        }
        Err(SandboxError::Directory { parent: parent.to_owned(), reason })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is empty where the kernel keeps the program from making files; where it does not, what it made goes too.
        // Links are removed, not followed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
