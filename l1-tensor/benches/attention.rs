//! How close attention comes to the multipliers' peak (prefill) and to the memory's bandwidth
//! (decode), on the heads of SmolLM2-135M (9 query heads over 3 KV heads of 64) and of
//! Llama-3.1-8B (32 over 8 of 128).
//!
//! The table printed first takes the best of many short runs, which is what means something on a
//! machine that does other things too; the median stands beside it. The caches of one case are
//! more than a last-level cache holds, and are used by turns. `--table` stops after the table,
//! `--threads=1` takes so many; words of the command line that are no options are looked for in the
//! cases' names. Criterion follows.

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion};
use l1_tensor::cpu::machine::{flop_peak, read_bandwidth};
use l1_tensor::ops::{AttentionParams, AttentionScratch, KvCache, Sequences, attention};
use l1_tensor::{DType, Device, Precision, Result, Runtime, RuntimeOptions, Tensor};

/// Query heads, KV heads, elements of a head.
type Heads = (usize, usize, usize);

const SMOL: Heads = (9, 3, 64);
const LLAMA: Heads = (32, 8, 128);
/// One KV head, as the shard of a larger model has.
const ONE: Heads = (4, 1, 128);

/// Caches that take turns hold this much together.
const COLD: usize = 96 << 20;

#[derive(Clone, Copy)]
struct Shape {
    heads: Heads,
    dtype: DType,
    /// `None`: one block for a sequence.
    block_size: Option<usize>,
    batch: usize,
    queries: usize,
    keys: usize,
}

impl Shape {
    fn name(&self) -> String {
        let (q, kv, d) = self.heads;
        let block = self.block_size.map_or("whole".to_string(), |b| b.to_string());
        let Shape { dtype, batch, queries, keys, .. } = self;
        format!("{dtype} {q}/{kv}x{d} block {block} batch {batch} queries {queries} keys {keys}")
    }
}

/// `batch` sequences with `queries` new tokens each, over `keys` keys.
struct Case {
    shape: Shape,
    caches: Vec<KvCache>,
    next: usize,
    q: Tensor,
    out: Tensor,
    scratch: AttentionScratch,
    cu: Vec<i32>,
    kv: Vec<i32>,
    table: Vec<i32>,
    per_sequence: usize,
}

impl Case {
    fn new(rt: &Runtime, shape: Shape) -> Result<Self> {
        let Shape { heads: (q_heads, kv_heads, dim), dtype, batch, queries, keys, .. } = shape;
        let block_size = shape.block_size.unwrap_or(keys.next_multiple_of(16));
        let per_sequence = keys.div_ceil(block_size);
        let blocks = batch * per_sequence;
        let tokens = blocks * block_size;
        let values: Vec<f32> =
            (0..tokens * kv_heads * dim).map(|i| ((i * 31) % 97) as f32 * 0.01 - 0.48).collect();
        let kv = Tensor::from_slice(&values, &[tokens, kv_heads, dim])?;
        let slots: Vec<i64> = (0..tokens as i64).collect();
        let mut caches = vec![];
        while caches.iter().map(KvCache::bytes).sum::<usize>() < COLD {
            let mut cache = KvCache::new(blocks, block_size, kv_heads, dim, dtype)?;
            cache.write(rt, &slots, kv.view(), kv.view())?;
            caches.push(cache);
        }
        // Neighbours in a sequence lie apart in the pool, as they do after an hour of serving. 7919 is
        // a prime, so every block comes once.
        let scatter = |i: usize| (i * 7919 % blocks) as i32;
        let table: Vec<i32> = (0..blocks).map(scatter).collect();
        let t = batch * queries;
        Ok(Self {
            shape,
            caches,
            next: 0,
            q: Tensor::zeros(&[t, q_heads, dim], DType::F32, Device::Cpu)?,
            out: Tensor::zeros(&[t, q_heads * dim], DType::F32, Device::Cpu)?,
            scratch: AttentionScratch::new(rt, t, keys, q_heads, dim)?,
            cu: (0..=batch).map(|s| (s * queries) as i32).collect(),
            kv: vec![keys as i32; batch],
            table,
            per_sequence,
        })
    }

