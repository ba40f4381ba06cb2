//! A steady step of attention allocates nothing, however the work is cut and whatever the cache is.

#[path = "support/counting.rs"]
mod counting;
mod support;

use counting::fewest_allocations;
use l1_tensor::cpu::Isa;
use l1_tensor::ops::{AttentionParams, AttentionScratch, KvCache, Sequences, attention};
use l1_tensor::{DType, Device, Tensor};
use support::{noise, runtime};

const Q_HEADS: usize = 6;
const KV_HEADS: usize = 2;
const DIM: usize = 24;
const KEYS: usize = 1500;

#[test]
fn a_steady_step_over_blocks_allocates_nothing() {
    for (dtype, block_size) in [
        (DType::F32, 16),
        (DType::BF16, 8),
        (DType::BF16, 1),
        (DType::F8E4M3, 4),
        (DType::F8E4M3, 32),
    ] {
        // One query whose keys threads share, and many that are items of their own.
        for queries in [1, 100] {
            let rt = runtime(Isa::best(), 2);
            let blocks = KEYS.div_ceil(block_size);
            let mut cache = KvCache::new(blocks, block_size, KV_HEADS, DIM, dtype).unwrap();
            let kv = noise(queries * KV_HEADS * DIM, 1);
            let kv = Tensor::from_slice(&kv, &[queries, KV_HEADS, DIM]).unwrap();
            let slots: Vec<i64> = (KEYS - queries..KEYS).map(|s| s as i64).collect();
            let table: Vec<i32> = (0..blocks as i32).collect();
            let q = noise(queries * Q_HEADS * DIM, 2);
            let q = Tensor::from_slice(&q, &[queries, Q_HEADS, DIM]).unwrap();
            let mut out =
                Tensor::zeros(&[queries, Q_HEADS * DIM], DType::F32, Device::Cpu).unwrap();
            let mut scratch = AttentionScratch::new(&rt, queries, KEYS, Q_HEADS, DIM).unwrap();
            let mut step = || {
                cache.write(&rt, &slots, kv.view(), kv.view()).unwrap();
                let sequences = Sequences {
                    cu_seqlens_q: &[0, queries as i32],
                    seq_lens_kv: &[KEYS as i32],
                    block_table: &table,
                    max_blocks: blocks,
                    device: None,
                };
                let params = AttentionParams { scale: 0.2, window: None };
                let out = out.view_mut();
                attention(&rt, q.view(), &cache, sequences, params, &mut scratch, out).unwrap();
            };
            step();
            let made = fewest_allocations(5, step);
            assert_eq!(made, 0, "{queries} queries over {dtype} in blocks of {block_size} on {rt}");
        }
    }
}
