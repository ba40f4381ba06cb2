//! A profile counts the calls and the work of ops, for the runtime that it was given to and for no other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use l1_tensor::cpu::ThreadPool;
use l1_tensor::ops::{
    AttentionParams, AttentionScratch, Epilogue, KvCache, Sequences, attention, embedding, linear,
    linear_low_rank,
};
use l1_tensor::{
    DType, Device, LowRank, OpKind, OpTotals, Profile, RowOrder, Runtime, RuntimeOptions, Tensor,
    Weight, WeightId,
};

fn runtime() -> Runtime {
    Runtime::new(RuntimeOptions { threads: Some(2), ..RuntimeOptions::cpu() }).unwrap()
}

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, DType::F32, Device::Cpu).unwrap()
}

fn weight(rt: &Runtime, n: usize, k: usize) -> Weight {
    let fill = |_: usize, row: &mut [f32]| -> l1_tensor::Result<()> {
        row.fill(0.5);
        Ok(())
    };
    Weight::load(rt, n, k, RowOrder::Plain, &fill).unwrap()
}

/// Calls, bytes and operations.
fn counts(totals: &OpTotals) -> (u64, u64, u64) {
    (totals.calls, totals.work.bytes, totals.work.flops)
}

#[test]
fn matmuls_are_counted_by_weight_and_only_on_the_profiled_runtime() {
    let rt = runtime();
    let profile = Arc::new(Profile::default());
    let profiled = rt.profiled(&profile).unwrap();
    let (a, b) = (weight(&rt, 48, 20), weight(&rt, 20, 48));
    let (x, mut y) = (zeros(&[3, 20]), zeros(&[3, 48]));
    for rt in [&profiled, &rt, &profiled] {
        linear(rt, x.view(), &a, None, Epilogue::Store, y.view_mut()).unwrap();
    }
    linear(&profiled, y.view(), &b, None, Epilogue::Store, zeros(&[3, 20]).view_mut()).unwrap();
    let totals = profile.take();
    let of = |w: &Weight| counts(&totals[&OpKind::Matmul(WeightId::of(w))]);
    assert_eq!(of(&a), (2, 2 * a.bytes() as u64, 2 * (2 * 3 * 48 * 20)));
    assert_eq!(of(&b), (1, b.bytes() as u64, 2 * 3 * 48 * 20));
    assert_eq!(totals.len(), 2);
    assert!(profile.take().is_empty(), "what was taken is gone");
}

#[test]
fn a_side_term_counts_both_of_its_matmuls_once() {
    let rt = runtime();
    let profile = Arc::new(Profile::default());
    let profiled = rt.profiled(&profile).unwrap();
    let side = LowRank { a: weight(&rt, 4, 20), b: weight(&rt, 48, 4), scale: 2.0 };
    let bytes = (side.a.bytes() + side.b.bytes()) as u64;
    let (x, mut low, mut out) = (zeros(&[3, 20]), zeros(&[3, 4]), zeros(&[3, 48]));
    linear_low_rank(&profiled, x.view(), &side, low.view_mut(), out.view_mut()).unwrap();
    let totals = profile.take();
    assert_eq!(totals.keys().collect::<Vec<_>>(), [&OpKind::LowRank]);
    assert_eq!(counts(&totals[&OpKind::LowRank]), (1, bytes, 2 * 3 * 4 * (20 + 48)));
}

#[test]
fn an_embedding_counts_the_rows_that_it_reads() {
    let rt = runtime();
    let profile = Arc::new(Profile::default());
    let profiled = rt.profiled(&profile).unwrap();
    let table = weight(&rt, 48, 20);
    embedding(&profiled, &table, &[1u32, 7, 1][..], zeros(&[3, 20]).view_mut()).unwrap();
    let row = (table.bytes() / table.n()) as u64;
    assert_eq!(counts(&profile.take()[&OpKind::Embedding]), (1, 3 * row, 0));
}

