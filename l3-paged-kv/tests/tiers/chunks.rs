//! Sequences in chunks: which are found, and their bytes in blocks.

use std::path::Path;

use l1_tensor::{DType, Precision, Runtime, RuntimeOptions, Tensor};
use l2_model::{ModelConfig, ModelDigest};
use l3_paged_kv::tier::{
    ChunkBytes, ChunkKey, ChunkLayout, DramTier, KeySpace, KvTier, Numerics, Presence, Ticket,
    TierCompletion, TierOutcome, TierStats,
};
use l3_paged_kv::{BlockHasher, ExtraKeys, TokenChain};
use l3_paged_kv::{BlockTable, ForwardMeta, GroupId, KvError, PagedKv};

use crate::judge;
use crate::support::{bytes, key, wait};

fn config() -> ModelConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama/config.json");
    ModelConfig::from_hf_file(&path).unwrap()
}

fn runtime() -> Runtime {
    let precision = l1_tensor::PrecisionRequest::Exactly(Precision::Bf16);
    Runtime::new(RuntimeOptions { precision, threads: Some(1), ..RuntimeOptions::cpu() }).unwrap()
}

#[test]
fn a_chunk_is_whole_blocks() {
    let layout = ChunkLayout::new(16, 256).unwrap();
    assert_eq!((layout.blocks(), layout.tokens(), layout.block_size()), (16, 256, 16));
    for (block, tokens) in [(16, 0), (16, 8), (16, 250), (0, 16), (0, 0)] {
        let made = ChunkLayout::new(block, tokens);
        let what = format!("chunks of {tokens} tokens in blocks of {block}");
        let error = judge::fails_with!(what, made, KvError::BadConfig(_));
        assert!(error.to_string().contains("multiple of the block size"), "{error}");
    }
}

#[test]
fn only_a_prefix_without_a_gap_counts() {
    let layout = ChunkLayout::new(4, 8).unwrap();
    let keys: Vec<ChunkKey> = (0..5).map(key).collect();
    let mut tier = DramTier::new(1 << 20);
    let mut matched = |has: &[u64], from: usize| {
        for n in has {
            tier.put(&key(*n), bytes(*n, 10));
        }
        layout.matched_tokens(&mut tier, &keys, from)
    };
    assert_eq!(matched(&[], 0), Some(0));
    assert_eq!(matched(&[1, 2], 0), Some(0), "the first chunk is missing");
    assert_eq!(matched(&[], 8), Some(16), "the pool has the first chunk");
    assert_eq!(matched(&[], 12), Some(12), "and half of the second one");
    assert_eq!(matched(&[0, 4], 0), Some(24), "the fourth one is missing");
    assert_eq!(matched(&[], 4), Some(20));
    assert_eq!(matched(&[], 24), Some(0));
    assert_eq!(matched(&[], 28), Some(0));
    assert_eq!(matched(&[3], 0), Some(40));
    assert_eq!(matched(&[], 40), Some(0));
    assert_eq!(matched(&[], 1000), Some(0), "beyond all chunks");
}

/// A tier that knows of some keys only later.
struct Looking(ChunkKey);

impl KvTier for Looking {
    fn name(&self) -> &'static str {
        "looking"
    }

    fn contains(&mut self, key: &ChunkKey) -> Presence {
        if *key == self.0 { Presence::Unknown } else { Presence::Present }
    }

    fn get(&mut self, _: &ChunkKey) -> Ticket {
        Ticket(0)
    }

    fn put(&mut self, _: &ChunkKey, _: ChunkBytes) -> Ticket {
        Ticket(0)
    }

    fn poll(&mut self, _: &mut Vec<TierCompletion>) {}

    fn stats(&self) -> TierStats {
        TierStats::default()
    }
}

#[test]
fn a_tier_that_is_looking_is_asked_again() {
    let layout = ChunkLayout::new(4, 8).unwrap();
    let keys: Vec<ChunkKey> = (0..3).map(key).collect();
    assert_eq!(layout.matched_tokens(&mut Looking(key(1)), &keys, 0), None);
    assert_eq!(layout.matched_tokens(&mut Looking(key(1)), &keys, 16), Some(8));
}

