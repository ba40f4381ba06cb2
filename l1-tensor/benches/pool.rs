//! What handing an op to the pool costs.
//!
//! `cargo bench -p l1-tensor --bench pool`. Workloads: chunks that do nothing (the price of a run),
//! after helpers had time to fall asleep, and chunks of unequal length beside the same chunks on
//! one thread. Each also with a neighbour that keeps one CPU busy. Baseline: `threads/1`.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use l1_tensor::cpu::ThreadPool;

/// Arithmetic that takes the same time wherever it runs: about a nanosecond a turn.
fn toil(turns: usize) {
    let mut x = black_box(1u64);
    for i in 0..turns as u64 {
        x = black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(i));
    }
}

/// Run `measure` while another thread uses a CPU as a stranger's process would.
fn beside_a_neighbour(measure: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                spin_loop();
            }
        });
        measure();
        stop.store(true, Ordering::Relaxed);
    });
}

fn measure_all(c: &mut Criterion, situation: &str) {
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
    let pools = [ThreadPool::new(1), ThreadPool::new(2), ThreadPool::new(threads)];
    let pools = if threads == 2 { &pools[..2] } else { &pools[..] };

    let mut group = c.benchmark_group(format!("pool/{situation}/empty"));
    for pool in pools {
        group.bench_function(BenchmarkId::new("threads", pool.threads()), |b| {
            b.iter(|| pool.run(2 * pool.threads(), &|chunk, _| _ = black_box(chunk)));
        });
    }
    group.finish();

    let mut group = c.benchmark_group(format!("pool/{situation}/empty_after_200us_idle"));
    for pool in pools {
        group.bench_function(BenchmarkId::new("threads", pool.threads()), |b| {
            b.iter_custom(|iterations| {
                let mut sum = Duration::ZERO;
                for _ in 0..iterations {
                    std::thread::sleep(Duration::from_micros(200));
                    let start = Instant::now();
                    pool.run(2 * pool.threads(), &|chunk, _| _ = black_box(chunk));
                    sum += start.elapsed();
                }
                sum
            });
        });
    }
    group.finish();

    // 31 us in all, a fifth of it in the last of 24 chunks, where the caller's helper starts late.
    let mut group = c.benchmark_group(format!("pool/{situation}/imbalanced"));
    for pool in pools {
        group.bench_function(BenchmarkId::new("threads", pool.threads()), |b| {
            b.iter(|| {
                pool.run(24, &|chunk, _| toil(if chunk == 23 { 6_000 } else { 90 * (chunk + 1) }));
            });
        });
    }
    group.finish();
}

fn quiet(c: &mut Criterion) {
    measure_all(c, "quiet");
}

fn crowded(c: &mut Criterion) {
    beside_a_neighbour(|| measure_all(c, "neighbour"));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = quiet, crowded
}
criterion_main!(benches);
