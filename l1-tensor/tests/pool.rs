//! The thread pool keeps its promises: every chunk once, worker numbers unique, panics handed on,
//! nesting and sharing safe, the caller's CPU affinity untouched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use l1_tensor::cpu::ThreadPool;

/// Counts how often each chunk ran, and whether a worker was ever in two places.
struct Ledger {
    runs: Vec<AtomicUsize>,
    busy: Vec<AtomicBool>,
    overlaps: AtomicUsize,
}

impl Ledger {
    fn new(chunks: usize, workers: usize) -> Self {
        Self {
            runs: (0..chunks).map(|_| AtomicUsize::new(0)).collect(),
            busy: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            overlaps: AtomicUsize::new(0),
        }
    }

    /// One chunk by one worker. Indexing checks that both numbers are in range.
    fn enter(&self, chunk: usize, worker: usize, work: impl FnOnce()) {
        if self.busy[worker].swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        work();
        self.runs[chunk].fetch_add(1, Ordering::SeqCst);
        self.busy[worker].store(false, Ordering::SeqCst);
    }

    /// Every chunk ran `times` times, no worker was in two chunks at once. Starts afresh.
    fn settle(&self, times: usize, what: &str) {
        for (chunk, n) in self.runs.iter().enumerate() {
            assert_eq!(n.swap(0, Ordering::SeqCst), times, "chunk {chunk}, {what}");
        }
        assert_eq!(self.overlaps.load(Ordering::SeqCst), 0, "{what}");
    }
}

/// Busy for about `n` nanoseconds.
fn toil(n: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_nanos(n) {
        std::hint::spin_loop();
    }
}

#[test]
fn every_chunk_runs_exactly_once_and_no_worker_is_in_two_places() {
    for threads in [1, 2, 3, 4, 7, 16] {
        let pool = ThreadPool::new(threads);
        assert_eq!(pool.threads(), threads);
        let begun = Instant::now();
        for chunks in [1, 2, 3, 5, 16, 17, 100, 1000] {
            let ledger = Ledger::new(chunks, threads);
            // Thousands of runs, but no more than a fraction of a second on a crowded machine.
            for round in 0..500 {
                pool.run(chunks, &|chunk, worker| ledger.enter(chunk, worker, || ()));
                ledger.settle(1, &format!("{threads} threads, {chunks} chunks, round {round}"));
                if begun.elapsed() > Duration::from_millis(600) {
                    break;
                }
            }
        }
    }
}

#[test]
fn runs_in_close_succession_never_mix_up_their_chunks() {
    // Uneven chunks make helpers late, so that they meet the next run while leaving this one: a
    // chunk of a run that saw another run's `round` would be caught.
    let pool = ThreadPool::new(3);
    let begun = Instant::now();
    let mut round = 0;
    while round < 20_000 && begun.elapsed() < Duration::from_secs(1) {
        round += 1;
        let chunks = 2 + round % 7;
        let seen = [const { AtomicUsize::new(0) }; 9];
        pool.run(chunks, &|chunk, _| {
            if (chunk + round).is_multiple_of(5) {
                toil(2_000);
            }
            seen[chunk].fetch_add(round, Ordering::Relaxed);
        });
        for (chunk, n) in seen.iter().enumerate() {
            let expected = if chunk < chunks { round } else { 0 };
            assert_eq!(n.load(Ordering::Relaxed), expected, "round {round}, chunk {chunk}");
        }
    }
}

#[test]
fn what_helpers_wrote_is_there_when_run_returns() {
    // Plain memory, no atomics: the pool itself must order these writes and reads.
    let pool = ThreadPool::new(4);
    let mut out = vec![0usize; 64 * 8];
    for round in 1..2_000 {
        let base = out.as_mut_ptr() as usize;
        pool.run(64, &|chunk, _| {
            // SAFETY: each chunk writes its own 8 elements of `out`, which outlives the run.
            let mine =
                unsafe { std::slice::from_raw_parts_mut((base as *mut usize).add(8 * chunk), 8) };
            mine.fill(round * chunk);
        });
        assert!(out.iter().enumerate().all(|(i, &x)| x == round * (i / 8)), "round {round}");
    }
}

