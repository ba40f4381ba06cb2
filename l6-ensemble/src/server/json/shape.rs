//! How much memory a body takes when it is parsed, seen from its bytes as they arrive.
//!
//! A JSON value takes 72 bytes, however short it is written: `[[],[],...` grows 24-fold, `{"a":1}` more. So values are
//! counted before anything is parsed. A body of too many is refused, and all bodies that are parsed at the same time
//! share a budget: the next one waits until there is room.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::server::background::lower_priority;
use crate::server::error::ApiError;
use crate::server::memory;

/// Maximum number of strings, lists and objects in a body.
const MAX_VALUES: usize = 200_000;

/// Bytes that a string takes at most beside its text, and a list or an object, which has room for some values.
const BYTES_PER_STRING: usize = 100;
const BYTES_PER_CONTAINER: usize = 400;

/// Bytes that a number takes: a token id, in a vector that grows.
const BYTES_PER_NUMBER: usize = 8;

/// Memory of all parsed bodies together, in units of [`UNIT`] bytes.
const BUDGET: u32 = 64 << 10;
const UNIT: usize = 1 << 10;

/// A body that takes less than this does not wait for others.
const SMALL: usize = 16 << 10;

/// Behind a body that took so many units, freed memory is given back.
const LARGE: usize = 4 << 10;

/// What was counted in a body so far. It is read in any pieces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    strings: usize,
    containers: usize,
    commas: usize,
    in_string: bool,
    escaped: bool,
}

impl Shape {
    /// Count what is in the next bytes.
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

    /// Whether there are not too many values so far.
    pub fn is_bounded(&self) -> bool {
        self.strings + self.containers <= MAX_VALUES
    }

    /// # Errors
    /// [`ApiError`] if there are too many values.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.is_bounded() {
            return Ok(());
        }
        let message = format!(
            "The request body has {} strings, lists and objects: send at most {MAX_VALUES}",
            self.strings + self.containers
        );
        Err(ApiError::invalid(message).with_code("body_too_complex"))
    }

    /// Bytes that the parsed body takes, at most, of a body of so many bytes.
    pub fn parsed_bytes(&self, bytes: usize) -> usize {
        bytes
            + self.strings * BYTES_PER_STRING
            + self.containers * BYTES_PER_CONTAINER
            + self.commas * BYTES_PER_NUMBER
    }
}

/// The memory that parsed bodies may take together.
#[derive(Debug)]
pub struct ParsedBodies(Arc<Semaphore>);

/// A body's share of it, until dropped.
#[derive(Debug, Default)]
pub struct Held(Option<OwnedSemaphorePermit>);

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.take().is_some_and(|permit| permit.num_permits() >= LARGE) {
            // A walk over the heaps, which is not for a thread that others wait for.
            std::thread::spawn(|| {
                lower_priority();
                memory::trim();
            });
        }
    }
}

impl Default for ParsedBodies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET as usize)))
    }
}

impl ParsedBodies {
    /// Wait until there is room for a body that takes so many bytes when it is parsed. One that takes more than all there
    /// is waits for all of it.
    pub async fn hold(&self, bytes: usize) -> Held {
        if bytes < SMALL {
            return Held(None);
        }
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(BUDGET);
        // The semaphore is never closed.
        Held(self.0.clone().acquire_many_owned(units).await.ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str, piece: usize) -> (usize, usize) {
        let mut shape = Shape::default();
        text.as_bytes().chunks(piece).for_each(|bytes| shape.read(bytes));
        (shape.strings + shape.containers, shape.commas)
    }

    #[test]
    fn values_are_counted_alike_however_the_bytes_are_cut() {
        let text = r#"{"a": [1, 2, "x,[\"{\\", {}], "b\\": "\\\"", "c": null}"#;
        for piece in 1..text.len() {
            assert_eq!(shape(text, piece), (8, 5), "{piece}");
        }
    }

    #[test]
    fn bodies_wait_for_each_other_only_where_they_are_large() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let parsed = ParsedBodies::default();
            let all = parsed.hold(usize::MAX).await;
            assert_eq!(parsed.0.available_permits(), 0);
            // A small one does not wait.
            drop(parsed.hold(SMALL - 1).await);
            let mut waits = Box::pin(parsed.hold(SMALL));
            let polled = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(waits.as_mut().poll(cx).is_pending())
            });
            assert!(polled.await, "a large body waits while there is no room");
            drop(all);
            drop(waits.await);
            assert_eq!(parsed.0.available_permits(), BUDGET as usize);
        });
    }
}
