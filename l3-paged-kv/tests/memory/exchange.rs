//! Keys and values that leave the memory as bytes and come back in other blocks.

use std::path::Path;

use crate::judge;
use crate::paging::{Heads, Text, runtime, shuffled};
use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{DType, Device, Precision, Runtime, Tensor};
use l2_model::{ModelConfig, Op};
use l3_paged_kv::{BlockTable, ForwardMeta, KvError, PagedKv};

const LAYERS: usize = 3;
/// Grouped queries, and heads that are no multiple of a tile's sixteen.
const GROUPED: Heads = Heads { q: 6, kv: 2, dim: 20, window: None };
const ALONE: Heads = Heads { q: 2, kv: 2, dim: 16, window: None };
const DTYPES: [(DType, Precision); 3] = [
    (DType::F32, Precision::F32),
    (DType::BF16, Precision::Bf16),
    (DType::F8E4M3, Precision::Bf16),
];

/// A model of three layers, of which the second one has half the heads of the others.
fn config(heads: Heads) -> ModelConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama/config.json");
    let mut config = ModelConfig::from_hf_file(&path).unwrap();
    config.layers.truncate(LAYERS);
    for (layer, branches) in config.layers.iter_mut().enumerate() {
        for branch in &mut branches.branches {
            if let Op::Attention(a) = &mut branch.op {
                let kv = if layer == 1 { heads.kv / 2 } else { heads.kv };
                (a.q_heads, a.kv_heads, a.head_dim) = (heads.q, kv, heads.dim);
            }
        }
    }
    config
}

fn heads_of(layer: usize, heads: Heads) -> Heads {
    if layer == 1 { Heads { kv: heads.kv / 2, ..heads } } else { heads }
}

/// Stores and attends a run of tokens of each layer's own text. Returns the output of each layer.
fn feed(
    rt: &Runtime,
    kv: &mut PagedKv,
    heads: Heads,
    table: &[u32],
    (from, to): (usize, usize),
) -> Vec<Vec<f32>> {
    let (size, n) = (kv.block_size(), to - from);
    let mut meta = ForwardMeta::new(n, 1, table.len(), size);
    meta.push(&BlockTable::from_blocks(size, table), from, n).unwrap();
    let mut scratch = AttentionScratch::new(rt, n, table.len() * size, heads.q, heads.dim).unwrap();
    let attend = |layer: usize| {
        let heads = heads_of(layer, heads);
        let text = Text::new(heads, to, layer as u64 + 1);
        let tensor = |x: &[f32], heads: usize, dim: usize| {
            Tensor::from_slice(&x[from * heads * dim..], &[n, heads, dim]).unwrap()
        };
        let q = tensor(&text.q, heads.q, heads.dim);
        let (k, v) = (tensor(&text.k, heads.kv, heads.dim), tensor(&text.v, heads.kv, heads.dim));
        let mut out = Tensor::zeros(&[n, heads.q * heads.dim], DType::F32, Device::Cpu).unwrap();
        let params = AttentionParams { scale: heads.scale(), window: None };
        let (q, k, v) = (q.view(), k.view(), v.view());
        kv.attend(rt, layer, &meta, q, k, v, params, &mut scratch, out.view_mut()).unwrap();
        out.to_vec_f32().unwrap()
    };
    (0..LAYERS).map(attend).collect()
}

