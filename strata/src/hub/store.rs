//! Stores files in a cache: complete and checked, or not at all.
//!
//! Bytes go to a hidden file in the directory of the final one (a rename is atomic only inside one file system),
//! are hashed as they arrive, synced to the disk, and only then renamed. The final name has the whole file or none.
//! The hidden file is removed when anything fails; [`abandon_downloads`] does so on Ctrl-C; and the next fetch removes
//! what a power failure leaves, under the lock.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::HubError;

/// Known properties of a file that is to be downloaded.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    /// Length, in bytes.
    pub(super) size: Option<u64>,
    /// sha256 as 64 lower-case hex digits.
    pub(super) sha256: Option<String>,
}

/// Destination of bytes: a file, or in tests a full disk.
pub(super) trait Sink: Write {
    /// Discards all bytes written so far.
    fn rewind_to_start(&mut self) -> io::Result<()>;
    /// Waits until the bytes are on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

impl Sink for File {
    fn rewind_to_start(&mut self) -> io::Result<()> {
        self.set_len(0)?;
        self.seek(SeekFrom::Start(0)).map(drop)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// A file that is being written. It is removed if it is dropped before [`Partial::commit`].
pub(super) struct Partial<S: Sink = File> {
    // Declared first, so closed first: some systems do not remove an open file.
    sink: S,
    temp: Temporary,
    dest: PathBuf,
    variable: &'static str,
    expected: Expected,
    hasher: Sha256,
    received: u64,
}

impl Partial<File> {
    /// Starts the file `dest`, creating its directory. `variable` names the environment variable that moves the
    /// cache, for the message about a full disk.
    pub(super) fn create(
        dest: &Path,
        expected: Expected,
        variable: &'static str,
    ) -> Result<Self, HubError> {
        Partial::create_with(dest, expected, variable, |path| File::create_new(path))
    }
}

impl<S: Sink> Partial<S> {
    /// As [`Partial::create`], with a sink that `open` creates.
    fn create_with(
        dest: &Path,
        expected: Expected,
        variable: &'static str,
        open: impl FnOnce(&Path) -> io::Result<S>,
    ) -> Result<Self, HubError> {
        let (dir, name) = split(dest)?;
        let needed = expected.size.unwrap_or(0);
        fs::create_dir_all(dir)
            .map_err(|e| write_error("create", dir, dir, needed, variable, e))?;
        let temp = Temporary::file(dir, name);
        let sink = open(&temp.path)
            .map_err(|e| write_error("create", &temp.path, dir, needed, variable, e))?;
        Ok(Partial {
            sink,
            temp,
            dest: dest.to_path_buf(),
            variable,
            expected,
            hasher: Sha256::new(),
            received: 0,
        })
    }

    /// Bytes written so far.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Length of the file, if it is known.
    pub(super) fn size(&self) -> Option<u64> {
        self.expected.size
    }

    /// Sets the length that the server reports, unless it is known.
    pub(super) fn expect_size(&mut self, size: u64) {
        self.expected.size.get_or_insert(size);
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.sink.write_all(bytes).map_err(|e| self.error(e))?;
        self.hasher.update(bytes);
        self.received += bytes.len() as u64;
        Ok(())
    }

    /// Discards all bytes, for a server that cannot resume a download.
    pub(super) fn restart(&mut self) -> Result<(), HubError> {
        self.sink.rewind_to_start().map_err(|e| self.error(e))?;
        self.hasher = Sha256::new();
        self.received = 0;
        Ok(())
    }

    /// Checks length and hash, syncs the bytes to the disk, and renames the file to its final name. `what` names the
    /// source.
    pub(super) fn commit(mut self, what: &str) -> Result<(), HubError> {
        const REMEDY: &str = "no file was kept; run the command again, and do not trust this source if the error \
            persists";
        if let Some(expected) = self.expected.size.filter(|&size| size != self.received) {
            return Err(HubError::WrongSize {
                what: what.to_string(),
                expected,
                got: self.received,
                remedy: REMEDY,
            });
        }
        let got = hex(&self.hasher.finalize_reset());
        if let Some(expected) =
            self.expected.sha256.take().filter(|sha| !sha.eq_ignore_ascii_case(&got))
        {
            return Err(HubError::WrongHash {
                what: what.to_string(),
                expected,
                got,
                remedy: REMEDY,
            });
        }
        self.sink.sync().map_err(|e| self.error(e))?;
        let Partial { sink, temp, dest, .. } = self;
        drop(sink);
        fs::rename(&temp.path, &dest)
            .map_err(|e| HubError::io("move the finished download to", &dest, e))?;
        // The rename too must survive a power failure. Not every system can sync a directory.
        if let Some(dir) = dest.parent().and_then(|dir| File::open(dir).ok()) {
            let _ = dir.sync_all();
        }
        Ok(())
    }

    fn error(&self, error: io::Error) -> HubError {
        let dir = self.dest.parent().unwrap_or(Path::new("."));
        let needed = self.expected.size.unwrap_or(0);
        write_error("write", &self.temp.path, dir, needed, self.variable, error)
    }
}

/// Converts an error of a write: a full disk has its own error.
pub(super) fn write_error(
    action: &'static str,
    path: &Path,
    dir: &Path,
    needed: u64,
    variable: &'static str,
    error: io::Error,
) -> HubError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            HubError::DiskFull { dir: dir.to_path_buf(), needed, variable }
        }
        _ => HubError::io(action, path, error),
    }
}

