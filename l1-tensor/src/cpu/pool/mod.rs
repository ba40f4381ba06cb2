//! The thread pool: threads that share the work of one op, hundreds of times a token.
//!
//! A decode step of a small model is some two hundred matmuls of about 20 us each, so the cost of a
//! pool *per op* counts. A general work-stealing pool, called once per op, needed 5.7 ms for a step
//! that a prototype of this pool did in 3.2 ms (measured on a 2-core Zen 5 machine, the matmuls and
//! elementwise ops of 30 layers). Servers are shared, too: with one busy process beside it on the
//! same machine the median and the 99th percentile were
//!
//! | threads of an op                                        | median | p99    |
//! |---------------------------------------------------------|--------|--------|
//! | rayon, one call per op                                  | 7.7 ms |  23 ms |
//! | fixed halves, both threads spin at a barrier            | 7.5 ms | 164 ms |
//! | tickets, spin 20 us, then sleep                         | 7.4 ms |  11 ms |
//! | the same, CPUs chosen and stragglers pulled (this pool) | 4.7 ms | 7.4 ms |
//!
//! The parts, one file each:
//!
//! * `tickets`: a run is cut into chunks, and each thread owns a range of them. A thread that has
//!   finished its range takes from the far end of another's. The caller waits for *claimed* chunks
//!   only, so a thread that starts late, or never, delays no run.
//! * `crew`: the state that caller and helpers share. Threads wait by spinning for 20 us, then
//!   sleeping, so that an idle pool does not use a core.
//! * `placement`, over the system calls of `affinity`: helpers stay off the caller's CPU. A helper
//!   that lost its CPU to another process is moved onto the caller's, which would be idle.
//!
//! None of this can change a result. Which thread runs a chunk, and when, is not determined; the
//! result of a chunk must not depend on it, and in this crate it does not (see *batch invariance*
//! in the crate's documentation).

mod affinity;
mod crew;
mod placement;
mod tickets;

