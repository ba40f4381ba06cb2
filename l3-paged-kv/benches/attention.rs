//! Decode attention over blocks against the same over one run of memory for each sequence, on the
//! heads of SmolLM2-135M (9 query heads over 3 KV heads of 64) and of Llama-3.1-8B (32 over 8 of 128).
//!
//! Eight sequences of 4,096 tokens get one more token each. A *layer* of the table is what a model's
//! layer is: memory of its own, so that by the time the first comes again the last-level cache has
//! seen enough else. Blocks stand in random order, as they do after an hour of serving; the
//! contiguous state is the case of one block for each sequence.
//!
//! All variants take turns in one run, a round of one right after a round of the other, since on
//! shared machines the bandwidth changes from one minute to the next. The ratio is that of the
//! medians; bandwidth is measured in the same rounds.
//!
//! `cargo bench -p l3-paged-kv --bench attention -- [WORD..] [--threads=N] [--rounds=N]`; words are
//! looked for in the cases' names.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use l1_tensor::cpu::machine::read_bandwidth;
use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{DType, Device, Runtime, RuntimeOptions, Tensor};
use l2_model::{ModelConfig, Op};
use l3_paged_kv::{BlockTable, ForwardMeta, PagedKv};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BATCH: usize = 8;
const KEYS: usize = 4096;

/// Layers together hold at least this much.
const COLD: usize = 96 << 20;

/// A name, query heads, KV heads, elements of a head.
type Heads = (&'static str, usize, usize, usize);

const SHAPES: [Heads; 2] = [("smollm2", 9, 3, 64), ("llama-3.1-8b", 32, 8, 128)];

/// One block for each sequence, then blocks as a server has them.
const BLOCK_SIZES: [usize; 4] = [KEYS, 16, 8, 256];

/// tiny-llama's config with other heads.
fn config(heads: Heads, layers: usize) -> Result<ModelConfig> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama/config.json");
    let mut config = ModelConfig::from_hf_file(&path)?;
    let mut layer = config.layers.swap_remove(0);
    for branch in &mut layer.branches {
        if let Op::Attention(a) = &mut branch.op {
            (a.q_heads, a.kv_heads, a.head_dim) = (heads.1, heads.2, heads.3);
        }
    }
    config.layers = vec![layer; layers];
    Ok(config)
}

/// Sequences in blocks of one size, and a decode step over them.
struct Variant {
    block_size: usize,
    kv: PagedKv,
    meta: ForwardMeta,
    layers: usize,
    seconds: Vec<f64>,
}

impl Variant {
    fn new(rt: &Runtime, heads: Heads, dtype: DType, block_size: usize) -> Result<Self> {
        let (_, _, kv_heads, dim) = heads;
        let per_sequence = KEYS / block_size;
        let num_blocks = 1 + BATCH * per_sequence;
        let one = PagedKv::new(&config(heads, 1)?, 1, KEYS, dtype)?.bytes() * BATCH;
        let layers = COLD.div_ceil(one);
        let mut kv = PagedKv::new(&config(heads, layers)?, num_blocks, block_size, dtype)?;
        let order = shuffled(num_blocks);
        let tables: Vec<BlockTable> = order
            .chunks(per_sequence)
            .map(|blocks| BlockTable::from_blocks(block_size, blocks))
            .collect();
        // Keys and values for everybody, without attending: a sequence at a time.
        let values: Vec<f32> =
            (0..KEYS * kv_heads * dim).map(|i| ((i * 31) % 97) as f32 * 0.01 - 0.48).collect();
        let values = Tensor::from_slice(&values, &[KEYS, kv_heads, dim])?;
        let mut meta = ForwardMeta::new(KEYS, BATCH, per_sequence, block_size);
        for table in &tables {
            meta.clear();
            meta.push(table, 0, KEYS)?;
            for layer in 0..layers {
                kv.write(rt, layer, &meta, values.view(), values.view())?;
            }
        }
        meta.clear();
        for table in &tables {
            meta.push(table, KEYS - 1, 1)?;
        }
        Ok(Self { block_size, kv, meta, layers, seconds: vec![] })
    }

