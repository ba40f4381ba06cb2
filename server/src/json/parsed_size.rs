//! Bounds the memory of parsed bodies, estimated from their bytes as they arrive.
//!
//! A JSON value takes 72 bytes, however short its text: `[[],[],...` grows 24-fold, `{"a":1}` more. So values are
//! counted before anything is parsed. A body with too many values is rejected, and all bodies that are parsed at the
//! same time share a budget: a body waits until its estimated size is available.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::background::lower_priority;
use crate::error::ApiError;
use crate::memory;

/// Maximum number of strings, lists and objects in a body.
const MAX_VALUES: usize = 200_000;

/// Maximum number of bytes of a string beside its text, and of a list or an object, which has capacity for some values.
const BYTES_PER_STRING: usize = 100;
const BYTES_PER_CONTAINER: usize = 400;

/// Number of bytes of a number: a token id, in a vector that grows.
const BYTES_PER_NUMBER: usize = 8;

/// Maximum memory of all parsed bodies together, in units of [`UNIT_BYTES`].
const MAX_UNITS: u32 = 64 << 10;
const UNIT_BYTES: usize = 1 << 10;

/// Minimum size of a body that counts, in bytes: a smaller one does not wait for others.
const MIN_COUNTED_BYTES: usize = 16 << 10;

/// Minimum size of a body, in units, after which freed memory is returned to the system.
const MIN_TRIMMED_UNITS: usize = 4 << 10;

/// Counts the values of a body, of which the bytes arrive in any number of chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValueCounts {
    strings: usize,
    containers: usize,
    commas: usize,
    in_string: bool,
    escaped: bool,
}

impl ValueCounts {
    /// Counts the values in the next bytes.
    pub fn read(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => {
                    self.in_string = true;
                    self.strings += 1;
                }
                b'{' | b'[' => self.containers += 1,
                b',' => self.commas += 1,
                _ => {}
            }
        }
    }

    /// Returns whether the number of values so far is within the limit.
    pub fn is_bounded(&self) -> bool {
        self.strings + self.containers <= MAX_VALUES
    }

    /// Checks the number of values.
    ///
    /// # Errors
    /// [`ApiError`] if there are too many.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.is_bounded() {
            return Ok(());
        }
        let message = format!(
            "The request body has {} strings, lists and objects, but at most {MAX_VALUES} are allowed.",
            self.strings + self.containers
        );
        Err(ApiError::invalid(message).with_code("body_too_complex"))
    }

    /// Maximum memory of the parsed body, in bytes. `bytes` is the length of its text.
    pub fn parsed_bytes(&self, bytes: usize) -> usize {
        bytes
            + self.strings * BYTES_PER_STRING
            + self.containers * BYTES_PER_CONTAINER
            + self.commas * BYTES_PER_NUMBER
    }
}

/// Memory budget of parsed bodies. Clones share it.
#[derive(Clone, Debug)]
pub struct ParsedMemory(Arc<Semaphore>);

/// Share of the budget that one body takes, until it is dropped.
#[derive(Debug, Default)]
pub struct MemoryPermit(Option<OwnedSemaphorePermit>);

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        if self.0.take().is_some_and(|permit| permit.num_permits() >= MIN_TRIMMED_UNITS) {
            // Trimming visits all heaps: too slow for a thread that serves requests.
            std::thread::spawn(|| {
                lower_priority();
                memory::trim();
            });
        }
    }
}

impl Default for ParsedMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_UNITS as usize)))
    }
}

impl ParsedMemory {
    /// Waits until the budget has room for a body of this parsed size. A body that is larger than the whole budget
    /// waits for all of it.
    pub async fn acquire(&self, bytes: usize) -> MemoryPermit {
        if bytes < MIN_COUNTED_BYTES {
            return MemoryPermit(None);
        }
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(MAX_UNITS);
        // The semaphore is never closed.
        MemoryPermit(self.0.clone().acquire_many_owned(units).await.ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str, chunk: usize) -> (usize, usize) {
        let mut counts = ValueCounts::default();
        text.as_bytes().chunks(chunk).for_each(|bytes| counts.read(bytes));
        (counts.strings + counts.containers, counts.commas)
    }

    #[test]
    fn the_counts_do_not_depend_on_the_chunks() {
        let text = r#"{"a": [1, 2, "x,[\"{\\", {}], "b\\": "\\\"", "c": null}"#;
        for chunk in 1..text.len() {
            assert_eq!(counts(text, chunk), (8, 5), "{chunk}");
        }
    }

    #[test]
    fn large_bodies_wait_for_each_other_and_small_ones_do_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let parsed = ParsedMemory::default();
            let all = parsed.acquire(usize::MAX).await;
            assert_eq!(parsed.0.available_permits(), 0);
            // A small body does not wait.
            drop(parsed.acquire(MIN_COUNTED_BYTES - 1).await);
            let mut waits = Box::pin(parsed.acquire(MIN_COUNTED_BYTES));
            let polled = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(waits.as_mut().poll(cx).is_pending())
            });
            assert!(polled.await, "a large body waits while there is no room");
            drop(all);
            drop(waits.await);
            assert_eq!(parsed.0.available_permits(), MAX_UNITS as usize);
        });
    }
}
