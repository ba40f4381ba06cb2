//! Chunks of keys and values on their way to host memory and back, as the tiers move them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use kernels::{Buffer, Gpu, PinnedPool};

use super::{Measure, Ratio, Target, filled};
use crate::Context;

/// Target fraction of the bandwidth of one pinned copy.
const LEAST: f64 = 0.5;

/// Measures a chunk of 256 tokens in the blocks of a model of 8B parameters: 32 layers, in each the keys and the values of
/// 16 blocks of 32 KiB.
pub(super) fn run(ctx: &Context, take: &mut dyn FnMut(Measure)) -> Result<()> {
    let (layers, blocks, run) = if ctx.tiny() { (2, 2, 1 << 8) } else { (32, 16, 32 << 10) };
    let bytes = 2 * layers * blocks * run;
    // Every second block of each layer, so that no two lie side by side.
    let mut memory: Vec<Buffer> =
        (0..2 * layers).map(|_| filled(&ctx.gpu, 2 * blocks * run)).collect::<Result<_>>()?;
    let whole = filled(&ctx.gpu, bytes)?;
    let pool = PinnedPool::new(&ctx.gpu);
    let (mut pinned, mut pageable) = (pool.alloc(bytes)?, vec![0; bytes]);
    let repeats = if ctx.tiny() { 1 } else { 15 };

    let took = median(repeats, || Ok(whole.view().copy_to(&ctx.gpu, &mut pinned)?))?;
    let limit = bytes as f64 / took.as_secs_f64().max(1e-9);
    let mut add = |name: &str, took: Duration, least: Option<f64>| {
        let rate = bytes as f64 / took.as_secs_f64().max(1e-9);
        take(Measure {
            name: name.into(),
            workload: format!("{} pieces of {} KiB", 2 * layers * blocks, run >> 10),
            value: rate / 1e9,
            unit: "GB/s",
            seconds: took.as_secs_f64(),
            ratio: Some(Ratio {
                of: "one pinned copy to the host".into(),
                value: rate / limit,
                share: true,
                target: least.map(Target::AtLeast),
            }),
        });
    };
    let took = median(repeats, || read(&ctx.gpu, &memory, run, &mut pinned))?;
    add("chunk to pinned memory", took, Some(LEAST));
    let took = median(repeats, || read(&ctx.gpu, &memory, run, &mut pageable))?;
    add("chunk to other memory", took, None);
    let took = median(repeats, || write(&ctx.gpu, &mut memory, run, &pinned))?;
    add("chunk from pinned memory", took, Some(LEAST));
    let took = median(repeats, || write(&ctx.gpu, &mut memory, run, &pageable))?;
    add("chunk from other memory", took, None);
    Ok(())
}

/// Median time of `work`, which waits, after a run that does not count.
fn median(repeats: usize, mut work: impl FnMut() -> Result<()>) -> Result<Duration> {
    work()?;
    let mut times = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let began = Instant::now();
        work()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Every second run of each part.
fn read(gpu: &Arc<Gpu>, memory: &[Buffer], run: usize, out: &mut [u8]) -> Result<()> {
    for (part, out) in memory.iter().zip(out.chunks_exact_mut(memory[0].len() / 2)) {
        let starts = (0..).step_by(2 * run);
        part.view().copy_parts_to(gpu, starts.zip(out.chunks_exact_mut(run)))?;
    }
    Ok(())
}

fn write(gpu: &Arc<Gpu>, memory: &mut [Buffer], run: usize, bytes: &[u8]) -> Result<()> {
    let half = memory[0].len() / 2;
    for (part, bytes) in memory.iter_mut().zip(bytes.chunks_exact(half)) {
        let starts = (0..).step_by(2 * run);
        part.view_mut().copy_parts_from(gpu, starts.zip(bytes.chunks_exact(run)))?;
    }
    Ok(())
}
