//! Keeping the pool's threads on different CPUs, without touching the caller's.
//!
//! The kernel knows nothing of our haste. After an idle gap it likes to wake a helper on the CPU of
//! the thread that woke it, where the two then take turns while another CPU sleeps. So helpers are
//! forbidden the caller's CPU. And when somebody else's process sits on a helper's CPU, the helper
//! may wait milliseconds for its turn with a claimed chunk in its hands, while the caller, done
//! with everything else, owns a CPU it cannot use. So the caller then pulls the helper over.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::affinity::{CpuSet, current_cpu};

/// No caller has been seen yet.
const NOWHERE: usize = usize::MAX;

/// Where helpers may run. All of it is advice to the kernel: whenever a call fails, threads run
/// wherever they run, and results are the same.
pub(super) struct Placement {
    /// Where the thread that made the pool may run; helpers never leave this set. `None` where
    /// placing is of no use (more threads than CPUs) or not possible.
    allowed: Option<CpuSet>,
    /// The CPU that helpers are kept off: where the latest caller was.
    home: AtomicUsize,
    /// The kernel refused once (a sandbox): do not ask again.
    refused: AtomicBool,
}

impl Placement {
    /// For `threads` threads, the caller included.
    pub(super) fn new(threads: usize) -> Self {
        let allowed = CpuSet::of_this_thread().filter(|set| threads > 1 && threads <= set.len());
        Self { allowed, home: AtomicUsize::new(NOWHERE), refused: AtomicBool::new(false) }
    }

    /// The set in use, unless there is none.
    fn allowed(&self) -> Option<CpuSet> {
        self.allowed.filter(|_| !self.refused.load(Relaxed))
    }

    /// Keep every helper off the CPU the calling thread is on. A few nanoseconds if that is where
    /// it was last time, else a system call for each helper. `helpers` are kernel thread ids, 0
    /// for a thread that has not started yet.
    pub(super) fn clear_the_callers_cpu(&self, mut helpers: impl Iterator<Item = i32>) {
        let Some(allowed) = self.allowed() else { return };
        let Some(cpu) = current_cpu() else { return };
        if cpu == self.home.load(Relaxed) {
            return;
        }
        let elsewhere = allowed.without(cpu);
        let all_told = helpers.all(|helper| helper != 0 && self.move_to(&elsewhere, helper));
        // If one was not there yet, try again at the next run.
        self.home.store(if all_told { cpu } else { NOWHERE }, Relaxed);
    }

    /// Bring a helper onto the CPU of the calling thread, which is about to sleep. `false` if it
    /// stays where it is.
    pub(super) fn pull(&self, helper: i32) -> bool {
        let Some(allowed) = self.allowed() else { return false };
        match current_cpu() {
            Some(cpu) if helper != 0 && allowed.contains(cpu) => {
                self.move_to(&CpuSet::only(cpu), helper)
            }
            _ => false,
        }
    }

    /// Undo [`Placement::pull`].
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

    /// Run `check(helper id, ask)` with a live thread; `ask()` says where it may run.
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
        // No thread has this id, so the kernel says no, as a sandbox would.
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
