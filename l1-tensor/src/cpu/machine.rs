//! What this machine can do at most: the yardsticks that kernels are held against.
//!
//! A matmul of few rows is as fast as memory delivers weights, one of many rows as fast as the
//! multipliers go. Both limits depend on the machine, on its neighbours and, on shared hardware,
//! on the minute, so a figure like "85% of the bandwidth" means one measured beside it.

use std::time::Instant;

use half::bf16;

use super::ThreadPool;
use super::lanes::dispatch;
use super::matmul::Kernels;
use crate::{Precision, Runtime};

/// Far more than a last-level cache holds, in bytes: by the time a part is read again, it is gone.
const BUFFER: usize = 256 << 20;

/// Bytes read in one measurement. Two milliseconds or so: short enough that some measurements fall
/// between two disturbances on a machine that does other things too.
const PART: usize = 64 << 20;

/// Bytes that a thread takes at a time.
const CHUNK: usize = 256 << 10;

/// How many times each measurement is repeated; the best counts, because whatever disturbs one
/// only ever makes it slower.
const REPEATS: usize = 40;

/// Bytes per second that the threads of `pool` read from memory, all together.
///
/// Takes about 0.2 s and 256 MiB.
pub fn read_bandwidth(pool: &ThreadPool) -> f64 {
    // Not zeros: fresh zero pages may all be the same page, which would stay in the cache.
    let buffer = vec![0x0101_0101_0101_0101_u64; BUFFER / size_of::<u64>()];
    let words = CHUNK / size_of::<u64>();
    let isa = super::Isa::best();
    let mut parts = buffer.chunks(PART / size_of::<u64>()).cycle();
    let seconds = best_time(|| {
        let part = parts.next().unwrap_or(&buffer);
        pool.run(part.len() / words, &|chunk, _worker| {
            std::hint::black_box(sum_words(isa, &part[chunk * words..][..words]));
        });
    });
    PART as f64 / seconds
}

/// Floating point operations per second that all threads reach in registers, in the instruction a
/// matmul of this precision is made of. A multiplication and an addition count as two.
pub fn flop_peak(rt: &Runtime, precision: Precision) -> f64 {
    match precision {
        Precision::F32 => peak::<f32>(rt),
        Precision::Bf16 => peak::<bf16>(rt),
    }
}

fn peak<X: Kernels>(rt: &Runtime) -> f64 {
    let kernel = X::kernel(rt.isa());
    // Find how many rounds take about half a millisecond: portable code is a hundred times slower.
    let mut rounds = 16;
    while time(&mut || _ = kernel.exercise(rounds)) < 5e-4 && rounds < 1 << 24 {
        rounds *= 2;
    }
    let operations = kernel.exercise(rounds) as f64;
    let chunks = 4 * rt.pool().threads();
    let seconds = best_time(|| {
        rt.pool().run(chunks, &|_chunk, _worker| _ = kernel.exercise(rounds));
    });
    operations * chunks as f64 / seconds
}

fn best_time(mut work: impl FnMut()) -> f64 {
    (0..REPEATS).map(|_| time(&mut work)).fold(f64::INFINITY, f64::min)
}

fn time(work: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

dispatch! {
    /// Read every word, and prove it by a sum. The sum runs in 64 lanes: one would wait for itself.
    fn sum_words<const FMA: bool>(words: &[u64]) -> u64 {
        let mut lanes = [0u64; 64];
        let (blocks, rest) = words.as_chunks::<64>();
        for block in blocks {
            for (lane, word) in lanes.iter_mut().zip(block) {
                *lane = lane.wrapping_add(*word);
            }
        }
        lanes.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuntimeOptions;

    #[test]
    fn the_yardsticks_are_of_a_plausible_length() {
        let rt =
            Runtime::new(RuntimeOptions { threads: Some(1), ..RuntimeOptions::cpu() }).unwrap();
        let bandwidth = read_bandwidth(rt.pool());
        assert!((1e8..1e13).contains(&bandwidth), "{bandwidth:e} bytes/s");
        for precision in [Precision::F32, Precision::Bf16] {
            let peak = flop_peak(&rt, precision);
            assert!((1e7..1e14).contains(&peak), "{precision}: {peak:e} flop/s");
        }
    }

    #[test]
    fn a_word_sum_reads_every_word() {
        let words: Vec<u64> = (1..=1000).collect();
        for isa in crate::cpu::Isa::available() {
            assert_eq!(sum_words(isa, &words), 500_500, "{isa}");
        }
    }
}