use std::cell::Cell;
use std::panic::{RefUnwindSafe, UnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crew::Crew;

/// Maximum number of threads of a pool, whatever number is requested.
const MAX_THREADS: usize = 1024;

thread_local! {
    /// The pool, and this thread's worker number, while the thread is inside a body.
    static INSIDE: Cell<Option<(PoolId, usize)>> = const { Cell::new(None) };
}

/// Identifies a pool by the address of its crew.
type PoolId = usize;

/// Threads that share the work of one op.
///
/// ```
/// use l1_tensor::cpu::ThreadPool;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let pool = ThreadPool::new(2);
/// let sum = AtomicUsize::new(0);
/// pool.run(100, &|chunk, _worker| {
///     sum.fetch_add(chunk, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 4950);
/// ```
pub struct ThreadPool {
    crew: Arc<Crew>,
    helpers: Vec<JoinHandle<()>>,
    /// Locked for the length of a run; counts the chunks of all runs.
    turn: Mutex<u64>,
}

impl ThreadPool {
    /// Creates a pool of `threads` workers (0 means 1). The thread that calls [`ThreadPool::run`]
    /// is one of them. The others are started here and sleep until a run begins.
    ///
    /// If the system starts fewer threads, the pool has fewer: see [`ThreadPool::threads`].
    ///
    /// The helpers run where the calling thread may run. Its own CPU affinity is never changed,
    /// neither here nor in a run.
    pub fn new(threads: usize) -> Self {
        let threads = threads.clamp(1, MAX_THREADS);
        let cpus = thread::available_parallelism().map_or(1, |n| n.get());
        let crew = Arc::new(Crew::new(threads, cpus));
        let id = Arc::as_ptr(&crew) as PoolId;
        let start = |worker: usize| {
            let crew = Arc::clone(&crew);
            thread::Builder::new().name(format!("strata-{worker}")).spawn(move || {
                INSIDE.set(Some((id, worker)));
                crew.help(worker);
            })
        };
        // Workers that did not start own tickets like any other; the other threads take them.
        let helpers = (1..threads).map_while(|worker| start(worker).ok()).collect();
        Self { crew, helpers, turn: Mutex::new(0) }
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        1 + self.helpers.len()
    }

    /// Runs `body(chunk, worker)` once for every chunk in `0..chunks`, on all threads, and returns
    /// when all are done. `worker < threads()` identifies the thread, for per-thread scratch:
    /// within a run no two threads have the same number. The caller is worker 0.
    ///
    /// * One chunk, or one thread: the caller runs all chunks, in ascending order.
    /// * Called from several threads at once: the runs follow each other.
    /// * Called from within a body: that thread runs all chunks by itself, under the number that it
    ///   already has (0 inside another pool's body). So nesting cannot deadlock.
    ///
    /// Allocates nothing.
    ///
    /// # Panics
    /// If `body` panics, chunks that have not begun are dropped, those that have are waited for,
    /// and the first panic continues in the caller. The pool can be used again.
    pub fn run(&self, chunks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        let by_itself = |worker| (0..chunks).for_each(|chunk| body(chunk, worker));
        let id = Arc::as_ptr(&self.crew) as PoolId;
        match INSIDE.get() {
            Some((pool, worker)) if pool == id => return by_itself(worker),
            Some(_) => return by_itself(0),
            None if chunks <= 1 || self.helpers.is_empty() => return by_itself(0),
            None => {}
        }

        let mut handed_out = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        INSIDE.set(Some((id, 0)));
        let mut panic = None;
        let mut base = 0;
        // Tickets are 32 bits wide; the loop runs once unless there are four billion chunks.
        while base < chunks && panic.is_none() {
            let tickets = u32::try_from(chunks - base).unwrap_or(u32::MAX);
            let wake = |helper: usize| self.wake(helper);
            // SAFETY: `turn` is locked, and `handed_out` is what it guards.
            panic = unsafe { self.crew.run(&mut handed_out, base, tickets, body, wake) };
            base += tickets as usize;
        }
        INSIDE.set(None);
        drop(handed_out);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Runs a body that can fail: as [`run`](Self::run), until the first error. Chunks that have not begun by then are
    /// left out.
    ///
    /// # Errors
    /// The error that was returned first.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    #[allow(clippy::type_complexity)] // an alias would hide what the caller has to write
    pub fn try_run<E: Send>(
        &self,
        chunks: usize,
        body: &(dyn Fn(usize, usize) -> Result<(), E> + Sync),
    ) -> Result<(), E> {
        let failed = AtomicBool::new(false);
        let failure: Mutex<Option<E>> = Mutex::new(None);
        self.run(chunks, &|chunk, worker| {
            if failed.load(Ordering::Relaxed) {
                return;
            }
            if let Err(e) = body(chunk, worker) {
                failed.store(true, Ordering::Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Time for which callers have waited for chunks of other threads, while waits were [timed](Self::time_waits).
    pub fn waited(&self) -> Duration {
        self.crew.waited()
    }

    /// Whether to add up the time for which callers wait. Off at first: it costs two readings of the clock a run.
    pub fn time_waits(&self, on: bool) {
        self.crew.time_waits(on);
    }

    fn wake(&self, worker: usize) {
        if let Some(helper) = self.helpers.get(worker - 1) {
            helper.thread().unpark();
        }
    }
}

impl Drop for ThreadPool {
    /// Ends the helpers and waits for them.
    fn drop(&mut self) {
        self.crew.close(|worker| self.wake(worker));
        for helper in self.helpers.drain(..) {
            // A helper catches every panic of a body, so this result is always `Ok`.
            let _ = helper.join();
        }
    }
}

// A panic leaves the guarded state consistent: `run` restores it before it unwinds.
impl UnwindSafe for ThreadPool {}
impl RefUnwindSafe for ThreadPool {}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish()
    }
}
