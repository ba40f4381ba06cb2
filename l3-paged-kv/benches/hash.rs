//! What naming a prompt's blocks costs.
//!
//! `cargo bench -p l3-paged-kv --bench hash`. Workload: 3,000 tokens in 187 blocks of 16, ids as they
//! occur with a vocabulary of 128,000, hashed into a chain whose memory is there. Baseline: sha256
//! alone, over the same bytes encoded beforehand; what is above it is encoding.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use l3_paged_kv::{BlockHasher, ExtraKeys, TokenChain};
use sha2::{Digest, Sha256};

const TOKENS: usize = 3000;
const BLOCK_SIZE: usize = 16;

fn prompt() -> Vec<u32> {
    // Knuth's multiplicative hash: any ids will do, as long as most take five bytes of CBOR.
    (0..TOKENS as u32).map(|i| i.wrapping_mul(2_654_435_761) % 128_000).collect()
}

fn hash_a_prompt(c: &mut Criterion) {
    let (hasher, tokens) = (BlockHasher::new(BLOCK_SIZE), prompt());
    let mut group = c.benchmark_group("hash_3000_tokens");
    group.throughput(Throughput::Elements(TOKENS as u64));

    let empty = || TokenChain::with_capacity(&hasher, ExtraKeys::default(), TOKENS);
    group.bench_function("chain", |b| {
        let hash = |chain: &mut TokenChain| chain.extend(black_box(&tokens));
        b.iter_batched_ref(empty, hash, BatchSize::SmallInput);
    });

    let keys = ExtraKeys {
        lora: Some(("sql".into(), "/adapters/sql#sha256=0123456789abcdef".into())),
        cache_salt: Some("tenant".into()),
    };
    let with_keys = || TokenChain::with_capacity(&hasher, keys.clone(), TOKENS);
    group.bench_function("chain_with_an_adapter", |b| {
        let hash = |chain: &mut TokenChain| chain.extend(black_box(&tokens));
        b.iter_batched_ref(with_keys, hash, BatchSize::SmallInput);
    });

    let encoded: Vec<Vec<u8>> = tokens
        .chunks_exact(BLOCK_SIZE)
        .map(|block| hasher.encoded(None, 1, block, &ExtraKeys::default()))
        .collect();
    group.bench_function("sha256_alone", |b| {
        b.iter(|| {
            for bytes in &encoded {
                black_box(Sha256::digest(bytes));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, hash_a_prompt);
criterion_main!(benches);
