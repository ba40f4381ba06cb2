//! The queue between the engines of an ensemble and the file that they share.
//!
//! An engine holds the lock for as long as it takes to copy a line, and never waits for the file: a thread of its own
//! writes. If the file cannot keep up, new lines are dropped and counted.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of bytes from which on the writer is woken.
const WAKE_BYTES: usize = 256 * 1024;

/// Maximum time that lines wait for the writer.
const INTERVAL: Duration = Duration::from_secs(1);

/// Lines that wait for the writer. Threads share it by reference.
#[derive(Debug)]
pub(super) struct LineQueue {
    max_bytes: usize,
    inner: Mutex<Inner>,
    wakes: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    bytes: Vec<u8>,
    dropped: u64,
    closed: bool,
}

impl LineQueue {
    /// Creates an empty queue for so many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, inner: Mutex::default(), wakes: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a line, given in parts. Drops and counts it if the queue has no room, or is closed.
    pub fn push(&self, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut inner = self.lock();
        if inner.closed || inner.bytes.len() + length > self.max_bytes {
            inner.dropped += 1;
            return;
        }
        let before = inner.bytes.len();
        parts.iter().for_each(|part| inner.bytes.extend_from_slice(part));
        if before < WAKE_BYTES && inner.bytes.len() >= WAKE_BYTES {
            self.wakes.notify_one();
        }
    }

    /// Accepts no more lines. Returns how many were dropped before.
    pub fn close(&self) -> u64 {
        let mut inner = self.lock();
        inner.closed = true;
        self.wakes.notify_one();
        inner.dropped
    }

    /// Waits until there is much to write, for a while, or until the queue is closed. Moves the lines to `batch`, which
    /// is empty. Returns whether more can come.
    fn take(&self, batch: &mut Vec<u8>) -> bool {
        let inner = self.lock();
        let waits = |inner: &mut Inner| !inner.closed && inner.bytes.len() < WAKE_BYTES;
        let waited = self.wakes.wait_timeout_while(inner, INTERVAL, waits);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut inner.bytes, batch);
        !inner.closed
    }

    /// Writes the lines until the queue is closed. After an error it is closed, too.
    ///
    /// # Errors
    /// The first error of `file`.
    pub fn write_to(&self, mut file: impl Write) -> io::Result<()> {
        let mut batch = Vec::new();
        loop {
            let more = self.take(&mut batch);
            if let Err(why) = file.write_all(&batch).and_then(|()| file.flush()) {
                self.close();
                return Err(why);
            }
            batch.clear();
            if !more {
                return Ok(());
            }
        }
    }
}

/// The queue, as one engine has it: its lines end with the engine's lane and replica.
#[derive(Clone, Debug)]
pub(super) struct EngineQueue {
    queue: Arc<LineQueue>,
    /// Text that takes the place of the closing brace.
    end: Vec<u8>,
}

impl EngineQueue {
    /// The queue for the lines of a replica of `lane`.
    pub fn new(queue: Arc<LineQueue>, lane: &str, replica: u32) -> Self {
        let end = serde_json::json!({"lane": lane, "replica": replica}).to_string();
        Self { queue, end: format!(",{}\n", &end[1..]).into_bytes() }
    }

    /// Appends a line, which is a JSON object with at least one field and a line end.
    pub fn push(&self, line: &[u8]) {
        let object = line.strip_suffix(b"}\n").unwrap_or(line);
        self.queue.push(&[object, &self.end]);
    }
}
