//! What the caller and its helpers share, and what each of them does with it. How they wait for
//! each other is in `waiting`.

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

/// What to do with a ticket.
#[derive(Clone, Copy)]
struct Job {
    /// Lives as long as the run, whatever the type says.
    body: *const Body<'static>,
    /// The chunk that ticket 0 stands for.
    base: usize,
}

/// What the others may know of one thread. Written mostly by the thread itself.
#[repr(align(128))] // Each on cache lines of its own.
struct Post {
    /// Chunks finished since the pool was made.
    done: AtomicU64,
    /// From before it claims a ticket until just before it reports the chunk done. A hint.
    active: AtomicBool,
    /// Asleep, or about to be: wants waking.
    asleep: AtomicBool,
    /// The kernel's name for the thread; 0 until it runs.
    thread_id: AtomicI32,
}

/// Everything shared. Worker 0 is whoever calls [`Crew::run`], one thread at a time.
pub(super) struct Crew {
    tickets: Box<[Tickets]>,
    posts: Box<[Post]>,
    placement: Placement,
    /// Threads wait by watching rather than by sleeping, for a while. Not if there are more of
    /// them than CPUs: the one that watches would hold the CPU of the one it watches.
    spin: bool,

    /// Counts runs, so that helpers notice one.
    news: AtomicU64,
    closing: AtomicBool,

    /// Written between runs only: see the SAFETY notes at its two uses.
    job: UnsafeCell<Option<Job>>,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,

    caller_asleep: AtomicBool,
    caller_lock: Mutex<()>,
    caller_bell: Condvar,
}

// SAFETY: `job` is the only field that is not `Sync` by itself. It is written by the one thread
// inside `run` while no ticket is out, and read only by holders of a ticket; see there.
unsafe impl Sync for Crew {}
// SAFETY: the pointer in `job` is to something `Sync`, and is not followed between runs.
unsafe impl Send for Crew {}

impl Crew {
    /// For `threads` threads on `cpus` CPUs, the caller included.
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
            news: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            caller_asleep: AtomicBool::new(false),
            caller_lock: Mutex::new(()),
            caller_bell: Condvar::new(),
        }
    }

    /// The caller's side of a run of `chunks` chunks, the first of them number `base`. Returns the
    /// payload of the first panic, if any, when no thread is inside `body` any more.
    ///
    /// `handed_out` counts the tickets of all runs so far; `wake(helper)` unparks one.
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

        // SAFETY: this only forgets a lifetime, for a pointer has none. What makes following it
        // sound is said in `execute`.
        let body = unsafe { std::mem::transmute::<&Body<'_>, *const Body<'static>>(body) };
        // SAFETY: no other thread reads the cell now: readers hold a ticket, and all tickets of
        // earlier runs were reported done (SeqCst stores, which `all_done` has read with at least
        // Acquire), none of this one is offered yet. No other thread writes: one call at a time.
        unsafe { *self.job.get() = Some(Job { body, base }) };
        self.panicked.store(false, Relaxed);
        *handed_out += u64::from(chunks);

        // A share for each thread, but no thread is bothered for nothing.
        let shares = self.tickets.len().min(chunks as usize) as u64;
        for (i, tickets) in (0..shares).zip(&self.tickets) {
            let cut = |i: u64| (i * u64::from(chunks) / shares) as u32;
            tickets.offer(cut(i)..cut(i + 1));
        }
        self.ring(1..shares as usize, wake);

        let longest = self.work_and_time();
        self.wait_for_claimed(*handed_out, SPIN + 2 * longest);

        if self.panicked.load(Relaxed) { lock(&self.panic).take() } else { None }
    }

    /// Send the helpers home.
    pub(super) fn close(&self, wake: impl Fn(usize)) {
        self.closing.store(true, SeqCst);
        self.ring(1..self.posts.len(), wake);
    }

    /// A helper's life.
    pub(super) fn help(&self, worker: usize) {
        let post = &self.posts[worker];
        post.thread_id.store(thread_id(), Relaxed);
        let mut seen = 0;
        loop {
            seen = self.wait_for_news(post, seen);
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
                // We may be on the caller's CPU, pulled there. Let it have it back.
                std::thread::yield_now();
            }
        }
    }

    /// A ticket of one's own, or else of somebody else's.
    fn claim(&self, worker: usize) -> Option<u32> {
        let (before, from_mine) = self.tickets.split_at(worker);
        let (mine, after) = from_mine.split_first()?;
        mine.take_first().or_else(|| after.iter().chain(before).find_map(Tickets::take_last))
    }

    /// Do what a ticket asks and report it done.
    fn execute(&self, worker: usize, ticket: u32) {
        let post = &self.posts[worker];
        // After a panic the rest of the run is only counted off.
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
            // Dropping a stranger's payload can itself panic, and we have nowhere to go from here.
            std::mem::forget(payload);
        }
        drop(first);
        self.panicked.store(true, Relaxed);
    }

    /// The caller's share of the work; returns how long its longest chunk took.
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

/// Lock; a panic elsewhere is no reason to panic here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
