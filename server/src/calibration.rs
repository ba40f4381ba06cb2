//! The calibration stream of a server: records of routed requests, written by a thread of its own.
//!
//! A request appends its record to a bounded queue, or drops it; the thread moves what waits to the files. So a slow or
//! full disk delays no request. The format and the files are those of [`l6_ensemble::calibration`].
//!
//! Digests of inputs are salted. The salt is kept in the directory, as `salt`, which its owner alone may read: digests
//! of one directory are comparable over restarts, and those of two directories are not. Who has the salt can test
//! guesses about prompts, as who has the directory of a server with `--store-prompts` can read them.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use l4_sampler::philox::fresh_seed;
use l6_ensemble::calibration::{
    CalibrationConfig, CalibrationQueue, CalibrationRecord, FileCounts, FsDirectory, QueueCounts,
    RotatingFiles,
};

use super::LOG;

/// File of the salt.
const SALT_FILE: &str = "salt";

/// Number of hexadecimal digits of a salt: of five random numbers of 53 bits.
const SALT_DIGITS: usize = 80;

/// Maximum time that records wait for the writer.
const INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time to write the last records.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A calibration stream that is written to a directory.
#[derive(Debug)]
pub struct CalibrationStream {
    shared: Arc<Shared>,
    store_prompts: bool,
    salt: String,
    writer: Thread,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    queue: CalibrationQueue,
    counts: Mutex<FileCounts>,
    closing: AtomicBool,
}

impl CalibrationStream {
    /// Opens the stream of a directory, which is created if it does not exist, and starts the writer.
    ///
    /// # Errors
    /// A directory that cannot be created, read or written.
    pub fn open(directory: &Path, config: &CalibrationConfig) -> io::Result<Self> {
        let files = RotatingFiles::open(FsDirectory::new(directory)?, config)?;
        let salt = salt_of(directory)?;
        let shared = Arc::new(Shared {
            queue: CalibrationQueue::new(config),
            counts: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let writes = shared.clone();
        let thread = std::thread::Builder::new().name("strata-calibration".into());
        let thread = thread.spawn(move || write_all(files, &writes))?;
        let (writer, thread) = (thread.thread().clone(), Mutex::new(Some(thread)));
        Ok(Self { shared, store_prompts: config.store_prompts, salt, writer, thread })
    }

    /// Whether records have prompts.
    pub fn stores_prompts(&self) -> bool {
        self.store_prompts
    }

    /// Salt of the digests of inputs.
    pub fn salt(&self) -> &str {
        &self.salt
    }

    /// Appends a record, or drops it if too many wait.
    pub fn push(&self, record: CalibrationRecord) {
        if self.shared.queue.push(record) {
            self.writer.unpark();
        }
    }

    /// Counts of the queue.
    pub fn queue_counts(&self) -> QueueCounts {
        self.shared.queue.counts()
    }

    /// Counts of the files.
    pub fn file_counts(&self) -> FileCounts {
        *self.shared.counts()
    }

    /// Writes what waits, and ends the writer. A disk that takes nothing is not waited for.
    pub fn close(&self) {
        self.shared.closing.store(true, Ordering::Release);
        self.writer.unpark();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let began = Instant::now();
        while thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && began.elapsed() < CLOSE_TIMEOUT
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for CalibrationStream {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn counts(&self) -> MutexGuard<'_, FileCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_all(mut files: RotatingFiles<FsDirectory>, shared: &Shared) {
    let mut failing = false;
    loop {
        // Read before the queue is taken: what was pushed before the end is written.
        let closing = shared.closing.load(Ordering::Acquire);
        let lines = shared.queue.take();
        if !lines.is_empty() {
            let written = files.write(&lines);
            *shared.counts() = files.counts();
            // Once for a disk that fails for hours; the counters go on.
            if let Err(why) = &written
                && !failing
            {
                tracing::warn!(target: LOG, "{why}");
            }
            failing = written.is_err();
        } else if closing {
            return;
        } else {
            std::thread::park_timeout(INTERVAL);
        }
    }
}

/// The salt of a directory; a fresh one if it has none.
fn salt_of(directory: &Path) -> io::Result<String> {
    let path = directory.join(SALT_FILE);
    // What a full disk left of a first start.
    if std::fs::metadata(&path).is_ok_and(|own| own.len() == 0) {
        std::fs::remove_file(&path)?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(&path) {
        Ok(mut file) => {
            let salt = fresh_salt();
            let written = file.write_all(salt.as_bytes()).and_then(|()| file.sync_all());
            if written.is_err() {
                let _ = std::fs::remove_file(&path);
            }
            written.map(|()| salt)
        }
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {
            let mut salt = String::new();
            std::fs::File::open(&path)?.take(SALT_DIGITS as u64 + 1).read_to_string(&mut salt)?;
            let valid = salt.len() == SALT_DIGITS && salt.bytes().all(|c| c.is_ascii_hexdigit());
            valid.then_some(salt).ok_or_else(|| {
                let what = format!(
                    "{} is no salt of {SALT_DIGITS} hexadecimal digits: delete it, and digests begin anew",
                    path.display()
                );
                io::Error::new(io::ErrorKind::InvalidData, what)
            })
        }
        Err(why) => Err(why),
    }
}

/// A random salt.
pub fn fresh_salt() -> String {
    (0..SALT_DIGITS / 16).map(|_| format!("{:016x}", fresh_seed())).collect()
}

#[cfg(test)]
mod tests {
    use l6_ensemble::calibration::InputDigest;

    use super::*;

    fn record(time: f64) -> CalibrationRecord {
        let digest = InputDigest::new(b"salt", ["x"]);
        let prompt = Some("secret".to_owned());
        CalibrationRecord { prompt, ..CalibrationRecord::new(time, digest, "review", "one", 0.5) }
    }

    fn written(directory: &Path) -> String {
        std::fs::read_to_string(directory.join("calibration-00000001.jsonl")).unwrap_or_default()
    }

    #[test]
    fn every_record_is_written_when_the_stream_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let config = CalibrationConfig::default();
        let stream = CalibrationStream::open(directory.path(), &config).unwrap();
        (0..100).for_each(|at| stream.push(record(f64::from(at))));
        stream.close();
        assert_eq!(stream.file_counts().written, 100);
        let text = written(directory.path());
        assert_eq!(text.lines().count(), 100);
        assert!(!text.contains("secret"), "prompts are stored only where that is asked for");
        drop(stream);
        let config = CalibrationConfig { store_prompts: true, ..config };
        let again = CalibrationStream::open(directory.path(), &config).unwrap();
        again.push(record(100.0));
        again.close();
        let text = written(directory.path());
        // The second stream begins with an empty line: the last one of the first may have been torn.
        let lines = text.lines().filter(|line| !line.is_empty());
        assert_eq!((lines.count(), text.matches("secret").count()), (101, 1));
    }

    #[test]
    fn a_directory_keeps_its_salt() {
        let directory = tempfile::tempdir().unwrap();
        let open = || CalibrationStream::open(directory.path(), &CalibrationConfig::default());
        let salt = open().unwrap().salt().to_owned();
        assert_eq!(open().unwrap().salt(), salt);
        assert_ne!(fresh_salt(), salt);
        std::fs::write(directory.path().join("salt"), "").unwrap();
        assert_ne!(open().unwrap().salt(), salt, "a full disk left nothing of it");
        std::fs::write(directory.path().join("salt"), "short").unwrap();
        assert!(open().unwrap_err().to_string().contains("salt"));
    }
}