/// Temporary files and directories of running downloads, which a signal handler removes.
static TEMPORARY_PATHS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Removes the temporary files of unfinished downloads. For a Ctrl-C handler, just before the process exits.
pub fn abandon_downloads() {
    for path in TEMPORARY_PATHS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        remove(path);
    }
}

fn remove(path: &Path) {
    // A failure is ignored: the next fetch removes the file.
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// A hidden path in a directory; its file or directory is removed on drop.
pub(super) struct Temporary {
    pub(super) path: PathBuf,
}

impl Temporary {
    /// Path of a file that will be renamed to `name`. Nothing is created.
    fn file(dir: &Path, name: &str) -> Self {
        // The number distinguishes threads, the process id processes.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{}{}-{n}{SUFFIX}", prefix(name), std::process::id()));
        TEMPORARY_PATHS.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone());
        Temporary { path }
    }

    /// Creates a temporary directory for the file `name` of `dir`.
    pub(super) fn directory(dir: &Path, name: &str) -> io::Result<Self> {
        let temp = Self::file(dir, name);
        fs::create_dir_all(&temp.path)?;
        Ok(temp)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        remove(&self.path);
        TEMPORARY_PATHS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

const SUFFIX: &str = ".part";

fn prefix(name: &str) -> String {
    format!(".{name}.")
}

/// Lock of one process that downloads one file; others wait, and then find the file.
pub(super) struct FetchLock {
    _file: Option<File>,
}

impl FetchLock {
    /// Waits for the lock file `path` (calls `on_wait` if it is taken), then removes what a killed process left of
    /// `dest`.
    ///
    /// The system releases the lock when its process ends for any reason. On a file system without locks the download
    /// continues without: two processes may then download the file, and each renames a complete one.
    pub(super) fn acquire(
        path: &Path,
        dest: &Path,
        on_wait: impl FnOnce(),
    ) -> Result<Self, HubError> {
        let (dir, name) = split(dest)?;
        for made in path.parent().into_iter().chain([dir]) {
            fs::create_dir_all(made).map_err(|e| HubError::io("create", made, e))?;
        }
        let file = File::options().create(true).truncate(false).write(true).open(path);
        let file = file.map_err(|e| HubError::io("create", path, e))?;
        let held = match file.try_lock() {
            Ok(()) => true,
            Err(fs::TryLockError::WouldBlock) => {
                on_wait();
                file.lock().is_ok()
            }
            Err(fs::TryLockError::Error(_)) => false,
        };
        if !held {
            return Ok(FetchLock { _file: None });
        }
        // No other process writes these while the lock is held.
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let found = entry.file_name();
            let found = found.to_string_lossy();
            if found.starts_with(&prefix(name)) && found.ends_with(SUFFIX) {
                remove(&entry.path());
            }
        }
        Ok(FetchLock { _file: Some(file) })
    }
}

/// Directory and name of a path that has both.
fn split(dest: &Path) -> Result<(&Path, &str), HubError> {
    match (dest.parent(), dest.file_name().and_then(|n| n.to_str())) {
        (Some(dir), Some(name)) => Ok((dir, name)),
        _ => Err(HubError::io("write to", dest, io::ErrorKind::InvalidFilename.into())),
    }
}

/// The sha256 of a whole file, 64 lower-case hex digits. About 0.1 s for 100 MB where the CPU has SHA instructions.
pub(super) fn sha256_of(path: &Path) -> Result<String, HubError> {
    let mut file = File::open(path).map_err(|e| HubError::io("open", path, e))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(n) => hasher.update(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(HubError::io("read", path, e)),
        }
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sha256 of `abc`, the first example in FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn left_in(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn expected(size: u64, sha256: &str) -> Expected {
        Expected { size: Some(size), sha256: Some(sha256.to_string()) }
    }

    /// A file on a disk with room for some bytes.
    struct SmallDisk {
        file: File,
        room: usize,
        full_on_sync: bool,
    }

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let n = self.file.write(&bytes[..bytes.len().min(self.room)])?;
            self.room -= n;
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.file.flush()
        }
    }

    impl Sink for SmallDisk {
        fn rewind_to_start(&mut self) -> io::Result<()> {
            self.file.rewind_to_start()
        }

        fn sync(&mut self) -> io::Result<()> {
            if self.full_on_sync {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                self.file.sync()
            }
        }
    }

    #[test]
    fn a_finished_file_is_whole_and_alone() {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("sub/file");
        let mut partial = Partial::create(&dest, expected(3, ABC), "X").unwrap();
        partial.write(b"nonsense").unwrap();
        partial.restart().unwrap();
        partial.write(b"ab").unwrap();
        assert!(!dest.exists(), "nothing has its final name before it is whole");
        partial.write(b"c").unwrap();
        partial.commit("test").unwrap();
        assert_eq!(fs::read(&dest).unwrap(), b"abc");
        assert_eq!(sha256_of(&dest).unwrap(), ABC);
        assert_eq!(left_in(&dir.path().join("sub")), ["file"]);
    }

    #[test]
    fn other_bytes_are_refused_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut partial = Partial::create(&dir.path().join("file"), expected(3, ABC), "X").unwrap();
        partial.write(b"abd").unwrap();
        let error = partial.commit("the test").unwrap_err();
        assert!(
            matches!(&error, HubError::WrongHash { expected, got, .. } if expected == ABC && got != ABC),
            "{error}"
        );
        let mut partial = Partial::create(&dir.path().join("file"), expected(3, ABC), "X").unwrap();
        partial.write(b"ab").unwrap();
        let error = partial.commit("the test").unwrap_err();
        assert!(matches!(error, HubError::WrongSize { expected: 3, got: 2, .. }), "{error}");
        assert!(left_in(dir.path()).is_empty());
    }

    #[test]
    fn a_full_disk_is_named_with_the_room_it_needs_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for (room, full_on_sync) in [(2, false), (100, true)] {
            let open =
                |path: &Path| Ok(SmallDisk { file: File::create_new(path)?, room, full_on_sync });
            let mut partial = Partial::create_with(
                &dir.path().join("file"),
                expected(3, ABC),
                "STRATA_CACHE",
                open,
            )
            .unwrap();
            let error = partial.write(b"abc").and_then(|()| partial.commit("test")).unwrap_err();
            let HubError::DiskFull { dir: named, needed: 3, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(named, dir.path());
            let text = error.to_string();
            assert!(text.contains("3 bytes") && text.contains("STRATA_CACHE"), "{text}");
            assert!(left_in(dir.path()).is_empty());
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_error_of_a_full_disk_is_recognised() {
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let error = full.write_all(b"x").unwrap_err();
        let error = write_error("write", Path::new("f"), Path::new("d"), 1, "X", error);
        assert!(matches!(error, HubError::DiskFull { .. }), "{error}");
    }

    #[test]
    fn the_next_fetch_removes_what_a_killed_one_left_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("file");
        for name in [".file.123-0.part", ".file2.123-0.part", "file.part"] {
            fs::write(dir.path().join(name), "half").unwrap();
        }
        fs::create_dir(dir.path().join(".file.99-1.part")).unwrap();
        let lock = FetchLock::acquire(&dir.path().join(".file.lock"), &dest, || {}).unwrap();
        drop(lock);
        let mut left = left_in(dir.path());
        left.sort();
        assert_eq!(left, [".file.lock", ".file2.123-0.part", "file.part"]);
    }
}