    /// A step through all layers.
    fn round(&mut self, rt: &Runtime, buffers: &mut Buffers) -> Result<()> {
        let started = Instant::now();
        for layer in 0..self.layers {
            let Buffers { q, kv, out, scratch, params } = buffers;
            let (q, k, v) = (q.view(), kv.view(), kv.view());
            let out = out.view_mut();
            self.kv.attend(rt, layer, &self.meta, q, k, v, *params, scratch, out)?;
        }
        self.seconds.push(started.elapsed().as_secs_f64() / self.layers as f64);
        Ok(())
    }
}

/// What a decode step brings along.
struct Buffers {
    q: Tensor,
    kv: Tensor,
    out: Tensor,
    scratch: AttentionScratch,
    params: AttentionParams,
}

impl Buffers {
    fn new(rt: &Runtime, (_, q_heads, kv_heads, dim): Heads) -> Result<Self> {
        let values: Vec<f32> =
            (0..BATCH * q_heads * dim).map(|i| ((i * 17) % 89) as f32 * 0.01 - 0.44).collect();
        Ok(Self {
            q: Tensor::from_slice(&values, &[BATCH, q_heads, dim])?,
            kv: Tensor::from_slice(&values[..BATCH * kv_heads * dim], &[BATCH, kv_heads, dim])?,
            out: Tensor::zeros(&[BATCH, q_heads * dim], rt.activation_dtype(), Device::Cpu)?,
            scratch: AttentionScratch::new(rt, BATCH, KEYS, q_heads, dim)?,
            params: AttentionParams { scale: 1.0 / (dim as f32).sqrt(), window: None },
        })
    }
}

/// Blocks `1..num_blocks`, in a random order that is the same in every run.
fn shuffled(num_blocks: usize) -> Vec<u32> {
    let mut blocks: Vec<u32> = (1..num_blocks as u32).collect();
    let mut x = 0x2545_f491_4f6c_dd1du64;
    for i in (1..blocks.len()).rev() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        blocks.swap(i, (x % (i as u64 + 1)) as usize);
    }
    blocks
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| args.iter().find_map(|a| a.strip_prefix(name)?.parse::<usize>().ok());
    let words: Vec<&String> = args.iter().filter(|a| !a.starts_with("--")).collect();
    let rt = Runtime::new(RuntimeOptions { threads: option("--threads="), ..Default::default() })?;
    let rounds = option("--rounds=").unwrap_or(31);
    println!("{rt}; batch {BATCH}, {KEYS} keys, medians of {rounds} rounds");
    println!(
        "{:<14} {:<8} {:<11} {:>10} {:>13} {:>9} {:>13}",
        "heads", "dtype", "blocks", "us a layer", "of contiguous", "GB/s", "of bandwidth"
    );
    for heads in SHAPES {
        for dtype in [DType::BF16, DType::F32, DType::F8E4M3] {
            let name = format!("{} {dtype}", heads.0).to_lowercase();
            if !words.is_empty() && !words.iter().any(|w| name.contains(&w.to_lowercase())) {
                continue;
            }
            let mut buffers = Buffers::new(&rt, heads)?;
            let variants = BLOCK_SIZES.iter().map(|size| Variant::new(&rt, heads, dtype, *size));
            let mut variants = variants.collect::<Result<Vec<_>>>()?;
            let mut bandwidth = vec![];
            // The first round touches memory for the first time.
            for round in 0..=rounds {
                for variant in &mut variants {
                    variant.round(&rt, &mut buffers)?;
                }
                if round == 0 {
                    variants.iter_mut().for_each(|v| v.seconds.clear());
                } else if round % 4 == 1 {
                    bandwidth.push(read_bandwidth(rt.pool()));
                }
            }
            let bandwidth = median(&bandwidth);
            let contiguous = median(&variants[0].seconds);
            for variant in &variants {
                let seconds = median(&variant.seconds);
                let bytes = (variant.kv.block_bytes() / variant.layers) as f64;
                let rate = bytes * (BATCH * KEYS / variant.block_size) as f64 / seconds;
                let blocks = match variant.block_size {
                    KEYS => "contiguous".to_string(),
                    size => format!("of {size}"),
                };
                println!(
                    "{:<14} {:<8} {:<11} {:>10.1} {:>13.3} {:>9.2} {:>12.0}%",
                    heads.0,
                    dtype.to_string(),
                    blocks,
                    seconds * 1e6,
                    contiguous / seconds,
                    rate / 1e9,
                    100.0 * rate / bandwidth,
                );
            }
        }
    }
    Ok(())
}
