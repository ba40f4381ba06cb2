//! What a pool costs in a steady state: no allocation in a run, no CPU time while there is none.
//! One test in this file, since both are counted for the whole process.

#[path = "support/counting.rs"]
mod counting;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use counting::fewest_allocations;
use l1_tensor::cpu::ThreadPool;

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

    let made = fewest_allocations(3, || {
        for round in 0..200 {
            run(&pool);
            if round % 10 == 0 {
                run(&crowded);
                // Helpers fall asleep and have to be woken.
                std::thread::sleep(Duration::from_micros(300));
            }
        }
    });
    assert_eq!(made, 0);
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
