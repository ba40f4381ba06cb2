//! How close attention comes to the multipliers' peak (prefill) and to the memory's bandwidth
//! (decode), on the heads of SmolLM2-135M: 9 query heads over 3 KV heads of 64.
//!
//! The table printed first takes the best of many short runs, which is what means something on a
//! machine that does other things too; criterion follows.

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion};
use l1_tensor::cpu::machine::{flop_peak, read_bandwidth};
use l1_tensor::ops::{AttentionParams, AttentionScratch, KvCache, Sequences, TILE, attention};
use l1_tensor::{DType, Device, Precision, Result, Runtime, RuntimeOptions, Tensor};

const Q_HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;

/// `sequences` sequences with `queries` new tokens each, over `keys` keys.
struct Case {
    cache: KvCache,
    q: Tensor,
    out: Tensor,
    scratch: AttentionScratch,
    cu: Vec<i32>,
    kv: Vec<i32>,
    tiles: Vec<u32>,
    rows: Vec<usize>,
}

impl Case {
    fn new(
        rt: &Runtime,
        dtype: DType,
        sequences: usize,
        queries: usize,
        keys: usize,
    ) -> Result<Self> {
        let per = keys.div_ceil(TILE);
        let mut cache = KvCache::new(sequences * per, KV_HEADS, DIM, dtype)?;
        let tokens = sequences * per * TILE;
        let values: Vec<f32> =
            (0..tokens * KV_HEADS * DIM).map(|i| ((i * 31) % 97) as f32 * 0.01 - 0.48).collect();
        let kv = Tensor::from_slice(&values, &[tokens, KV_HEADS, DIM])?;
        let slots: Vec<i64> = (0..tokens as i64).collect();
        cache.write(rt, &slots, kv.view(), kv.view())?;
        let t = sequences * queries;
        Ok(Self {
            cache,
            q: Tensor::zeros(&[t, Q_HEADS, DIM], DType::F32, Device::Cpu)?,
            out: Tensor::zeros(&[t, Q_HEADS * DIM], dtype, Device::Cpu)?,
            scratch: AttentionScratch::new(rt, t, keys, Q_HEADS, KV_HEADS, DIM)?,
            cu: (0..=sequences).map(|s| (s * queries) as i32).collect(),
            kv: vec![keys as i32; sequences],
            tiles: (0..(sequences * per) as u32).collect(),
            rows: (0..sequences).map(|s| s * per).collect(),
        })
    }

    fn run(&mut self, rt: &Runtime) -> Result<()> {
        let sequences = Sequences {
            cu_seqlens_q: &self.cu,
            seq_lens_kv: &self.kv,
            tile_table: &self.tiles,
            table_rows: &self.rows,
        };
        let params = AttentionParams { scale: 0.125, window: None };
        let (q, out) = (self.q.view(), self.out.view_mut());
        attention(rt, q, &self.cache, sequences, params, &mut self.scratch, out)
    }

    /// Multiplications and additions that the mask leaves.
    fn flops(&self, queries: usize, keys: usize) -> f64 {
        let per_sequence: usize = (0..queries).map(|i| keys - queries + i + 1).sum();
        (4 * self.kv.len() * per_sequence * Q_HEADS * DIM) as f64
    }

    fn bytes(&self) -> f64 {
        (self.cache.tiles() * self.cache.tile_bytes()) as f64
    }
}

fn main() -> Result<()> {
    let rt = Runtime::new(RuntimeOptions::default())?;
    let cases = [(1, 512, 512), (1, 128, 4096), (1, 1, 1024), (8, 1, 256), (32, 1, 256)];
    println!("{rt}");
    let bandwidth = read_bandwidth(rt.pool());
    println!("dtype  batch  queries  keys       us   of peak   of bandwidth");
    for (dtype, precision) in [(DType::BF16, Precision::Bf16), (DType::F32, Precision::F32)] {
        let peak = flop_peak(&rt, precision);
        for (batch, queries, keys) in cases {
            let mut case = Case::new(&rt, dtype, batch, queries, keys)?;
            let mut best = f64::INFINITY;
            for _ in 0..200 {
                let start = Instant::now();
                case.run(&rt)?;
                best = best.min(start.elapsed().as_secs_f64());
            }
            println!(
                "{dtype:<6} {batch:>5} {queries:>8} {keys:>5} {:>8.1} {:>8.0}% {:>13.0}%",
                best * 1e6,
                100.0 * case.flops(queries, keys) / best / peak,
                100.0 * case.bytes() / best / bandwidth,
            );
        }
    }

    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("attention");
    for (batch, queries, keys) in cases {
        let mut case = Case::new(&rt, rt.activation_dtype(), batch, queries, keys)?;
        let id = BenchmarkId::from_parameter(format!("{batch}x{queries}x{keys}"));
        group.bench_function(id, |b| b.iter(|| black_box(case.run(&rt).is_ok())));
    }
    group.finish();
    Ok(())
}
