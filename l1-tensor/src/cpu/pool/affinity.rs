//! System calls that read and set the CPUs of a thread. Linux only; elsewhere they return nothing
//! and do nothing.

#[cfg(target_os = "linux")]
mod os {
    /// A set of CPUs.
    #[derive(Clone, Copy)]
    pub struct CpuSet(libc::cpu_set_t);

    impl CpuSet {
        /// CPUs on which the calling thread may run. `None` if the system call fails, or the
        /// machine has more CPUs than the 1024 for which this set has room.
        pub fn of_this_thread() -> Option<Self> {
            let mut set = Self::empty();
            // SAFETY: the pointer and the size describe one `cpu_set_t` that we own.
            let rc =
                unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set.0) };
            (rc == 0).then_some(set)
        }

        fn empty() -> Self {
            // SAFETY: `cpu_set_t` is an array of integers; all zeros is the empty set.
            Self(unsafe { std::mem::zeroed() })
        }

        /// Exactly one CPU. It must be below [`CpuSet::capacity`].
        pub fn only(cpu: usize) -> Self {
            let mut set = Self::empty();
            if cpu < Self::capacity() {
                // SAFETY: the index was just checked against the size of the set.
                unsafe { libc::CPU_SET(cpu, &mut set.0) };
            }
            set
        }

        /// The same set less one CPU.
        pub fn without(mut self, cpu: usize) -> Self {
            if cpu < Self::capacity() {
                // SAFETY: the index was just checked against the size of the set.
                unsafe { libc::CPU_CLR(cpu, &mut self.0) };
            }
            self
        }

        /// Whether the set contains `cpu`.
        pub fn contains(&self, cpu: usize) -> bool {
            // SAFETY: the index is checked against the size of the set first.
            cpu < Self::capacity() && unsafe { libc::CPU_ISSET(cpu, &self.0) }
        }

        /// Number of CPUs in the set.
        pub fn len(&self) -> usize {
            (0..Self::capacity()).filter(|&cpu| self.contains(cpu)).count()
        }

        /// One more than the highest CPU number a set can hold.
        fn capacity() -> usize {
            8 * size_of::<libc::cpu_set_t>()
        }

        /// Restricts a thread of this process to this set. The kernel intersects the set with the
        /// cgroup's. Returns `false` if the kernel refuses: an empty intersection, or a sandbox
        /// (EPERM).
        pub fn apply_to(&self, thread: i32) -> bool {
            // SAFETY: the pointer and the size describe one `cpu_set_t`, which is only read.
            unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &self.0) == 0 }
        }
    }

    /// CPU of the calling thread at the time of the call; the thread may move at any time.
    pub fn current_cpu() -> Option<usize> {
        // SAFETY: no arguments, no memory; -1 on error. (A vDSO or rseq read, nanoseconds.)
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }

    /// The kernel's id of the calling thread, never 0.
    pub fn thread_id() -> i32 {
        // SAFETY: no arguments, cannot fail. The raw call because not every libc wraps it.
        unsafe { libc::syscall(libc::SYS_gettid) as i32 }
    }
}

#[cfg(not(target_os = "linux"))]
mod os {
    /// A set of CPUs; on this system none is ever made.
    #[derive(Clone, Copy)]
    pub struct CpuSet;

    impl CpuSet {
        pub fn of_this_thread() -> Option<Self> {
            None
        }
        pub fn only(_: usize) -> Self {
            Self
        }
        pub fn without(self, _: usize) -> Self {
            self
        }
        pub fn contains(&self, _: usize) -> bool {
            false
        }
        pub fn len(&self) -> usize {
            0
        }
        pub fn apply_to(&self, _: i32) -> bool {
            false
        }
    }

    pub fn current_cpu() -> Option<usize> {
        None
    }

    pub fn thread_id() -> i32 {
        1
    }
}

pub(super) use os::{CpuSet, current_cpu, thread_id};

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn sets_do_what_sets_do() {
        let set = CpuSet::only(3);
        assert_eq!(set.len(), 1);
        assert!(set.contains(3) && !set.contains(2));
        assert_eq!(set.without(3).len(), 0);
        assert_eq!(set.without(2).len(), 1);
        assert_eq!(CpuSet::only(usize::MAX).len(), 0);
        assert!(!set.contains(usize::MAX));
    }

    #[test]
    fn a_thread_can_be_moved_and_its_set_read_back() {
        // On a thread of its own: the test runner's threads keep theirs.
        std::thread::spawn(|| {
            let before = CpuSet::of_this_thread().expect("Linux tells a thread its CPUs");
            let cpu = current_cpu().expect("Linux tells a thread its CPU");
            assert!(before.contains(cpu));
            if CpuSet::only(cpu).apply_to(thread_id()) {
                assert_eq!(CpuSet::of_this_thread().map(|s| s.len()), Some(1));
                assert_eq!(current_cpu(), Some(cpu));
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_impossible_set_is_refused_not_fatal() {
        assert!(!CpuSet::only(3).without(3).apply_to(thread_id()));
    }
}
