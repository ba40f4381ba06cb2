//! Slow work on threads of its own: tokenizing long texts, parsing long bodies, compiling guides.
//!
//! The few threads that read and write for every client must not be away for milliseconds, and the engine needs the
//! processors more than any of this. So slow work runs on threads of lower priority, and only a few pieces at once. Long
//! pieces have a seat of their own: a prompt of five kilobytes does not queue behind bodies of megabytes.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::app::App;
use super::error::ApiError;

/// Bytes of input up to which a piece of work is not slow: well below a millisecond.
pub const SHORT: usize = 4 << 10;

/// Bytes of input from which a piece of work is long: a large part of a second.
const LONG: usize = 256 << 10;

/// Pieces of medium length that run at once, and of long ones.
const MEDIUM_SEATS: usize = 2;
const LONG_SEATS: usize = 1;

/// Niceness of a thread that does slow work: about a tenth of the processor time of one that does not, where both want it.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Seats for slow work.
#[derive(Debug)]
pub struct Background {
    medium: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Default for Background {
    fn default() -> Self {
        Self {
            medium: Arc::new(Semaphore::new(MEDIUM_SEATS)),
            long: Arc::new(Semaphore::new(LONG_SEATS)),
        }
    }
}

/// Run slow work over so many bytes of input. It waits for a seat; dropped while it waits, it is never begun.
///
/// # Errors
/// [`ApiError`] if it panicked.
pub async fn run<T: Send + 'static>(
    app: &Arc<App>,
    bytes: usize,
    work: impl FnOnce(&App) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let Background { medium, long } = &app.background;
    let seats = if bytes < LONG { medium } else { long };
    let seat = seats.clone().acquire_owned().await;
    let app = app.clone();
    let done = tokio::task::spawn_blocking(move || {
        // Held until the work is done, also when its client has gone.
        let _seat = seat;
        lower_priority();
        work(&app)
    });
    done.await.map_err(|why| ApiError::internal(format!("slow work failed: {why}")))
}

/// Lower this thread's priority, once. Threads that it starts inherit it.
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