/// A memory in which blocks 1.. hold tokens that all layers and places differ in.
fn filled(blocks: usize, size: usize, dtype: DType) -> PagedKv {
    let (rt, config) = (runtime(), config());
    let mut kv = PagedKv::new(&config, blocks, size, dtype).unwrap();
    let table: Vec<u32> = (1..blocks as u32).collect();
    let tokens = table.len() * size;
    let mut meta = ForwardMeta::new(tokens, 1, table.len(), size);
    meta.push(&BlockTable::from_blocks(size, &table), 0, tokens).unwrap();
    for (layer, a) in config.attention_layers() {
        let dims = [tokens, a.kv_heads, a.head_dim];
        let rows = |seed: usize| {
            let n = dims.iter().product::<usize>();
            let x: Vec<f32> = (0..n).map(|i| ((i * 7 + seed) % 251) as f32 / 64.0 - 1.9).collect();
            Tensor::from_slice(&x, &dims).unwrap()
        };
        kv.write(&rt, layer, &meta, rows(layer).view(), rows(layer + 100).view()).unwrap();
    }
    kv
}

/// The bytes of blocks in every layer.
fn contents(kv: &PagedKv, blocks: &[u32]) -> Vec<Vec<u8>> {
    let of = |layer: usize| {
        let mut out = vec![0; blocks.len() * kv.exchange_bytes(layer)];
        kv.read_blocks(blocks, layer, &mut out).unwrap();
        out
    };
    (0..kv.num_layers()).map(of).collect()
}

#[test]
fn a_sequence_goes_through_a_tier_and_comes_back_in_other_blocks() {
    for (dtype, size) in [(DType::BF16, 8), (DType::F8E4M3, 16), (DType::BF16, 32)] {
        let layout = ChunkLayout::new(size, 2 * size).unwrap();
        let numerics = Numerics { weights: "bf16".into(), activations: DType::F32, kv: dtype };
        let space = KeySpace::new(&ModelDigest([5; 32]), None, &numerics, layout);
        let mut chain = TokenChain::new(&BlockHasher::new(size), ExtraKeys::default());
        chain.extend(&(0..5 * size as u32).collect::<Vec<_>>());
        let keys = layout.keys(&space, GroupId(0), chain.hashes());
        assert_eq!(keys.len(), 2, "whole chunks of five blocks");
        let source = filled(6, size, dtype);
        let mut tier = DramTier::new(1 << 24);
        for (key, blocks) in keys.iter().zip([[1, 2], [3, 4]]) {
            let mut out = vec![0; source.chunk_bytes(2)];
            source.read_chunk(&blocks, &mut out).unwrap();
            tier.put(key, out.into());
        }
        assert_eq!(layout.matched_tokens(&mut tier, &keys, size), Some(3 * size));
        // The pool has the first block still: it is block 7 there. Three come from the tier.
        let mut kv = filled(9, size, dtype);
        let others = contents(&kv, &[0, 1, 3, 5, 7, 8]);
        for (key, first, to) in [(&keys[0], 1, &[6][..]), (&keys[1], 0, &[2, 4])] {
            let ticket = tier.get(key);
            let TierOutcome::Hit(bytes) = wait(&mut tier, ticket) else { panic!("a miss") };
            kv.write_chunk(to, first, 2, &bytes).unwrap();
        }
        assert!(contents(&kv, &[6, 2, 4]) == contents(&source, &[2, 3, 4]), "{dtype}, {size}");
        assert!(contents(&kv, &[0, 1, 3, 5, 7, 8]) == others, "the other blocks, {dtype}, {size}");
    }
}

#[test]
fn chunks_that_do_not_fit_are_refused_and_change_nothing() {
    let mut kv = filled(6, 8, DType::BF16);
    let before = contents(&kv, &[0, 1, 2, 3, 4, 5]);
    let bytes = vec![0; kv.chunk_bytes(2)];
    let short = kv.write_chunk(&[1, 2], 0, 2, &bytes[1..]);
    judge::fails_with!("a chunk without its first byte", short, KvError::Malformed(_));
    let other = kv.write_chunk(&[1, 2, 3], 0, 3, &bytes);
    judge::fails_with!("two blocks as three", other, KvError::Malformed(_));
    let beyond = kv.write_chunk(&[1, 2], 1, 2, &bytes);
    judge::fails_with!("more blocks than there are", beyond, KvError::Malformed(_));
    let overflow = kv.write_chunk(&[1], usize::MAX, 2, &bytes);
    judge::fails_with!("a first block far beyond", overflow, KvError::Malformed(_));
    let unknown = kv.write_chunk(&[1, 6], 0, 2, &bytes);
    judge::fails_with!("block 6 of 6", unknown, KvError::UnknownBlock { .. });
    let mut out = vec![0; kv.chunk_bytes(2) + 1];
    judge::fails_with!("a byte too many", kv.read_chunk(&[1, 2], &mut out), KvError::Malformed(_));
    assert!(contents(&kv, &[0, 1, 2, 3, 4, 5]) == before);
}