    fn run(&mut self, rt: &Runtime) -> Result<()> {
        self.next = (self.next + 1) % self.caches.len();
        let sequences = Sequences {
            cu_seqlens_q: &self.cu,
            seq_lens_kv: &self.kv,
            block_table: &self.table,
            max_blocks: self.per_sequence,
            device: None,
        };
        let params = AttentionParams { scale: 0.125, window: None };
        let (q, out) = (self.q.view(), self.out.view_mut());
        let cache = &self.caches[self.next];
        attention(rt, q, cache, sequences, params, &mut self.scratch, out)
    }

    /// Multiplications and additions that the mask leaves.
    fn flops(&self) -> f64 {
        let Shape { heads: (q_heads, _, dim), batch, queries, keys, .. } = self.shape;
        let per_sequence: usize = (0..queries).map(|i| keys - queries + i + 1).sum();
        (4 * batch * per_sequence * q_heads * dim) as f64
    }

    fn bytes(&self) -> f64 {
        self.caches[0].bytes() as f64
    }
}

fn shapes() -> Vec<Shape> {
    let base = |heads, batch, queries, keys| Shape {
        heads,
        dtype: DType::BF16,
        block_size: None,
        batch,
        queries,
        keys,
    };
    let mut all = vec![
        base(SMOL, 1, 512, 512),
        base(SMOL, 1, 128, 4096),
        base(SMOL, 1, 1, 1024),
        base(SMOL, 32, 1, 256),
    ];
    for decode in [
        base(SMOL, 8, 1, 4096),
        base(LLAMA, 8, 1, 4096),
        base(SMOL, 1, 1, 8192),
        base(ONE, 1, 1, 32768),
    ] {
        all.push(decode);
        all.extend([16, 8, 1].map(|size| Shape { block_size: Some(size), ..decode }));
        let narrow = Shape { dtype: DType::F8E4M3, ..decode };
        all.extend([narrow, Shape { block_size: Some(16), ..narrow }]);
        all.push(Shape { dtype: DType::F32, ..decode });
    }
    all
}

fn main() -> Result<()> {
    let threads = std::env::args().find_map(|a| a.strip_prefix("--threads=")?.parse().ok());
    let rt = Runtime::new(RuntimeOptions { threads, ..RuntimeOptions::cpu() })?;
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |s: &Shape| wanted.iter().all(|w| s.name().contains(w.as_str()));
    println!("{rt}");
    println!("      us (median)   of peak   of bandwidth");
    for shape in shapes().into_iter().filter(wanted) {
        let f32 = shape.dtype == DType::F32;
        let peak = flop_peak(&rt, if f32 { Precision::F32 } else { Precision::Bf16 });
        let mut case = Case::new(&rt, shape)?;
        let mut times = vec![];
        let begin = Instant::now();
        // Beside it: the bandwidth of a shared machine is another one a minute later.
        let mut bandwidth: f64 = 0.0;
        while begin.elapsed().as_secs_f64() < 1.5 {
            bandwidth = bandwidth.max(read_bandwidth(rt.pool()));
            for _ in 0..20 {
                let start = Instant::now();
                case.run(&rt)?;
                times.push(start.elapsed().as_secs_f64());
            }
        }
        times.sort_by(f64::total_cmp);
        let (best, median) = (times[0], times[times.len() / 2]);
        println!(
            "{:>8.1} ({:>8.1}) {:>6.0}% {:>13.0}%   {}",
            best * 1e6,
            median * 1e6,
            100.0 * case.flops() / best / peak,
            100.0 * case.bytes() / best / bandwidth,
            shape.name(),
        );
    }
    if std::env::args().any(|a| a == "--table") {
        return Ok(());
    }

    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("attention");
    for shape in shapes().into_iter().filter(wanted) {
        let mut case = Case::new(&rt, shape)?;
        let id = BenchmarkId::from_parameter(shape.name());
        group.bench_function(id, |b| b.iter(|| black_box(case.run(&rt).is_ok())));
    }
    group.finish();
    Ok(())
}
