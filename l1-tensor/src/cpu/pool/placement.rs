//! Keeping the pool's threads on different CPUs, without touching the caller's.
//!
//! After an idle gap the kernel tends to wake a helper on the CPU of the thread that woke it. The
//! two then take turns on that CPU while another CPU is idle. So helpers are kept off the caller's
//! CPU.
//!
//! When another process runs on a helper's CPU, the helper may wait milliseconds for its turn with
//! a claimed chunk. Meanwhile the caller has finished all other chunks and its CPU is idle. So the
//! caller moves such a helper onto its own CPU.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::affinity::{CpuSet, current_cpu};

/// No caller has been seen yet.
const NOWHERE: usize = usize::MAX;

/// CPUs on which helpers may run. All of it is advice to the kernel: whenever a call fails, the
/// kernel chooses the CPUs, and results are the same.
pub(super) struct Placement {
    /// CPUs of the thread that made the pool; helpers never leave this set. `None` where placement
    /// is of no use (more threads than CPUs) or not possible.
    allowed: Option<CpuSet>,
    /// CPU of the latest caller. Helpers are kept off it.
    home: AtomicUsize,
    /// Whether the kernel has refused a call (a sandbox): no further call is made.
    refused: AtomicBool,
}

impl Placement {
    /// Placement for `threads` threads, the caller included.
    pub(super) fn new(threads: usize) -> Self {
        let allowed = CpuSet::of_this_thread().filter(|set| threads > 1 && threads <= set.len());
        Self { allowed, home: AtomicUsize::new(NOWHERE), refused: AtomicBool::new(false) }
    }

    /// The set in use, unless there is none.
    fn allowed(&self) -> Option<CpuSet> {
        self.allowed.filter(|_| !self.refused.load(Relaxed))
    }

    /// Keeps every helper off the CPU of the calling thread. Costs a few nanoseconds if the caller
    /// has not moved since the last run, else a system call for each helper. `helpers` are kernel
    /// thread ids, 0 for a thread that has not started yet.
    pub(super) fn clear_the_callers_cpu(&self, mut helpers: impl Iterator<Item = i32>) {
        let Some(allowed) = self.allowed() else { return };
        let Some(cpu) = current_cpu() else { return };
        if cpu == self.home.load(Relaxed) {
            return;
        }
        let elsewhere = allowed.without(cpu);
        let all_told = helpers.all(|helper| helper != 0 && self.move_to(&elsewhere, helper));
        // A helper had not started yet: try again at the next run.
        self.home.store(if all_told { cpu } else { NOWHERE }, Relaxed);
    }

    /// Moves a helper onto the CPU of the calling thread, which is about to sleep. Returns `false`
    /// if the helper stays where it is.
    pub(super) fn pull(&self, helper: i32) -> bool {
        let Some(allowed) = self.allowed() else { return false };
        match current_cpu() {
            Some(cpu) if helper != 0 && allowed.contains(cpu) => {
                self.move_to(&CpuSet::only(cpu), helper)
            }
            _ => false,
        }
    }

    /// Undoes [`Placement::pull`].
    pub(super) fn put_back(&self, helper: i32) {
        // Deliberately not through `allowed()`: what was narrowed is widened in any case.
        let Some(allowed) = self.allowed else { return };
        if !self.move_to(&allowed.without(self.home.load(Relaxed)), helper) {
            allowed.apply_to(helper);
        }
    }

    fn move_to(&self, set: &CpuSet, helper: i32) -> bool {
        let moved = set.apply_to(helper);
        if !moved {
            self.refused.store(true, Relaxed);
        }
        moved
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::cpu::pool::affinity::thread_id;
    use std::sync::mpsc;

    /// Runs `check(helper id, ask)` with a live thread; `ask()` returns the CPUs on which it may
    /// run.
    fn with_a_helper(check: impl FnOnce(i32, &dyn Fn() -> CpuSet)) {
        let (ask, asked) = mpsc::channel::<()>();
        let (say, said) = mpsc::channel();
        let (name, named) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                name.send(thread_id()).unwrap();
                while asked.recv().is_ok() {
                    say.send(CpuSet::of_this_thread().unwrap()).unwrap();
                }
            });
            let id = named.recv().unwrap();
            check(id, &|| {
                ask.send(()).unwrap();
                said.recv().unwrap()
            });
            drop(ask);
        });
    }

    #[test]
    fn a_helper_is_kept_off_pulled_over_and_put_back() {
        let placement = Placement::new(2);
        if placement.allowed().is_none() {
            return; // One CPU: there is nowhere else to be.
        }
        let mine = CpuSet::of_this_thread().unwrap();
        with_a_helper(|helper, may_run| {
            placement.clear_the_callers_cpu([helper].into_iter());
            if placement.refused.load(Relaxed) {
                return; // A sandbox: nothing to see.
            }
            let home = placement.home.load(Relaxed);
            assert!(!may_run().contains(home));
            assert_eq!(may_run().len(), mine.len() - 1);

            assert!(placement.pull(helper));
            assert_eq!(may_run().len(), 1);

            placement.put_back(helper);
            assert!(!may_run().contains(home));
            assert_eq!(may_run().len(), mine.len() - 1);
        });
        assert_eq!(CpuSet::of_this_thread().unwrap().len(), mine.len());
    }

    #[test]
    fn a_refusal_is_remembered_and_harmless() {
        let placement = Placement::new(2);
        if placement.allowed().is_none() {
            return;
        }
        // No thread has this id, so the kernel refuses, as in a sandbox.
        assert!(!placement.pull(i32::MAX));
        assert!(placement.allowed().is_none());
        placement.clear_the_callers_cpu([i32::MAX].into_iter());
        placement.put_back(i32::MAX);
    }

    #[test]
    fn more_threads_than_cpus_are_left_to_the_kernel() {
        assert!(Placement::new(100_000).allowed().is_none());
        assert!(Placement::new(1).allowed().is_none());
    }
}