#[test]
fn zero_chunks_is_a_run_that_does_nothing() {
    for threads in [0, 1, 4] {
        let pool = ThreadPool::new(threads);
        assert_eq!(pool.threads(), threads.max(1));
        pool.run(0, &|_, _| panic!("there is no chunk to run"));
    }
}

#[test]
fn the_first_error_ends_a_run_that_can_fail() {
    for threads in [1, 3] {
        let pool = ThreadPool::new(threads);
        let ran = AtomicUsize::new(0);
        let failed = pool.try_run(10_000, &|chunk, _| {
            ran.fetch_add(1, Ordering::SeqCst);
            if chunk >= 5 { Err(chunk) } else { Ok(()) }
        });
        let chunk = failed.expect_err("chunks from 5 on fail");
        assert!((5..10_000).contains(&chunk), "{chunk} is the error of a chunk");
        // Each thread may be within a chunk when another fails; threads share the first five.
        let most = 5 + threads;
        assert!(ran.load(Ordering::SeqCst) <= most, "{ran:?} chunks ran on {threads} threads");
        assert_eq!(
            pool.try_run(100, &|_, _| Ok::<_, ()>(())),
            Ok(()),
            "the pool can be used again"
        );
    }
}

#[test]
fn a_single_chunk_runs_on_the_caller() {
    let pool = ThreadPool::new(4);
    let caller = std::thread::current().id();
    pool.run(1, &|chunk, worker| {
        assert_eq!((chunk, worker), (0, 0));
        assert_eq!(std::thread::current().id(), caller);
    });
}

#[test]
fn a_worker_number_always_names_the_same_thread() {
    let pool = ThreadPool::new(3);
    let names: Vec<_> = (0..3).map(|_| std::sync::OnceLock::new()).collect();
    for _ in 0..200 {
        pool.run(12, &|_, worker| {
            toil(1_000);
            let me = std::thread::current().id();
            assert_eq!(*names[worker].get_or_init(|| me), me);
        });
    }
    assert_eq!(names[0].get(), Some(&std::thread::current().id()));
}

