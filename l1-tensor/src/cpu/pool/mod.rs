//! The thread pool: threads that share the work of one op, hundreds of times a token.
//!
//! A decode step of a small model is some two hundred matmuls of about 20 us each. What a pool
//! costs *per op* is then no detail. A general work-stealing pool, asked once per op, needed 5.7 ms
//! for a step that a prototype of this one did in 3.2 ms (measured on a 2-core Zen 5 machine, the
//! matmuls and elementwise ops of 30 layers). And servers are shared: with one busy neighbour
//! process on the same machine the median and the 99th percentile were
//!
//! | threads of an op                                        | median | p99    |
//! |---------------------------------------------------------|--------|--------|
//! | rayon, one call per op                                  | 7.7 ms |  23 ms |
//! | fixed halves, both threads spin at a barrier            | 7.5 ms | 164 ms |
//! | tickets, spin 20 us, then sleep                         | 7.4 ms |  11 ms |
//! | the same, CPUs chosen and stragglers pulled (this pool) | 4.7 ms | 7.4 ms |
//!
//! The ideas, one file each:
//!
//! * `tickets`: a run is cut into chunks, and each thread owns a range of them. Who is done early
//!   takes from the far end of another's range. So a thread that is late, or never comes, delays
//!   nobody: the caller waits for *claimed* chunks only.
//! * `crew`: what caller and helpers share. They wait by watching for 20 us, then sleeping: a pool
//!   does not spin a busy core away.
//! * `placement`, over the system calls of `affinity`: helpers stay off the caller's CPU, and a
//!   helper that lost its own to a neighbour is pulled onto the caller's, which would idle.
//!
//! None of this can change a result. Which thread runs a chunk, and when, is chance; what a chunk
//! computes must not depend on it, and in this crate it does not (see *batch invariance* in the
//! crate's documentation).

mod affinity;
mod crew;
mod placement;
mod tickets;

use std::cell::Cell;
use std::panic::{RefUnwindSafe, UnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crew::Crew;

/// More threads than this are never started, whatever is asked for.
const MAX_THREADS: usize = 1024;

thread_local! {
    /// The pool and the worker this thread is being, while it is inside a body.
    static INSIDE: Cell<Option<(PoolId, usize)>> = const { Cell::new(None) };
}

/// A pool is known by the address of its crew.
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
    /// Held for the length of a run; counts the chunks of all runs.
    turn: Mutex<u64>,
}

impl ThreadPool {
    /// A pool of `threads` workers, the thread that calls [`ThreadPool::run`] being one of them
    /// (0 means 1). The others are started here and sleep until there is work.
    ///
    /// If the system gives fewer threads than asked for, the pool has fewer: see
    /// [`ThreadPool::threads`].
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
        // Workers that never came own tickets like any other; the rest will take them.
        let helpers = (1..threads).map_while(|worker| start(worker).ok()).collect();
        Self { crew, helpers, turn: Mutex::new(0) }
    }

    /// How many threads take part, the caller included.
    pub fn threads(&self) -> usize {
        1 + self.helpers.len()
    }

    /// Run `body(chunk, worker)` once for every chunk in `0..chunks`, on all threads, and return
    /// when all are done. `worker < threads()` names the thread, for per-thread scratch: within a
    /// run no two threads have the same number. The caller is worker 0.
    ///
    /// * One chunk, or one thread: the caller does all of it, in ascending order.
    /// * Called from several threads at once: one run after the other.
    /// * Called from within a body: that thread does all of it by itself, under the number it
    ///   already has (0 if it is inside another pool's body). So nesting cannot deadlock.
    ///
    /// Allocates nothing.
    ///
    /// # Panics
    /// If `body` panics, chunks that were not begun are given up, those that were are waited for,
    /// and the first panic goes on in the caller. The pool is as good as new.
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
        // Tickets are 32 bits wide; the loop turns once unless someone has four billion chunks.
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

    fn wake(&self, worker: usize) {
        if let Some(helper) = self.helpers.get(worker - 1) {
            helper.thread().unpark();
        }
    }
}

impl Drop for ThreadPool {
    /// Send the helpers home and wait until they are.
    fn drop(&mut self) {
        self.crew.close(|worker| self.wake(worker));
        for helper in self.helpers.drain(..) {
            // A helper catches every panic of a body, so there is no news in this result.
            let _ = helper.join();
        }
    }
}

// What a panic leaves behind is put in order before it leaves `run`.
impl UnwindSafe for ThreadPool {}
impl RefUnwindSafe for ThreadPool {}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish()
    }
}
