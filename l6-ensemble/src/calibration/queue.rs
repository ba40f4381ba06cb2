//! The queue between requests and the writer of the stream.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::{CalibrationConfig, CalibrationRecord};

/// Lines that wait for the writer. Threads share it by reference.
///
/// A push takes a lock for as long as it takes to copy a line, and never waits for a file. If the queue is full, the
/// new record is dropped: the stream is a sample anyway, and a request is not delayed for it.
#[derive(Debug)]
pub struct CalibrationQueue {
    store_prompts: bool,
    max_bytes: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    lines: Vec<u8>,
    counts: QueueCounts,
}

/// Counts of a queue since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueCounts {
    /// Number of records that were accepted.
    pub accepted: u64,
    /// Number of records that were dropped because the queue was full.
    pub dropped: u64,
    /// Number of bytes that wait.
    pub waiting_bytes: usize,
}

impl CalibrationQueue {
    /// Creates an empty queue.
    pub fn new(config: &CalibrationConfig) -> Self {
        Self {
            store_prompts: config.store_prompts,
            max_bytes: config.max_queue_bytes,
            inner: Mutex::default(),
        }
    }

    /// Appends a record. Returns false, and counts, if the queue has no room for it. The prompt is removed unless the
    /// configuration says to store prompts.
    pub fn push(&self, mut record: CalibrationRecord) -> bool {
        if !self.store_prompts {
            record.prompt = None;
        }
        // A score that is NaN becomes null; the reader counts such a line as malformed.
        let line = serde_json::to_vec(&record).unwrap_or_default();
        let mut inner = self.lock();
        let fits = inner.lines.len() + line.len() < self.max_bytes && !line.is_empty();
        if fits {
            inner.lines.extend_from_slice(&line);
            inner.lines.push(b'\n');
            inner.counts.accepted += 1;
        } else {
            inner.counts.dropped += 1;
        }
        fits
    }

    /// Takes the lines that wait, each with its line end.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().lines)
    }

    /// Counts since the start.
    pub fn counts(&self) -> QueueCounts {
        let inner = self.lock();
        QueueCounts { waiting_bytes: inner.lines.len(), ..inner.counts }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
