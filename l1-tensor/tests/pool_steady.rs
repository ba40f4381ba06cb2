//! What a pool costs in a steady state: no allocation in a run, no CPU time while there is none.
//! One test in this file, since both are counted for the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use l1_tensor::cpu::ThreadPool;

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn toil(nanoseconds: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_nanos(nanoseconds) {
        std::hint::spin_loop();
    }
}

#[test]
fn a_run_allocates_nothing_and_an_idle_pool_sleeps() {
    let pool = ThreadPool::new(2);
    let crowded = ThreadPool::new(9);
    let counted = AtomicUsize::new(0);
    let run = |pool: &ThreadPool| {
        pool.run(16, &|_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        // A slow helper: the caller goes to sleep and is woken.
        pool.run(4, &|_, worker| toil(if worker == 0 { 100 } else { 100_000 }));
    };
    run(&pool);
    run(&crowded);
    std::thread::sleep(Duration::from_millis(50)); // Threads allocate while they start.

    // The best of a few: on a busy machine a thread may start late, and the test harness has one
    // of its own. A run that allocates does so every time.
    let made = (0..3).map(|_| {
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        for round in 0..200 {
            run(&pool);
            if round % 10 == 0 {
                run(&crowded);
                // Helpers fall asleep and have to be woken.
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        ALLOCATIONS.load(Ordering::SeqCst) - before
    });
    assert_eq!(made.min(), Some(0));
    assert_eq!(counted.load(Ordering::Relaxed), 16 * (2 + 3 * (200 + 20)));

    #[cfg(target_os = "linux")]
    {
        std::thread::sleep(Duration::from_millis(50)); // Time to fall asleep.
        let before = cpu_time();
        std::thread::sleep(Duration::from_millis(200));
        let spent = cpu_time() - before;
        assert!(spent < Duration::from_millis(20), "idle threads used {spent:?} in 200 ms");
    }
}

/// What all threads of this process have used of all CPUs.
#[cfg(target_os = "linux")]
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a `timespec` that we own.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(rc, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
