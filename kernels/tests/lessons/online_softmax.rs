//! `l0.online_softmax`.

use std::sync::Arc;

use kernels::ops::{self, Arithmetic, AttentionParams, Sequences};
use kernels::{Buffer, Float, Gpu, Heads, Kv, KvShape};

use crate::common::under_every_order;
use crate::{assert_close, mat_mut, numbers, upload};

/// One sequence's last query over all of its keys, in one block of the cache. Keys in f32 are the work of
/// the kernel to be read, whatever the shape.
fn run(gpu: &Arc<Gpu>, dim: usize, scale: f32, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f32> {
    let (heads, keys) = (q.len() / dim, k.len() / dim);
    let shape = KvShape { blocks: 1, block_size: keys.max(1), heads: 1, dim, dtype: Float::F32 };
    // What lies in a place without a key must not matter.
    let place = |x: &[f32]| {
        upload(gpu, if x.is_empty() { vec![f32::NAN; dim] } else { x.to_vec() }.as_slice())
    };
    let (q, k, v) = (upload(gpu, q), place(k), place(v));
    let numbers = Buffer::from_slice(gpu, &[0, 1, keys as i32, 0]).unwrap();
    let bytes = under_every_order(|| {
        let mut out = upload(gpu, &vec![f32::NAN; heads * dim]);
        let part = |from, len| numbers.view().cast::<i32>().part(from, len);
        let sequences = Sequences {
            cu_seqlens_q: part(0, 2),
            seq_lens_kv: part(2, 1),
            block_table: part(3, 1),
            max_blocks: 1,
            max_q_len: 1,
            max_kv_len: keys.max(1),
        };
        let params = AttentionParams { scale, window: None, arithmetic: Arithmetic::Fast };
        let q = Heads::new(q.view(), Float::F32, [1, heads, dim], heads * dim).unwrap();
        let cache = Kv::new(shape, k.view(), v.view()).unwrap();
        ops::attention(gpu, q, cache, sequences, params, mat_mut(&mut out, 1, heads * dim))
            .unwrap();
        out.to_vec::<u8>().unwrap()
    });
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Three passes: the maximum, the sum, the weighted sum.
fn expected(dim: usize, scale: f32, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f32> {
    let head = |q: &[f32]| -> Vec<f32> {
        let dot =
            |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
        let scores: Vec<f64> = k.chunks(dim).map(|k| f64::from(scale) * dot(k)).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let column =
            |d| weights.iter().zip(v.chunks(dim)).map(|(w, v)| w * f64::from(v[d])).sum::<f64>();
        (0..dim).map(|d| (column(d) / total) as f32).collect()
    };
    q.chunks(dim).flat_map(head).collect()
}

#[test]
fn one_pass_gives_what_three_give() {
    let gpu = crate::gpu();
    for (dim, heads, keys) in [(8, 1, 1), (18, 2, 5), (32, 3, 31), (16, 1, 32), (16, 2, 100)] {
        let (q, k, v) = (numbers(1, heads * dim), numbers(2, keys * dim), numbers(3, keys * dim));
        let got = run(&gpu, dim, 2.0, &q, &k, &v);
        assert_close(&got, &expected(dim, 2.0, &q, &k, &v), 1e-5);
    }
}

#[test]
fn what_came_before_a_larger_score_counts_less_and_is_not_forgotten() {
    let gpu = crate::gpu();
    let (dim, keys) = (4, 96);
    // Scores rise slowly: every 32 keys there is a new maximum, and all keys matter.
    let k: Vec<f32> = (0..keys).flat_map(|j| [j as f32 * 0.02, 0.0, 0.0, 0.0]).collect();
    let (q, v) = ([1.0, 0.0, 0.0, 0.0], numbers(4, keys * dim));
    assert_close(&run(&gpu, dim, 1.0, &q, &k, &v), &expected(dim, 1.0, &q, &k, &v), 1e-5);
    // The same falling.
    let k: Vec<f32> = k.chunks(dim).rev().flatten().copied().collect();
    assert_close(&run(&gpu, dim, 1.0, &q, &k, &v), &expected(dim, 1.0, &q, &k, &v), 1e-5);
}

#[test]
fn scores_beyond_every_exponential_overflow_nothing() {
    let gpu = crate::gpu();
    let (dim, keys) = (4, 70);
    let k: Vec<f32> = (0..keys).flat_map(|j| [(j * 29 % keys) as f32, 0.0, 0.0, 0.0]).collect();
    let v = numbers(5, keys * dim);
    for sign in [1.0, -1.0] {
        let q = [sign, 0.0, 0.0, 0.0];
        let got = run(&gpu, dim, 1000.0, &q, &k, &v);
        assert_close(&got, &expected(dim, 1000.0, &q, &k, &v), 1e-5);
    }
}

#[test]
fn a_query_without_keys_gets_zeros() {
    let gpu = crate::gpu();
    assert_eq!(run(&gpu, 8, 1.0, &numbers(6, 16), &[], &[]), vec![0.0; 16]);
}