#[test]
fn helpers_do_take_part() {
    // Two chunks that each wait for the other can only end on two threads.
    let pool = ThreadPool::new(2);
    for pause in [0, 1, 5, 0] {
        std::thread::sleep(Duration::from_millis(pause));
        let inside = AtomicUsize::new(0);
        pool.run(2, &|_, _| {
            inside.fetch_add(1, Ordering::SeqCst);
            while inside.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn an_idle_thread_takes_what_a_slow_one_owns() {
    // Chunk 0 (the caller's first) blocks until all others are done, so a helper has to take the
    // rest of the caller's range.
    let pool = ThreadPool::new(2);
    let others = AtomicUsize::new(0);
    pool.run(40, &|chunk, _| {
        if chunk == 0 {
            while others.load(Ordering::SeqCst) < 39 {
                std::thread::yield_now();
            }
        } else {
            others.fetch_add(1, Ordering::SeqCst);
        }
    });
}

#[test]
fn a_straggler_is_waited_for_however_long_it_takes() {
    // Longer than any spinning: the caller sleeps, the straggler is pulled over, all is put back.
    let pool = ThreadPool::new(3);
    for _ in 0..5 {
        let done = AtomicUsize::new(0);
        pool.run(3, &|_, worker| {
            if worker > 0 {
                std::thread::sleep(Duration::from_millis(3));
            } else {
                // Leave the helpers a chance to claim theirs.
                std::thread::sleep(Duration::from_millis(1));
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn a_panic_reaches_the_caller_and_leaves_a_working_pool() {
    for threads in [1, 2, 4] {
        let pool = ThreadPool::new(threads);
        for bad in [0, 5, 31] {
            let inside = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(32, &|chunk, _| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    toil(5_000);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(chunk != bad, "chunk {chunk} is bad");
                });
            }));
            let payload = caught.expect_err("the panic must reach the caller");
            let message =
                payload.downcast_ref::<String>().expect("the payload of the body's panic");
            assert_eq!(*message, format!("chunk {bad} is bad"));
            assert_eq!(inside.load(Ordering::SeqCst), 0, "a body still runs after the run ended");

            let ledger = Ledger::new(32, threads);
            pool.run(32, &|chunk, worker| ledger.enter(chunk, worker, || ()));
            ledger.settle(1, "after a panic");
        }
    }
}

#[test]
fn panics_of_all_workers_at_once_are_one_panic() {
    let pool = ThreadPool::new(4);
    for _ in 0..50 {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(8, &|chunk, _| std::panic::resume_unwind(Box::new(chunk)));
        }));
        let payload = caught.expect_err("the panic must reach the caller");
        assert!(*payload.downcast::<usize>().expect("a chunk number") < 8);
    }
}

#[test]
fn a_run_inside_a_body_stays_on_its_worker() {
    for threads in [1, 2, 4] {
        let (pool, other) = (ThreadPool::new(threads), ThreadPool::new(2));
        let (own, foreign) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(10, &|_, outer| {
            let me = std::thread::current().id();
            pool.run(7, &|_, worker| {
                assert_eq!(worker, outer);
                assert!(threads == 1 || std::thread::current().id() == me);
                own.fetch_add(1, Ordering::Relaxed);
            });
            other.run(3, &|_, _| {
                foreign.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!((own.into_inner(), foreign.into_inner()), (70, 30));
    }
}

#[test]
fn two_pools_that_call_each_other_do_not_deadlock() {
    let pools = [ThreadPool::new(2), ThreadPool::new(2)];
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for first in [0, 1] {
            let (pools, count) = (&pools, &count);
            scope.spawn(move || {
                for _ in 0..200 {
                    pools[first].run(4, &|_, _| {
                        pools[1 - first].run(4, &|_, _| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 2 * 200 * 16);
}

#[test]
fn callers_on_several_threads_take_turns() {
    let pool = ThreadPool::new(3);
    // One ledger for all: a worker number is never in use twice, even across callers.
    let ledger = Ledger::new(6, 3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (pool, ledger) = (&pool, &ledger);
            scope.spawn(move || {
                for _ in 0..200 {
                    pool.run(6, &|chunk, worker| ledger.enter(chunk, worker, || toil(200)));
                }
            });
        }
    });
    ledger.settle(4 * 200, "four callers");
}

#[test]
fn a_pool_is_dropped_whatever_its_helpers_are_doing() {
    for threads in [1, 2, 5] {
        drop(ThreadPool::new(threads)); // They may not have started.
        let pool = ThreadPool::new(threads);
        pool.run(8, &|_, _| ());
        drop(pool); // They spin.
        let pool = ThreadPool::new(threads);
        pool.run(8, &|_, _| ());
        std::thread::sleep(Duration::from_millis(2));
        drop(pool); // They sleep.
    }
}

#[test]
fn the_last_owner_may_be_any_thread() {
    let pool = Arc::new(ThreadPool::new(3));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || pool.run(9, &|_, _| toil(1_000)))
        })
        .collect();
    drop(pool);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_callers_affinity_is_left_alone() {
    fn mine() -> Vec<u8> {
        // SAFETY: all zeros is a valid (empty) set, and the size is that of the set passed.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
            let bytes = (&raw const set).cast::<u8>();
            std::slice::from_raw_parts(bytes, size_of_val(&set)).to_vec()
        }
    }
    let before = mine();
    let pool = ThreadPool::new(2);
    assert_eq!(mine(), before);
    for _ in 0..20 {
        // Slow helpers, so that some of them are pulled.
        pool.run(4, &|_, worker| toil(if worker == 0 { 100 } else { 300_000 }));
        pool.run(2, &|_, _| assert!(!mine().iter().all(|&b| b == 0)));
    }
    drop(pool);
    assert_eq!(mine(), before);
}
