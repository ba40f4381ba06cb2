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

/// Short measurements of one limit. The best is what the machine can do when nothing disturbs it; the median is what it
/// did while it was measured, which on a shared machine may be much less.
#[derive(Clone, Debug, Default)]
pub struct Readings(Vec<f64>);

impl Readings {
    /// Measurements, each of `amount` in so many seconds.
    pub fn new(amount: f64, seconds: impl IntoIterator<Item = f64>) -> Self {
        let mut rates: Vec<f64> = seconds.into_iter().map(|s| amount / s.max(1e-9)).collect();
        rates.sort_by(f64::total_cmp);
        Self(rates)
    }

    /// These and others, of the same limit.
    #[must_use]
    pub fn and(mut self, others: &Self) -> Self {
        self.0.extend(&others.0);
        self.0.sort_by(f64::total_cmp);
        self
    }

    /// Highest rate per second; 0 without measurements.
    pub fn best(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }

    /// Middle rate per second; of an even number the mean of the two in the middle. 0 without measurements.
    pub fn median(&self) -> f64 {
        match self.0.len() {
            0 => 0.0,
            n if n % 2 == 1 => self.0[n / 2],
            n => (self.0[n / 2 - 1] + self.0[n / 2]) / 2.0,
        }
    }
}

/// Bytes per second that the threads of `pool` read from memory, all together: the best of [`read_bandwidths`].
///
/// Takes about 0.2 s and 256 MiB.
pub fn read_bandwidth(pool: &ThreadPool) -> f64 {
    read_bandwidths(pool).best()
}

/// Bytes per second that the threads of `pool` read from memory, all together, in each of some short measurements.
///
/// Takes about 0.2 s and 256 MiB.
pub fn read_bandwidths(pool: &ThreadPool) -> Readings {
    // Not zeros: fresh zero pages may all be the same page, which would stay in the cache.
    let buffer = vec![0x0101_0101_0101_0101_u64; BUFFER / size_of::<u64>()];
    let words = CHUNK / size_of::<u64>();
    let isa = super::Isa::best();
    let mut parts = buffer.chunks(PART / size_of::<u64>()).cycle();
    let seconds = times(|| {
        let part = parts.next().unwrap_or(&buffer);
        pool.run(part.len() / words, &|chunk, _worker| {
            std::hint::black_box(sum_words(isa, &part[chunk * words..][..words]));
        });
    });
    Readings::new(PART as f64, seconds)
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
    let seconds = times(|| {
        rt.pool().run(chunks, &|_chunk, _worker| _ = kernel.exercise(rounds));
    });
    Readings::new(operations * chunks as f64, seconds).best()
}

fn times(mut work: impl FnMut()) -> Vec<f64> {
    (0..REPEATS).map(|_| time(&mut work)).collect()
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
    fn readings_have_a_best_and_a_median_and_can_be_joined() {
        let few = Readings::new(12.0, [4.0, 3.0, 6.0]);
        assert_eq!((few.best(), few.median()), (4.0, 3.0));
        let more = few.and(&Readings::new(12.0, [1.0]));
        assert_eq!((more.best(), more.median()), (12.0, 3.5));
        assert_eq!((Readings::default().best(), Readings::default().median()), (0.0, 0.0));
    }

    #[test]
    fn a_word_sum_reads_every_word() {
        let words: Vec<u64> = (1..=1000).collect();
        for isa in crate::cpu::Isa::available() {
            assert_eq!(sum_words(isa, &words), 500_500, "{isa}");
        }
    }
}
