//! How the threads of a pool wait for each other: they spin for a while, then sleep.
//!
//! A thread that sleeps can miss a wake-up: thread A finds no new run and is about to sleep; thread B posts a
//! run before A sleeps, finds no sleeping thread, and wakes none. Both functions below avoid this in the same
//! way. Each side first *writes* its own word (`asleep`, or the count of runs), then *reads* the other
//! side's. All four accesses are SeqCst, so all threads agree on one order of them, in which one of the two
//! reads comes after the other side's write.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use super::{Crew, Post, lock};

/// Duration for which a thread spins before it sleeps. Longer than the gap between two ops of a forward pass, and much
/// shorter than the time slice of another process on the CPU.
pub(super) const SPIN: Duration = Duration::from_micros(20);

impl Crew {
    /// Announces a new run to the helpers, and wakes those of `wanted` that sleep.
    pub(super) fn ring(&self, wanted: Range<usize>, wake: impl Fn(usize)) {
        // SeqCst on both sides, here and in `wait_for_run`: the helper sees the new count before it sleeps, or this
        // thread sees the helper's `asleep`.
        self.runs.fetch_add(1, SeqCst);
        for helper in wanted {
            let asleep = &self.posts[helper].asleep;
            if asleep.load(SeqCst) && asleep.swap(false, SeqCst) {
                wake(helper);
            }
        }
    }

    /// Spins, then sleeps, until the count of runs is not `seen`. Returns the new count.
    pub(super) fn wait_for_run(&self, post: &Post, seen: u64) -> u64 {
        let changed = || self.runs.load(Acquire) != seen;
        if !(self.spin && watch(SPIN, changed)) {
            loop {
                post.asleep.store(true, SeqCst);
                if self.runs.load(SeqCst) != seen {
                    break;
                }
                std::thread::park(); // May return spuriously: hence the loop.
            }
            post.asleep.store(false, Relaxed);
        }
        self.runs.load(Acquire)
    }

    /// Waits until all of `handed_out` tickets are done. All of them have been claimed, so this waits only for threads
    /// in the middle of a chunk, never for a thread that has yet to wake up.
    pub(super) fn wait_for_claimed(&self, handed_out: u64, patience: Duration) {
        if self.all_done(handed_out) {
            return;
        }
        if self.spin && watch(patience, || self.all_done(handed_out)) {
            return;
        }
        // A helper has claimed a chunk and has probably lost its CPU: offer it this one, and sleep.
        let mut guest: Option<&Post> = None;
        self.caller_asleep.store(true, SeqCst);
        let mut guard = lock(&self.caller_lock);
        while !self.all_done(handed_out) {
            if guest.is_none_or(|post| !post.active.load(Relaxed)) {
                if let Some(gone) = guest.take() {
                    self.placement.put_back(gone.thread_id.load(Relaxed));
                }
                guest = self.posts[1..].iter().find(|post| post.active.load(Relaxed));
                guest = guest.filter(|post| self.placement.pull(post.thread_id.load(Relaxed)));
            }
            guard = self.caller_bell.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.caller_asleep.store(false, Relaxed);
        if let Some(post) = guest {
            self.placement.put_back(post.thread_id.load(Relaxed));
        }
    }

    /// Every ticket is claimed at most once and reported once, so equal sums mean that all are done.
    fn all_done(&self, handed_out: u64) -> bool {
        let sum = |sum: u64, post: &Post| sum.wrapping_add(post.done.load(SeqCst));
        self.posts.iter().fold(0, sum) == handed_out
    }

    /// A chunk was just reported done: wakes the caller if it sleeps. The store of `done` and this load are
    /// SeqCst, as are the caller's store of `caller_asleep` and loads of `done`: either the caller sees the
    /// chunk done, or this thread sees the caller asleep.
    pub(super) fn ring_caller(&self) -> bool {
        let asleep = self.caller_asleep.load(SeqCst);
        if asleep {
            // Through the lock: the caller is either before its load of `done`, or inside the wait.
            drop(lock(&self.caller_lock));
            self.caller_bell.notify_one();
        }
        asleep
    }
}

/// Spins until `arrived()`, at most for `limit`. Returns whether it arrived.
fn watch(limit: Duration, arrived: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if arrived() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > limit {
            return false;
        }
    }
}
