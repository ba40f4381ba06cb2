//! `l0.split_kv`.

use std::sync::Arc;

use kernels::ops::{self, Arithmetic, AttentionParams, Sequences};
use kernels::{Buffer, Float, Gpu, Heads, Kv, KvShape};

use crate::common::under_every_order;
use crate::{assert_close, from_bf16, mat_mut, numbers, to_bf16, upload};

const DIM: usize = 64;
const BLOCK: usize = 64;

/// Sequences of one query each, with so many keys, one KV head and a group of `heads`. Blocks lie behind
/// each other, and what is behind a sequence's last key is NaN.
fn run(
    gpu: &Arc<Gpu>,
    heads: usize,
    lens: &[usize],
    q: &[f32],
    k: &[Vec<u16>],
    v: &[Vec<u16>],
) -> Vec<f32> {
    const NAN: u16 = 0x7fc0;
    let most = lens.iter().map(|len| len.div_ceil(BLOCK)).max().unwrap_or(0).max(1);
    let shape = KvShape {
        blocks: most * lens.len(),
        block_size: BLOCK,
        heads: 1,
        dim: DIM,
        dtype: Float::Bf16,
    };
    let place = |rows: &[Vec<u16>]| {
        let padded = rows.iter().flat_map(|row| {
            let missing = most * BLOCK * DIM - row.len();
            row.iter().copied().chain(std::iter::repeat_n(NAN, missing))
        });
        Buffer::from_slice(gpu, &padded.collect::<Vec<u16>>()).unwrap()
    };
    let (q, k, v) = (upload(gpu, q), place(k), place(v));
    let s = lens.len();
    let table = lens.iter().enumerate().flat_map(|(i, len)| {
        (0..most).map(move |b| if b < len.div_ceil(BLOCK) { (i * most + b) as i32 } else { -1 })
    });
    let numbers: Vec<i32> =
        (0..=s as i32).chain(lens.iter().map(|len| *len as i32)).chain(table).collect();
    let numbers = Buffer::from_slice(gpu, &numbers).unwrap();
    let bytes = under_every_order(|| {
        let mut out = upload(gpu, &vec![f32::NAN; s * heads * DIM]);
        let part = |from, len| numbers.view().cast::<i32>().part(from, len);
        let sequences = Sequences {
            cu_seqlens_q: part(0, s + 1),
            seq_lens_kv: part(s + 1, s),
            block_table: part(2 * s + 1, s * most),
            max_blocks: most,
            max_q_len: 1,
            max_kv_len: most * BLOCK,
        };
        let params = AttentionParams { scale: 1.0, window: None, arithmetic: Arithmetic::Fast };
        let q = Heads::new(q.view(), Float::F32, [s, heads, DIM], heads * DIM).unwrap();
        let cache = Kv::new(shape, k.view(), v.view()).unwrap();
        ops::attention(gpu, q, cache, sequences, params, mat_mut(&mut out, s, heads * DIM))
            .unwrap();
        out.to_vec::<u8>().unwrap()
    });
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Attention of one query's heads over all keys at once.
fn expected(q: &[f32], k: &[u16], v: &[u16]) -> Vec<f32> {
    let (k, v) = (from_bf16(k), from_bf16(v));
    let head = |q: &[f32]| -> Vec<f32> {
        // The kernel multiplies in bf16.
        let q = from_bf16(&to_bf16(q));
        let dot =
            |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
        let scores: Vec<f64> = k.chunks(DIM).map(dot).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let column =
            |d| weights.iter().zip(v.chunks(DIM)).map(|(w, v)| w * f64::from(v[d])).sum::<f64>();
        (0..DIM).map(|d| (column(d) / total) as f32).collect()
    };
    q.chunks(DIM).flat_map(head).collect()
}

/// Weights are bf16 on their way to the values, which are below 1.
const TOLERANCE: f32 = 1e-2;

fn rows(seed: u64, keys: usize) -> Vec<u16> {
    to_bf16(&numbers(seed, keys * DIM))
}

#[test]
fn a_context_in_parts_is_the_context_in_one() {
    let gpu = crate::gpu();
    for (heads, len) in [(1, 500), (4, 700)] {
        let (q, k, v) = (numbers(1, heads * DIM), rows(2, len), rows(3, len));
        let got = run(&gpu, heads, &[len], &q, std::slice::from_ref(&k), std::slice::from_ref(&v));
        assert_close(&got, &expected(&q, &k, &v), TOLERANCE);
    }
}

#[test]
fn a_part_counts_what_its_keys_count() {
    let gpu = crate::gpu();
    let len = 600;
    let mut q = vec![0.0; DIM];
    q[0] = 1.0;
    // One key, in the first part or in the last, has nearly all of the weight.
    for strong in [3, 597] {
        let mut k = vec![0.0; len * DIM];
        k[strong * DIM] = 12.0;
        let (k, v) = (to_bf16(&k), rows(4, len));
        let got = run(&gpu, 1, &[len], &q, std::slice::from_ref(&k), std::slice::from_ref(&v));
        assert_close(&got, &expected(&q, &k, &v), TOLERANCE);
    }
}

#[test]
fn sequences_of_many_parts_of_one_and_of_none_stand_beside_each_other() {
    let gpu = crate::gpu();
    let lens = [520, 0, 9, 130];
    let q = numbers(5, lens.len() * 2 * DIM);
    let k: Vec<_> = lens.iter().enumerate().map(|(i, len)| rows(6 + i as u64, *len)).collect();
    let v: Vec<_> = lens.iter().enumerate().map(|(i, len)| rows(16 + i as u64, *len)).collect();
    let got = run(&gpu, 2, &lens, &q, &k, &v);
    for (i, (got, q)) in got.chunks(2 * DIM).zip(q.chunks(2 * DIM)).enumerate() {
        if lens[i] == 0 {
            assert_eq!(got, vec![0.0; 2 * DIM], "a padded row");
        } else {
            assert_close(got, &expected(q, &k[i], &v[i]), TOLERANCE);
        }
    }
}

#[test]
fn a_length_of_exactly_some_parts_has_no_empty_part_behind_it() {
    let gpu = crate::gpu();
    for len in [128, 256, 512] {
        let (q, k, v) = (numbers(7, DIM), rows(8, len), rows(9, len));
        let got = run(&gpu, 1, &[len], &q, std::slice::from_ref(&k), std::slice::from_ref(&v));
        assert_close(&got, &expected(&q, &k, &v), TOLERANCE);
    }
}