/// Keys that the queries of sequences see, and pairs of a query and a key, one by one.
fn seen(sequences: &[(usize, usize)], window: Option<usize>) -> (u64, u64) {
    let (mut keys, mut pairs) = (0, 0);
    for (q_len, kv_len) in sequences {
        let sees = |query: usize, key: usize| {
            let at = kv_len - q_len + query;
            key <= at && window.is_none_or(|window| at - key < window)
        };
        let queries = |key: usize| (0..*q_len).filter(|query| sees(*query, key)).count() as u64;
        keys += (0..*kv_len).filter(|key| queries(*key) > 0).count() as u64;
        pairs += (0..*kv_len).map(queries).sum::<u64>();
    }
    (keys, pairs)
}

#[test]
fn attention_counts_the_keys_and_the_products_that_queries_see() {
    let (heads, kv_heads, dim, block_size) = (4, 2, 16, 16);
    let rt = runtime();
    let profile = Arc::new(Profile::default());
    let profiled = rt.profiled(&profile).unwrap();
    for dtype in [DType::F32, DType::BF16, DType::F8E4M3] {
        let mut cache = KvCache::new(8, block_size, kv_heads, dim, dtype).unwrap();
        let token = (cache.block_bytes() / block_size) as u64;
        for window in [None, Some(1), Some(5), Some(64)] {
            // A prompt, a chunk behind cached keys, a decode, and a row of padding without keys.
            let sequences = [(7, 7), (3, 20), (1, 30), (0, 0)];
            let tokens: usize = sequences.iter().map(|(q_len, _)| q_len).sum();
            let cu_seqlens_q = [0, 7, 10, 11, 11];
            let seq_lens_kv = sequences.map(|(_, kv_len)| kv_len as i32);
            let block_table = [0, -1, 1, 2, 3, 4, -1, -1];
            let kv = zeros(&[tokens, kv_heads, dim]);
            let mut slots: Vec<i64> = (0..tokens as i64).collect();
            slots[tokens - 1] = -1;
            cache.write(&profiled, &slots[..], kv.view(), kv.view()).unwrap();
            let mut scratch = AttentionScratch::new(&rt, tokens, 32, heads, dim).unwrap();
            let mut out = zeros(&[tokens, heads * dim]);
            attention(
                &profiled,
                zeros(&[tokens, heads, dim]).view(),
                &cache,
                Sequences {
                    cu_seqlens_q: &cu_seqlens_q,
                    seq_lens_kv: &seq_lens_kv,
                    block_table: &block_table,
                    max_blocks: 2,
                    device: None,
                },
                AttentionParams { scale: 1.0, window },
                &mut scratch,
                out.view_mut(),
            )
            .unwrap();
            let (keys, pairs) = seen(&sequences, window);
            let totals = profile.take();
            let flops = 4 * pairs * (heads * dim) as u64;
            let what = format!("{dtype}, window {window:?}");
            assert_eq!(counts(&totals[&OpKind::Attention]), (1, keys * token, flops), "{what}");
            let written = (tokens as u64 - 1) * token;
            assert_eq!(counts(&totals[&OpKind::KvWrite]), (1, written, 0), "{what}");
        }
    }
}

#[test]
fn a_pool_adds_up_its_callers_waits_while_they_are_timed() {
    let pool = ThreadPool::new(2);
    if pool.threads() < 2 {
        return;
    }
    // Both threads have a chunk; the helper keeps its own for a while after the caller's is done.
    let run = || {
        let (both, helpers) = (Barrier::new(2), AtomicUsize::new(0));
        pool.run(2, &|_chunk, worker| {
            both.wait();
            if worker != 0 {
                helpers.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert_eq!(helpers.into_inner(), 1);
    };
    run();
    assert_eq!(pool.waited(), Duration::ZERO, "off at first");
    pool.time_waits(true);
    run();
    let waited = pool.waited();
    assert!(waited > Duration::ZERO);
    pool.time_waits(false);
    run();
    assert_eq!(pool.waited(), waited);
}
