//! Slow work on threads of its own: tokenizing long texts, parsing long bodies, compiling guides, reading adapters.
//!
//! The few threads that serve all clients must not block for milliseconds, and the engine needs the processors first.
//! So slow work runs on threads of lower priority, and only a few tasks at once.
//! Long tasks have a seat of their own: a prompt of five kilobytes does not queue behind bodies of megabytes.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::error::ApiError;

/// Maximum number of bytes of input that are processed without the background: well below a millisecond.
pub const MAX_SHORT_BYTES: usize = 4 << 10;

/// Minimum number of bytes of input of a long task: a large part of a second.
const MIN_LONG_BYTES: usize = 256 << 10;

/// Maximum number of concurrent tasks, medium and long.
const MEDIUM_SEATS: usize = 2;
const LONG_SEATS: usize = 1;

/// Maximum number of files that are read at once.
const LOAD_SEATS: usize = 2;

/// Niceness of a background thread: about a tenth of the processor time of another thread when both compete.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Runs slow work on blocking threads. Clones share the seats.
#[derive(Clone, Debug)]
pub struct Background {
    medium: Arc<Semaphore>,
    long: Arc<Semaphore>,
    loads: Arc<Semaphore>,
}

impl Default for Background {
    fn default() -> Self {
        Self {
            medium: Arc::new(Semaphore::new(MEDIUM_SEATS)),
            long: Arc::new(Semaphore::new(LONG_SEATS)),
            loads: Arc::new(Semaphore::new(LOAD_SEATS)),
        }
    }
}

impl Background {
    /// Runs slow work over `bytes` of input, once there is a seat. Dropped while it waits, the work is never begun.
    ///
    /// # Errors
    /// [`ApiError`] if the work panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let seats = if bytes < MIN_LONG_BYTES { &self.medium } else { &self.long };
        Self::seated(seats, work).await
    }

    /// Reads files, or waits for what reads them, once there is a seat. Prompts and bodies do not queue behind it.
    ///
    /// # Errors
    /// [`ApiError`] if the work panicked.
    pub async fn load<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        Self::seated(&self.loads, work).await
    }

    async fn seated<T: Send + 'static>(
        seats: &Arc<Semaphore>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let seat = seats.clone().acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            // Held until the work is done, also if its client has disconnected.
            let _seat = seat;
            lower_priority();
            work()
        });
        done.await.map_err(|why| ApiError::internal(format!("slow work failed: {why}")))
    }
}

/// Lowers this thread's priority, once. Threads that it starts inherit it.
pub(super) fn lower_priority() {
    thread_local! {
        static LOWERED: Cell<bool> = const { Cell::new(false) };
    }
    if LOWERED.replace(true) {
        return;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: no memory is involved. On Linux, `PRIO_PROCESS` and 0 mean the calling thread. Without the right to do so
    // nothing changes.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
    }
}
