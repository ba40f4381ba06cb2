//! The readable paged attention, against attention over keys that were never in a block.

use crate::judge;
use crate::paging::{Heads, Text, runtime, shuffled};
use l1_tensor::ops::{AttentionParams, KvCache};
use l1_tensor::{DType, Precision, Tensor};
use l3_paged_kv::reference::paged_attention;
use l3_paged_kv::{BlockTable, ForwardMeta, KvError};

/// Sums of some dozens of numbers below 1, in f32.
const ALLOWED: f32 = 2e-6;

/// Store sequences of `lens` tokens in blocks here and there, attend with the last `q_lens` queries of
/// each and two rows of padding, and look at every row.
#[track_caller]
fn check(heads: Heads, block_size: usize, lens: &[usize], q_lens: &[usize]) {
    let rt = runtime(Precision::F32, 1);
    let needed: Vec<usize> = lens.iter().map(|len| len.div_ceil(block_size)).collect();
    let num_blocks = 2 * needed.iter().sum::<usize>() + 3;
    let mut cache = KvCache::new(num_blocks, block_size, heads.kv, heads.dim, DType::F32).unwrap();
    // Whoever was here before left what is not a number.
    let places = num_blocks * block_size;
    let dims = [places, heads.kv, heads.dim];
    let nan = Tensor::from_slice(&vec![f32::NAN; dims.iter().product()], &dims).unwrap();
    let slots: Vec<i64> = (0..places as i64).collect();
    cache.write(&rt, &slots, nan.view(), nan.view()).unwrap();

    let mut blocks = shuffled(num_blocks, 7).into_iter();
    let mut meta = ForwardMeta::new(100, lens.len() + 2, 70, block_size);
    let (mut q, mut expected) = (vec![], vec![]);
    for (i, len) in lens.iter().enumerate() {
        let text = Text::new(heads, *len, i as u64 + 1);
        let table: Vec<u32> = blocks.by_ref().take(needed[i]).collect();
        let slot = |p: usize| table[p / block_size] as usize * block_size + p % block_size;
        let slots: Vec<i64> = (0..*len).map(|p| slot(p) as i64).collect();
        let tensor = |x: &[f32]| Tensor::from_slice(x, &[*len, heads.kv, heads.dim]).unwrap();
        cache.write(&rt, &slots, tensor(&text.k).view(), tensor(&text.v).view()).unwrap();
        let first = len - q_lens[i];
        meta.push(&BlockTable::from_blocks(block_size, &table), first, q_lens[i]).unwrap();
        q.extend_from_slice(&text.q[first * heads.q * heads.dim..]);
        expected.extend((first..*len).flat_map(|p| text.attended(heads, p)));
    }
    let rows = meta.tokens() + 2;
    meta.pad_to(lens.len() + 2).unwrap();
    q.resize(rows * heads.q * heads.dim, f32::NAN);
    expected.resize(q.len(), 0.0);

    let mut got = vec![f32::NAN; q.len()];
    let params = AttentionParams { scale: heads.scale(), window: heads.window };
    let done = paged_attention(&cache, &meta, params, &q, heads.q, &mut got);
    judge::works("the readable paged attention", done);
    let what = format!(
        "paged_attention of the reference, sequences of {lens:?} tokens, queries {q_lens:?} and two rows of padding, blocks of {block_size}, {heads:?}"
    );
    judge::close(&what, &[rows, heads.q, heads.dim], &got, &expected, ALLOWED);
}

const HEADS: Heads = Heads { q: 6, kv: 2, dim: 16, window: None };

#[test]
fn the_reference_attends_over_the_tokens_that_the_table_names() {
    for block_size in [1, 4, 16, 32] {
        check(HEADS, block_size, &[21], &[21]);
        check(HEADS, block_size, &[5, 7, 32], &[5, 7, 32]);
    }
}

#[test]
fn the_reference_takes_decode_and_prefill_in_one_step() {
    for block_size in [1, 8, 16] {
        // One token, a chunk from the middle of a block on, a whole prompt.
        check(HEADS, block_size, &[17, 30, 12], &[1, 11, 12]);
    }
}

#[test]
fn the_reference_sees_a_window_of_what_came_before() {
    let heads = Heads { window: Some(6), ..HEADS };
    check(heads, 4, &[19, 4], &[5, 4]);
    check(Heads { window: Some(1), ..HEADS }, 4, &[9], &[9]);
}

#[test]
fn buffers_and_heads_that_do_not_fit_are_refused() {
    let cache = KvCache::new(4, 4, 2, 16, DType::F32).unwrap();
    let mut meta = ForwardMeta::new(4, 1, 2, 4);
    meta.push(&BlockTable::from_blocks(4, &[1]), 0, 3).unwrap();
    let params = AttentionParams { scale: 0.25, window: None };
    let mut out = vec![0.0; 3 * 4 * 16];
    let short = vec![0.0; 2 * 4 * 16];
    let refused = paged_attention(&cache, &meta, params, &short, 4, &mut out);
    judge::fails_with!("queries of two of three tokens", refused, KvError::Malformed(_));
    let (q, mut out) = (vec![0.0; 3 * 3 * 16], vec![0.0; 3 * 3 * 16]);
    let refused = paged_attention(&cache, &meta, params, &q, 3, &mut out);
    judge::fails_with!("three query heads over two KV heads", refused, KvError::Malformed(_));
    // A block that the pool does not have.
    meta.clear();
    meta.push(&BlockTable::from_blocks(4, &[4]), 0, 3).unwrap();
    let (q, mut out) = (vec![0.0; 3 * 2 * 16], vec![0.0; 3 * 2 * 16]);
    let refused = paged_attention(&cache, &meta, params, &q, 2, &mut out);
    judge::fails_with!("block 4 of a pool of four", refused, KvError::Tensor(_));
}