#[test]
fn attention_over_blocks_that_came_back_has_the_bits_of_the_originals() {
    for (dtype, precision) in DTYPES {
        for heads in [GROUPED, ALONE] {
            for size in [8, 16, 32] {
                let (rt, config) = (runtime(precision, 1), config(heads));
                let (blocks, len) = (12, 3 * size);
                let places = shuffled(blocks - 1, 7);
                let block = |i: usize| places[i] + 1;
                let from = [block(0), block(1), block(2), block(3)];
                let mut kv = PagedKv::new(&config, blocks, size, dtype).unwrap();
                feed(&rt, &mut kv, heads, &from, (0, len));
                // In another memory, where strangers have been, in other blocks.
                let mut other = PagedKv::new(&config, blocks, size, dtype).unwrap();
                let all: Vec<u32> = (1..blocks as u32).collect();
                feed(&rt, &mut other, heads, &all, (0, (blocks - 1) * size));
                let to = [block(4), block(9), block(6), block(2)];
                for layer in 0..LAYERS {
                    let mut bytes = vec![0; 3 * kv.exchange_bytes(layer)];
                    kv.read_blocks(&from[..3], layer, &mut bytes).unwrap();
                    other.write_blocks(&to[..3], layer, &bytes).unwrap();
                }
                let want = feed(&rt, &mut kv, heads, &from, (len, len + 5));
                let got = feed(&rt, &mut other, heads, &to, (len, len + 5));
                for (layer, (got, want)) in got.iter().zip(&want).enumerate() {
                    let what = format!("layer {layer} in {dtype}, blocks of {size}, {heads:?}");
                    judge::same_bits(&what, &[5, heads.q, heads.dim], got, want);
                }
            }
        }
    }
}

/// The order of tokens does not depend on the size of blocks: what is of a token is the same in all of them.
#[test]
fn keys_of_a_token_are_the_same_bytes_in_blocks_of_any_size() {
    for (dtype, precision) in DTYPES {
        let (rt, config) = (runtime(precision, 1), config(GROUPED));
        let keys = |size: usize| {
            let table: Vec<u32> = (1..=(64 / size) as u32).collect();
            let mut kv = PagedKv::new(&config, table.len() + 1, size, dtype).unwrap();
            feed(&rt, &mut kv, GROUPED, &table, (0, 64));
            let mut bytes = vec![0; table.len() * kv.exchange_bytes(0)];
            kv.read_blocks(&table, 0, &mut bytes).unwrap();
            let of_keys = size * GROUPED.kv * GROUPED.dim * dtype.size();
            let blocks = bytes.chunks_exact(kv.exchange_bytes(0));
            blocks.flat_map(|block| block[..of_keys].to_vec()).collect::<Vec<u8>>()
        };
        let want = keys(16);
        for size in [8, 32, 64] {
            assert!(keys(size) == want, "keys in {dtype}, blocks of {size} against blocks of 16");
        }
    }
}

#[test]
fn the_bytes_of_a_block_are_counted_in_the_docs_layout() {
    for (dtype, size, scale) in [(DType::F32, 4, 0), (DType::BF16, 2, 0), (DType::F8E4M3, 1, 1)] {
        let kv = PagedKv::new(&config(GROUPED), 2, 8, dtype).unwrap();
        for (layer, heads) in [(0, 2), (1, 1), (2, 2)] {
            let want = 2 * 8 * heads * (20 * size + scale);
            assert_eq!(kv.exchange_bytes(layer), want, "layer {layer} in {dtype}");
        }
        assert_eq!(kv.exchange_bytes(LAYERS), 0, "a layer that is not there");
    }
}

#[test]
fn wrong_lengths_blocks_and_layers_are_typed_errors() {
    let mut kv = PagedKv::new(&config(ALONE), 4, 16, DType::BF16).unwrap();
    let mut bytes = vec![0; 2 * kv.exchange_bytes(0)];
    let short = bytes.len() - 1;
    let read = kv.read_blocks(&[1, 2], 0, &mut bytes[..short]);
    judge::fails_with!("a buffer that is too short", read, KvError::Tensor(_));
    let write = kv.write_blocks(&[1], 0, &bytes);
    judge::fails_with!("bytes of two blocks for one", write, KvError::Tensor(_));
    let read = kv.read_blocks(&[1, 4], 0, &mut bytes);
    judge::fails_with!("block 4 of 4", read, KvError::UnknownBlock { block: 4, num_blocks: 4 });
    let write = kv.write_blocks(&[u32::MAX, 1], 0, &bytes);
    judge::fails_with!("a block far beyond", write, KvError::UnknownBlock { block: u32::MAX, .. });
    let read = kv.read_blocks(&[1, 2], LAYERS, &mut bytes);
    judge::fails_with!("a layer that is not there", read, KvError::Malformed(_));
    let write = kv.write_blocks(&[1, 2], LAYERS, &bytes);
    judge::fails_with!("a layer that is not there", write, KvError::Malformed(_));
}
