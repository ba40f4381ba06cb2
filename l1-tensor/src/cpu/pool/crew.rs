//! State that the caller and its helpers share, and the work of each. How they wait for each other
//! is in `waiting`.

mod waiting;

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::affinity::thread_id;
use super::placement::Placement;
use super::tickets::Tickets;
use waiting::SPIN;

/// The body of a run: `body(chunk, worker)`.
pub(super) type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Work that a ticket stands for.
#[derive(Clone, Copy)]
struct Job {
    /// Valid for the length of the run, although the type says `'static`.
    body: *const Body<'static>,
    /// The chunk that ticket 0 stands for.
    base: usize,
}

/// One thread's state that other threads read. Written mostly by the thread itself.
#[repr(align(128))] // Each on cache lines of its own.
struct Post {
    /// Number of chunks finished since the pool was made.
    done: AtomicU64,
    /// Whether the thread may be inside a chunk: set before it claims a ticket, cleared just before
    /// it reports the chunk done. A hint.
    active: AtomicBool,
    /// Whether the thread sleeps or is about to, and must be woken.
    asleep: AtomicBool,
    /// The kernel's id of the thread; 0 until it runs.
    thread_id: AtomicI32,
}

/// All shared state. Worker 0 is the thread that calls [`Crew::run`], one at a time.
pub(super) struct Crew {
    tickets: Box<[Tickets]>,
    posts: Box<[Post]>,
    placement: Placement,
    /// Whether threads spin for a while before they sleep. False if there are more threads than
    /// CPUs: a spinning thread would hold the CPU that the other thread needs.
    spin: bool,

    /// Number of runs, by which helpers notice a new one.
    runs: AtomicU64,
    closing: AtomicBool,

    /// Written between runs only: see the SAFETY comments at its two uses.
    job: UnsafeCell<Option<Job>>,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,

    caller_asleep: AtomicBool,
    caller_lock: Mutex<()>,
    caller_bell: Condvar,

    /// Whether `waited` is kept.
    time_waits: AtomicBool,
    /// Nanoseconds for which callers have waited for claimed chunks of others.
    waited: AtomicU64,
}

// SAFETY: `job` is the only field that is not `Sync` by itself. It is written by the one thread
// inside `run` while no ticket is out, and read only by holders of a ticket; see there.
unsafe impl Sync for Crew {}
// SAFETY: the pointer in `job` is to something `Sync`, and is not followed between runs.
unsafe impl Send for Crew {}

impl Crew {
    /// A crew of `threads` threads on `cpus` CPUs, the caller included.
    pub(super) fn new(threads: usize, cpus: usize) -> Self {
        let post = || Post {
            done: AtomicU64::new(0),
            active: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            thread_id: AtomicI32::new(0),
        };
        Self {
            tickets: (0..threads).map(|_| Tickets::none()).collect(),
            posts: (0..threads).map(|_| post()).collect(),
            placement: Placement::new(threads),
            spin: threads <= cpus,
            runs: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            caller_asleep: AtomicBool::new(false),
            caller_lock: Mutex::new(()),
            caller_bell: Condvar::new(),
            time_waits: AtomicBool::new(false),
            waited: AtomicU64::new(0),
        }
    }

    /// Runs `chunks` chunks from the caller's thread; the first of them has number `base`. Returns
    /// the payload of the first panic, if any, when no thread is inside `body` any more.
    ///
    /// `handed_out` is the number of tickets of all runs so far; `wake(helper)` unparks one helper.
    ///
    /// # Safety
    /// One call at a time: the caller holds the pool's lock, and `handed_out` is what it guards.
    pub(super) unsafe fn run(
        &self,
        handed_out: &mut u64,
        base: usize,
        chunks: u32,
        body: &Body<'_>,
        wake: impl Fn(usize),
    ) -> Option<Box<dyn Any + Send>> {
        self.placement.clear_the_callers_cpu(self.helper_ids());

        // SAFETY: this only drops a lifetime, which a pointer does not have. Why following it is
        // sound is stated in `execute`.
        let body = unsafe { std::mem::transmute::<&Body<'_>, *const Body<'static>>(body) };
        // SAFETY: no other thread reads the cell now: readers hold a ticket, and all tickets of
        // earlier runs were reported done (SeqCst stores, which `all_done` has read with at least
        // Acquire), none of this one is offered yet. No other thread writes: one call at a time.
        unsafe { *self.job.get() = Some(Job { body, base }) };
        self.panicked.store(false, Relaxed);
        *handed_out += u64::from(chunks);

        // A share for each thread; helpers that would get no chunk are not woken.
        let shares = self.tickets.len().min(chunks as usize) as u64;
        for (i, tickets) in (0..shares).zip(&self.tickets) {
            let cut = |i: u64| (i * u64::from(chunks) / shares) as u32;
            tickets.offer(cut(i)..cut(i + 1));
        }
        self.ring(1..shares as usize, wake);

        let longest = self.work_and_time();
        let waits = self.time_waits.load(Relaxed).then(Instant::now);
        self.wait_for_claimed(*handed_out, SPIN + 2 * longest);
        if let Some(since) = waits {
            self.waited.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
        }

        if self.panicked.load(Relaxed) { lock(&self.panic).take() } else { None }
    }

