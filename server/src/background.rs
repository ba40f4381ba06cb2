//! Slow work on threads of its own: tokenizing long texts, parsing long bodies, compiling guides, reading adapters.
//!
//! The few threads that serve all clients must not block for milliseconds, and the engine needs the processors first.
//! So slow work runs on threads of lower priority, and only a few tasks at once.
//! Long tasks have a seat of their own: a prompt of five kilobytes does not queue behind bodies of megabytes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::error::{ApiError, unavailable};

/// Maximum number of bytes of input that are processed without the background: well below a millisecond.
pub const MAX_SHORT_BYTES: usize = 4 << 10;

/// Minimum number of bytes of input of a long task: a large part of a second.
const MIN_LONG_BYTES: usize = 256 << 10;

/// Maximum number of concurrent tasks, medium and long.
const MEDIUM_SEATS: usize = 2;
const LONG_SEATS: usize = 1;

/// Maximum number of adapters that are read at once.
const LOAD_SEATS: usize = 2;

/// Maximum number of reads that have lost their seat because they took too long. Each still has a thread: a read from a
/// disk or a network that does not answer cannot be ended.
const MAX_ABANDONED_LOADS: usize = 4;

/// Time between the end of the time that a read has, and when it counts as stuck: one that was just in time counts.
const LOAD_MARGIN: Duration = Duration::from_secs(1);

/// Niceness of a background thread: about a tenth of the processor time of another thread when both compete.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Runs slow work on threads that it starts. Clones share the seats.
#[derive(Clone, Debug)]
pub struct Background {
    medium: Arc<Semaphore>,
    long: Arc<Semaphore>,
    loads: Arc<Semaphore>,
    abandoned: Arc<Semaphore>,
}

/// The right to read files, until this is dropped.
#[derive(Debug)]
pub struct LoadSeat(OwnedSemaphorePermit);

/// Why a read has no result.
#[derive(Debug)]
pub enum LoadError {
    /// It takes too long. It goes on, and what it returns is dropped.
    TimedOut,
    /// The system has no memory for a thread.
    NoThread(std::io::Error),
    /// It panicked, which has been reported on stderr.
    Panicked,
}

impl Default for Background {
    fn default() -> Self {
        Self {
            medium: Arc::new(Semaphore::new(MEDIUM_SEATS)),
            long: Arc::new(Semaphore::new(LONG_SEATS)),
            loads: Arc::new(Semaphore::new(LOAD_SEATS)),
            abandoned: Arc::new(Semaphore::new(MAX_ABANDONED_LOADS)),
        }
    }
}

impl Background {
    /// Runs slow work over `bytes` of input, once there is a seat. Dropped while it waits, the work is never begun.
    ///
    /// # Errors
    /// [`ApiError`] if the work panicked, or if the system has no thread for it.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let seats = if bytes < MIN_LONG_BYTES { &self.medium } else { &self.long };
        Self::seated(seats, work).await
    }

    /// A seat for a read, if one is free.
    pub fn try_load_seat(&self) -> Option<LoadSeat> {
        self.loads.clone().try_acquire_owned().ok().map(LoadSeat)
    }

    /// Reads files, for which it has at most the time `within`. Prompts and bodies do not queue behind it. A read that
    /// takes longer loses its seat to the next one, up to a few of them.
    ///
    /// # Errors
    /// [`LoadError`].
    pub async fn load<T: Send + 'static>(
        &self,
        seat: LoadSeat,
        within: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LoadError> {
        let seat = Arc::new(Mutex::new(seat.0));
        let done = on_a_thread(seat.clone(), work).map_err(LoadError::NoThread)?;
        match timeout(within + LOAD_MARGIN, done).await {
            Ok(done) => done.ok().and_then(Result::ok).ok_or(LoadError::Panicked),
            Err(_) => {
                if let Ok(other) = self.abandoned.clone().try_acquire_owned() {
                    // The seat of the read is another one until the read ends.
                    *seat.lock().unwrap_or_else(PoisonError::into_inner) = other;
                }
                Err(LoadError::TimedOut)
            }
        }
    }

    /// Runs slow work once one of these seats is free. Dropped while it waits, the work is never begun.
    ///
    /// # Errors
    /// As [`Background::run`].
    pub async fn seated<T: Send + 'static>(
        seats: &Arc<Semaphore>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let seat = seats.clone().acquire_owned().await;
        // The thread holds the seat until the work is done, also if its client has disconnected.
        let done = on_a_thread(seat, work).map_err(|why| no_thread(&why))?;
        let panicked = || ApiError::internal("slow work panicked");
        done.await.ok().and_then(Result::ok).ok_or_else(panicked)
    }
}

/// Starts a thread for some work. `seat` is given back before the result is there, also if the work panics. The runtime
/// has threads for this too, but panics if the system has none left.
///
/// # Errors
/// The system has no more threads, or no memory for one.
fn on_a_thread<S: Send + 'static, T: Send + 'static>(
    seat: S,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<oneshot::Receiver<std::thread::Result<T>>> {
    let (end, done) = oneshot::channel();
    let body = move || {
        lower_priority();
        let done = catch_unwind(AssertUnwindSafe(work));
        drop(seat);
        let _ = end.send(done);
    };
    std::thread::Builder::new().name("strata-slow".into()).spawn(body)?;
    Ok(done)
}

/// Error of a request for whose slow work the system has no thread.
fn no_thread(why: &std::io::Error) -> ApiError {
    let message = format!("The system has no thread for this request ({why}). Try again later.");
    unavailable(message, "out_of_memory")
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_gives_its_seat_back() {
        let background = Background::default();
        for _ in 0..2 * LOAD_SEATS {
            let seat = background.try_load_seat().expect("a seat is free when the result is there");
            let long = Duration::from_secs(60);
            let read = background.load(seat, long, || panic!("a test"));
            assert!(matches!(read.await, Err::<(), _>(LoadError::Panicked)));
            let run: Result<(), _> = background.run(1, || panic!("a test")).await;
            assert_eq!(run.expect_err("it panicked").status.as_u16(), 500);
            assert!(matches!(background.run(1, || 7).await, Ok(7)));
        }
    }

    #[tokio::test]
    async fn reads_that_do_not_end_lose_their_seats_to_others_up_to_a_few_of_them() {
        let background = Background::default();
        let (end, ended) = channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let moment = Duration::from_millis(20);
        let stuck = || {
            let (ended, seat) = (ended.clone(), background.try_load_seat().expect("a seat"));
            // Until the other end is dropped.
            background.load(seat, moment, move || drop(ended.lock().map(|ended| ended.recv())))
        };
        for _ in 0..MAX_ABANDONED_LOADS {
            assert!(matches!(stuck().await, Err(LoadError::TimedOut)));
        }
        let long = Duration::from_secs(60);
        let seat = background.try_load_seat().expect("a seat is free");
        assert!(matches!(background.load(seat, long, || 7).await, Ok(7)));
        for _ in 0..LOAD_SEATS {
            assert!(matches!(stuck().await, Err(LoadError::TimedOut)));
        }
        assert!(background.try_load_seat().is_none());
        drop(end);
        let again = background.loads.acquire_many(LOAD_SEATS as u32).await;
        assert!(again.is_ok(), "their seats are free again");
    }
}
