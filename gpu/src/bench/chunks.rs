//! Chunks of keys and values on their way to host memory and back, by the calls that the tiers use.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use l1_tensor::{DType, Device};
use l3_paged_kv::{BlockId, PagedKv};

use super::{Measure, Ratio, Target, filled};
use crate::Context;

/// Target fraction of the bandwidth of one pinned copy.
const LEAST: f64 = 0.5;

/// Number of tokens per block.
const BLOCK_SIZE: usize = 16;

/// Measures a chunk of 256 tokens of a model of 8B parameters: 32 layers, in each the keys and the values of 16 blocks
/// of 32 KiB.
pub(super) fn run(ctx: &Context, take: &mut dyn FnMut(Measure)) -> Result<()> {
    let (config, num_blocks) = match ctx.tiny() {
        true => ("tiny-llama/config.json", 2),
        false => ("configs/llama-3.1-8b.json", 16),
    };
    let config = ctx.config(config)?;
    let device = Device::Cuda(ctx.gpu.ordinal());
    let mut kv = PagedKv::new_on(device, &config, 2 * num_blocks, BLOCK_SIZE, DType::BF16)?;
    // Every second block, so that no two lie side by side.
    let blocks: Vec<BlockId> = (1..).step_by(2).take(num_blocks).collect();
    let bytes = kv.chunk_bytes(num_blocks);
    let pieces = 2 * num_blocks * config.attention_layers().count();
    let whole = filled(&ctx.gpu, bytes)?;
    let (mut pinned, mut pageable) = (kv.host_buffer(bytes), vec![0; bytes]);
    ensure!(pinned.is_pinned(), "the system pins no memory");
    let repeats = if ctx.tiny() { 1 } else { 15 };

    let took = median(repeats, || Ok(whole.view().copy_to(&ctx.gpu, &mut pinned)?))?;
    let limit = bytes as f64 / took.as_secs_f64().max(1e-9);
    let mut add = |name: &str, took: Duration, least: Option<f64>| {
        let rate = bytes as f64 / took.as_secs_f64().max(1e-9);
        take(Measure {
            name: name.into(),
            workload: format!("{pieces} pieces of {} bytes", bytes / pieces),
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
    let took = median(repeats, || Ok(kv.read_chunk(&blocks, &mut pinned)?))?;
    add("chunk to pinned memory", took, Some(LEAST));
    let took = median(repeats, || Ok(kv.read_chunk(&blocks, &mut pageable)?))?;
    add("chunk to other memory", took, None);
    let took = median(repeats, || Ok(kv.write_chunk(&blocks, 0, num_blocks, &pinned)?))?;
    add("chunk from pinned memory", took, Some(LEAST));
    let took = median(repeats, || Ok(kv.write_chunk(&blocks, 0, num_blocks, &pageable)?))?;
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