    /// Time for which callers have waited.
    pub(super) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Relaxed))
    }

    /// Whether the time for which callers wait is kept.
    pub(super) fn time_waits(&self, on: bool) {
        self.time_waits.store(on, Relaxed);
    }

    /// Ends the helpers.
    pub(super) fn close(&self, wake: impl Fn(usize)) {
        self.closing.store(true, SeqCst);
        self.ring(1..self.posts.len(), wake);
    }

    /// The main loop of a helper.
    pub(super) fn help(&self, worker: usize) {
        let post = &self.posts[worker];
        post.thread_id.store(thread_id(), Relaxed);
        let mut seen = 0;
        loop {
            seen = self.wait_for_run(post, seen);
            if self.closing.load(Relaxed) {
                return;
            }
            let mut rang = false;
            post.active.store(true, Relaxed);
            while let Some(ticket) = self.claim(worker) {
                self.execute(worker, ticket);
                rang |= self.ring_caller();
                post.active.store(true, Relaxed);
            }
            post.active.store(false, Relaxed);
            if rang {
                // This thread may have been moved to the caller's CPU. Yield it to the caller.
                std::thread::yield_now();
            }
        }
    }

    /// Takes one of the thread's own tickets, or else one of another thread's.
    fn claim(&self, worker: usize) -> Option<u32> {
        let (before, from_mine) = self.tickets.split_at(worker);
        let (mine, after) = from_mine.split_first()?;
        mine.take_first().or_else(|| after.iter().chain(before).find_map(Tickets::take_last))
    }

    /// Runs the chunk of a ticket and reports it done.
    fn execute(&self, worker: usize, ticket: u32) {
        let post = &self.posts[worker];
        // After a panic the remaining tickets are only counted as done.
        if !self.panicked.load(Relaxed) {
            // SAFETY: we hold a ticket. Its claim acquired what its `offer` released, the write of
            // the job included, and the job is not written again before this ticket is done.
            let job = unsafe { *self.job.get() };
            if let Some(Job { body, base }) = job {
                // SAFETY: the caller is still inside `run`, whose argument this was: it waits there
                // for our ticket, and nothing on its way can unwind past the wait, bodies being
                // called under `catch_unwind`. The body is `Sync`, so we may call it here.
                let body = unsafe { &*body };
                let call = AssertUnwindSafe(|| body(base + ticket as usize, worker));
                if let Err(payload) = catch_unwind(call) {
                    self.keep_panic(payload);
                }
            }
        }
        post.active.store(false, Relaxed);
        // One writer (the next caller's turn as worker 0 begins after this one's lock is free), so
        // no read-modify-write. SeqCst: see `ring_caller`.
        post.done.store(post.done.load(Relaxed).wrapping_add(1), SeqCst);
    }

    fn keep_panic(&self, payload: Box<dyn Any + Send>) {
        let mut first = lock(&self.panic);
        if first.is_none() {
            *first = Some(payload);
        } else {
            // Dropping the payload of a panic can itself panic, and a helper has no frame above to
            // unwind to.
            std::mem::forget(payload);
        }
        drop(first);
        self.panicked.store(true, Relaxed);
    }

    /// Runs the caller's share of the chunks; returns how long its longest chunk took.
    fn work_and_time(&self) -> Duration {
        let mut longest = Duration::ZERO;
        let mut start = Instant::now();
        while let Some(ticket) = self.claim(0) {
            self.execute(0, ticket);
            let now = Instant::now();
            longest = longest.max(now - start);
            start = now;
        }
        longest
    }

    fn helper_ids(&self) -> impl Iterator<Item = i32> {
        self.posts[1..].iter().map(|post| post.thread_id.load(Relaxed))
    }
}

/// Locks; poison is ignored, since a panic elsewhere leaves the guarded state valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
