//! How the threads of a pool wait for each other: watch for a while, then sleep.
//!
//! Sleeping has one classic trap, the lost wake-up: A looks, sees nothing, and falls asleep; B
//! posts its news between the look and the sleep, sees nobody asleep, and wakes nobody. Both
//! places below avoid it in the same way. Each side first *writes* its own word (`asleep`, or the
//! news), then *reads* the other's, all four SeqCst, so there is one order of the four on which
//! all threads agree, and in it one of the two reads comes after the other side's write.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use super::{Crew, Post, lock};

/// How long a thread watches for news before it sleeps. Longer than the gap between two ops of a
/// forward pass, much shorter than the time slice of whoever else wants the CPU.
pub(super) const SPIN: Duration = Duration::from_micros(20);

impl Crew {
    /// Tell helpers that there is news, and wake those of `wanted` that sleep.
    pub(super) fn ring(&self, wanted: Range<usize>, wake: impl Fn(usize)) {
        // SeqCst on both sides, here and in `wait_for_news`: either the helper sees the news
        // before it sleeps, or it is seen going to sleep. Never neither.
        self.news.fetch_add(1, SeqCst);
        for helper in wanted {
            let asleep = &self.posts[helper].asleep;
            if asleep.load(SeqCst) && asleep.swap(false, SeqCst) {
                wake(helper);
            }
        }
    }

    /// Watch, then sleep, until the count of runs is not `seen`; returns the new count.
    pub(super) fn wait_for_news(&self, post: &Post, seen: u64) -> u64 {
        let changed = || self.news.load(Acquire) != seen;
        if !(self.spin && watch(SPIN, changed)) {
            loop {
                post.asleep.store(true, SeqCst);
                if self.news.load(SeqCst) != seen {
                    break;
                }
                std::thread::park(); // May return for no reason: hence the loop.
            }
            post.asleep.store(false, Relaxed);
        }
        self.news.load(Acquire)
    }

    /// Wait until all of `handed_out` tickets are done. All of them are claimed by now, so this
    /// waits for threads in the middle of a chunk, never for one that has yet to wake up.
    pub(super) fn wait_for_claimed(&self, handed_out: u64, patience: Duration) {
        if self.all_done(handed_out) {
            return;
        }
        if self.spin && watch(patience, || self.all_done(handed_out)) {
            return;
        }
        // Somebody took a chunk and has probably lost its CPU. Offer it ours and sleep.
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

    /// Every ticket is claimed at most once and reported once, so equal sums mean: all done.
    fn all_done(&self, handed_out: u64) -> bool {
        let sum = |sum: u64, post: &Post| sum.wrapping_add(post.done.load(SeqCst));
        self.posts.iter().fold(0, sum) == handed_out
    }

    /// A chunk was just reported done: wake the caller if it sleeps. The store of `done` and this
    /// load are SeqCst, as are the caller's store of `caller_asleep` and loads of `done`: either
    /// it sees the chunk done, or we see it asleep.
    pub(super) fn ring_caller(&self) -> bool {
        let asleep = self.caller_asleep.load(SeqCst);
        if asleep {
            // Through the lock: it is either before its look at `done`, or inside the wait.
            drop(lock(&self.caller_lock));
            self.caller_bell.notify_one();
        }
        asleep
    }
}

/// Spin until `arrived()`, at most for `limit`. Says whether it did.
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
