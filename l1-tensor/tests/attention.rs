//! Attention against the formula, against torch, and against itself: the same token must have the
//! same bits however the work around it was arranged.

mod attention_common;
mod support;

use attention_common::*;
use l1_tensor::cpu::Isa;
use l1_tensor::ops::{
    AttentionParams, AttentionScratch, AttentionShape, KvCache, Sequences, attention,
};
use l1_tensor::{DType, Device, Tensor, bf16};
use proptest::prelude::*;
use support::*;

fn shapes() -> impl Strategy<Value = (AttentionShape, Option<usize>)> {
    let dims = (1usize..40, 0usize..70, 1usize..4, 1usize..4, 1usize..40);
    (dims, proptest::option::of(1usize..40)).prop_map(
        |((q_len, before, kv, group, half), window)| {
            let (q_heads, kv_heads) = (kv * group, kv);
            let shape = AttentionShape {
                q_len,
                kv_len: before + q_len,
                q_heads,
                kv_heads,
                head_dim: half * 2,
            };
            (shape, window)
        },
    )
}

proptest! {
    #![proptest_config(random_cases(48))]

    /// f32: within 2e-6 of the formula, relative to the largest value.
    #[test]
    fn agrees_with_the_reference_on_every_instruction_set((shape, window) in shapes(), seed in 0u64..1000) {
        let case = Case::random(shape, window, seed);
        let expected = case.reference();
        for isa in Isa::available() {
            let plan = Plan::contiguous(&case);
            let got = run(&runtime(isa, 2), &case, DType::F32, &plan).unwrap();
            let what = case.described(&format!("f32 on {isa}"));
            let off = differences(what, &case.dims(), &got, &expected, within(0.0, 2e-6));
            prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
        }
    }

    /// bf16: queries, keys, values and weights are rounded to 8 bits, each by at most 2^-9 of
    /// itself. With inputs rounded beforehand only the weights' rounding is left.
    #[test]
    fn bf16_agrees_with_the_reference_on_rounded_inputs((shape, window) in shapes(), seed in 0u64..1000) {
        let mut case = Case::random(shape, window, seed);
        for x in [&mut case.q, &mut case.k, &mut case.v] {
            x.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
        }
        let expected = case.reference();
        for isa in Isa::available() {
            let plan = Plan::contiguous(&case);
            let got = run(&runtime(isa, 2), &case, DType::BF16, &plan).unwrap();
            let what = case.described(&format!("bf16 on {isa}"));
            let off = differences(what, &case.dims(), &got, &expected, within(0.0, 4e-3));
            prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
        }
    }
}

#[test]
fn agrees_with_torch() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/ops.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let golden = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (_, meta) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let meta = meta.metadata().clone().unwrap();
    let mut seen = 0;
    for (key, params) in meta.iter().filter(|(k, _)| k.starts_with("attention.")) {
        let tensor = |name: &str| {
            let t = golden.tensor(&format!("{key}.{name}")).unwrap();
            let words = t.data().as_chunks::<4>().0;
            (t.shape().to_vec(), words.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>())
        };
        let (qs, q) = tensor("q");
        let (ks, k) = tensor("k");
        let (_, v) = tensor("v");
        let (_, expected) = tensor("out");
        let number = |name: &str| {
            let (_, rest) = params.split_once(&format!("\"{name}\":")).unwrap();
            rest.trim_start().split([',', '}']).next().unwrap().trim().parse::<f64>().ok()
        };
        let case = Case {
            shape: AttentionShape {
                q_len: qs[0],
                kv_len: ks[0],
                q_heads: qs[1],
                kv_heads: ks[1],
                head_dim: qs[2],
            },
            params: AttentionParams {
                scale: number("scale").unwrap() as f32,
                window: number("window").map(|w| w as usize),
            },
            q,
            k,
            v,
        };
        for (ran, got) in every_way(&case) {
            let what = case.described(&format!("{ran}, {key} of torch"));
            assert_close(what, &case.dims(), &got, &expected, within(0.0, 1e-5));
        }
        seen += 1;
    }
    assert!(seen >= 8, "the golden file has {seen} attention cases");
}

/// A case whose queries are zero: all keys that a query sees have the same weight.
fn even_handed(shape: AttentionShape, window: Option<usize>, v: Vec<f32>) -> Case {
    let AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim } = shape;
    let q = vec![0.0; q_len * q_heads * head_dim];
    let k = noise(kv_len * kv_heads * head_dim, 4);
    Case { shape, params: AttentionParams { scale: 1.0, window }, q, k, v }
}

#[test]
fn each_query_head_reads_the_kv_head_of_its_group() {
    // Values say which KV head they belong to; 6 heads over 3 go 0, 0, 1, 1, 2, 2.
    let shape = AttentionShape { q_len: 2, kv_len: 20, q_heads: 6, kv_heads: 3, head_dim: 4 };
    let v = (0..20 * 3 * 4).map(|i| (i / 4 % 3) as f32).collect();
    let case = even_handed(shape, None, v);
    let want: Vec<f32> = (0..2 * 6 * 4).map(|i| (i / 4 % 6 / 2) as f32).collect();
    for (ran, got) in every_way(&case) {
        let what = case.described(&format!("{ran}, values that name their KV head"));
        assert_close(what, &case.dims(), &got, &want, within(1e-6, 1e-6));
    }
}

#[test]
fn a_query_sees_itself_and_a_window_of_what_came_before() {
    // The value of key j is 1 in element j and 0 elsewhere, so an output row is the row of weights.
    for (q_len, kv_len, window) in [
        (5, 5, None),
        (3, 5, None),
        (3, 5, Some(2)),
        (1, 40, Some(1)),
        (1, 40, Some(16)),
        (20, 40, Some(17)),
        (35, 35, None),
    ] {
        let d = 40;
        let shape = AttentionShape { q_len, kv_len, q_heads: 2, kv_heads: 1, head_dim: d };
        let v = (0..kv_len * d).map(|i| f32::from(i / d == i % d)).collect();
        let case = even_handed(shape, window, v);
        let mut want = vec![];
        for p in kv_len - q_len..kv_len {
            let seen = |j: usize| j <= p && window.is_none_or(|w| j + w > p);
            let n = (0..d).filter(|j| seen(*j)).count() as f32;
            for _head in 0..2 {
                want.extend((0..d).map(|j| if seen(j) { 1.0 / n } else { 0.0 }));
            }
        }
        for (ran, got) in every_way(&case) {
            let what = case.described(&format!("{ran}, outputs that are rows of weights"));
            assert_close(what, &case.dims(), &got, &want, within(1e-6, 1e-9));
        }
    }
}

#[test]
fn sizes_at_the_edges_of_tiles_agree_with_the_reference() {
    for (q_len, kv_len, q_heads, kv_heads, head_dim, window) in [
        (1, 1, 1, 1, 2, None),
        (1, 16, 3, 1, 6, None),
        (1, 17, 9, 3, 16, None),
        (16, 16, 4, 2, 17, Some(3)),
        (17, 33, 2, 2, 64, Some(16)),
        (30, 65, 6, 2, 32, None),
        (5, 70, 4, 1, 34, Some(40)),
    ] {
        let shape = AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim };
        let mut case = Case::random(shape, window, 5);
        for (ran, got) in every_way(&case) {
            let what = case.described(&ran);
            assert_close(what, &case.dims(), &got, &case.reference(), within(0.0, 2e-6));
        }
        for x in [&mut case.q, &mut case.k, &mut case.v] {
            *x = rounded(x);
        }
        let expected = case.reference();
        let plan = Plan::contiguous(&case);
        for isa in Isa::available() {
            let got = run(&runtime(isa, 2), &case, DType::BF16, &plan).unwrap();
            let what = case.described(&format!("keys and values in bf16 on {isa}"));
            assert_close(what, &case.dims(), &got, &expected, within(0.0, 4e-3));
        }
    }
}

#[test]
fn contexts_of_several_splits_agree_with_the_reference() {
    // A split has 512 keys. In the last case no query sees all of the splits that another one sees.
    for (q_len, kv_len, q_heads, kv_heads, head_dim, window) in [
        (1, 512, 1, 1, 8, None),
        (1, 513, 2, 1, 8, None),
        (2, 1300, 4, 2, 24, None),
        (5, 1027, 2, 1, 17, Some(512)),
        (6, 1029, 2, 1, 16, Some(4)),
    ] {
        let shape = AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim };
        let mut case = Case::random(shape, window, 8);
        // The largest scores come last, so that what was found before must shrink.
        let row = kv_heads * head_dim;
        for (i, x) in case.k.iter_mut().enumerate() {
            *x *= 0.5 + (i / row) as f32 / kv_len as f32;
        }
        for (ran, got) in every_way(&case) {
            let what = case.described(&ran);
            assert_close(what, &case.dims(), &got, &case.reference(), within(0.0, 4e-6));
        }
    }
}

#[test]
fn one_token_has_the_same_bits_decoded_chunked_or_beside_another() {
    let shape = AttentionShape { q_len: 21, kv_len: 37, q_heads: 6, kv_heads: 2, head_dim: 24 };
    for window in [None, Some(9)] {
        let case = Case::random(shape, window, 6);
        let beside = AttentionShape { q_len: 4, kv_len: 19, ..shape };
        let beside = Case::random(beside, window, 7);
        for isa in Isa::available() {
            for dtype in [DType::F32, DType::BF16] {
                let plan = Plan::contiguous(&case);
                let expected = run(&runtime(isa, 1), &case, dtype, &plan).unwrap();
                for (how, plan) in [
                    ("decoded one by one", plan.clone().chunked(&[1; 21])),
                    (
                        "in two chunks beside another sequence",
                        plan.chunked(&[13, 8]).beside(&beside),
                    ),
                ] {
                    let got = run(&runtime(isa, 3), &case, dtype, &plan).unwrap();
                    let what = case.described(&format!("{dtype} on {isa}, {how}"));
                    assert_close(what, &case.dims(), &got, &expected, SAME_BITS);
                }
            }
        }
    }
}

#[test]
fn a_padding_row_without_keys_gets_zeros() {
    let rt = runtime(Isa::best(), 2);
    let cache = KvCache::new(1, 16, 2, 8, DType::F32).unwrap(); // Nothing was ever written to it.
    let mut scratch = AttentionScratch::new(&rt, 1, 16, 4, 8).unwrap();
    let q = Tensor::from_slice(&noise(32, 3), &[1, 4, 8]).unwrap();
    let mut out = Tensor::from_slice(&[7.0f32; 32], &[1, 32]).unwrap();
    let sequences = Sequences {
        cu_seqlens_q: &[0, 1],
        seq_lens_kv: &[0],
        block_table: &[],
        max_blocks: 0,
        device: None,
    };
    let params = AttentionParams { scale: 1.0, window: None };
    attention(&rt, q.view(), &cache, sequences, params, &mut scratch, out.view_mut()).unwrap();
    assert_eq!(out.to_vec_f32().unwrap(), [0.0; 32], "attention of a query without keys");
}

#[test]
fn what_an_earlier_owner_left_in_a_tile_cannot_leak() {
    let rt = runtime(Isa::best(), 1);
    for dtype in [DType::F32, DType::BF16] {
        let mut cache = KvCache::new(1, 16, 1, 2, dtype).unwrap();
        let nan = Tensor::from_slice(&[f32::NAN; 32], &[16, 1, 2]).unwrap();
        let all: Vec<i64> = (0..16).collect();
        cache.write(&rt, &all, nan.view(), nan.view()).unwrap();
        let one = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2]).unwrap();
        cache.write(&rt, &[0], one.view(), one.view()).unwrap();
        let mut scratch = AttentionScratch::new(&rt, 1, 16, 1, 2).unwrap();
        let mut out = Tensor::zeros(&[1, 2], DType::F32, Device::Cpu).unwrap();
        let sequences = Sequences {
            cu_seqlens_q: &[0, 1],
            seq_lens_kv: &[1],
            block_table: &[0],
            max_blocks: 1,
            device: None,
        };
        let params = AttentionParams { scale: 1.0, window: None };
        attention(&rt, one.view(), &cache, sequences, params, &mut scratch, out.view_mut())
            .unwrap();
        let got = out.to_vec_f32().unwrap();
        assert_eq!(got, [1.0, 2.0], "attention over one {dtype} token in a tile that held NaN");
    }
}

#[test]
fn clearing_the_end_of_a_tile_keeps_its_beginning() {
    let rt = runtime(Isa::best(), 1);
    for dtype in [DType::F32, DType::BF16] {
        for keep in 0..=16 {
            let mut case = Case::random(
                AttentionShape { q_len: 1, kv_len: 16, q_heads: 1, kv_heads: 1, head_dim: 6 },
                None,
                keep as u64,
            );
            // Everything from `keep` on is poison, then cleared.
            case.k[keep * 6..].fill(f32::NAN);
            case.v[keep * 6..].fill(f32::NAN);
            let attend = |case: &Case, clear: bool| {
                let mut cache = KvCache::new(1, 16, 1, 6, dtype).unwrap();
                let written = if clear { 16 } else { keep };
                let slots: Vec<i64> = (0..written as i64).collect();
                let (k, v) = (case.kv(&case.k, 0, written), case.kv(&case.v, 0, written));
                cache.write(&rt, &slots, k.view(), v.view()).unwrap();
                if clear {
                    cache.clear(0, keep).unwrap();
                }
                let mut scratch = AttentionScratch::new(&rt, 1, 16, 1, 6).unwrap();
                let q = Tensor::from_slice(&case.q, &[1, 1, 6]).unwrap();
                let mut out = Tensor::zeros(&[1, 6], DType::F32, Device::Cpu).unwrap();
                let sequences = Sequences {
                    cu_seqlens_q: &[0, 1],
                    seq_lens_kv: &[keep.max(1) as i32],
                    block_table: &[0],
                    max_blocks: 1,
                    device: None,
                };
                let (q, out_view) = (q.view(), out.view_mut());
                let params = AttentionParams { scale: 1.0, window: None };
                attention(&rt, q, &cache, sequences, params, &mut scratch, out_view).unwrap();
                to_bits(&out.to_vec_f32().unwrap())
            };
            assert_eq!(attend(&case, true), attend(&case, false), "{dtype}, {keep} kept");
        }
    }
    assert!(KvCache::new(1, 16, 1, 6, DType::F32).unwrap().clear(1, 0).is_err(), "no such block");
}

#[test]
fn inputs_that_do_not_fit_are_typed_errors() {
    let rt = runtime(Isa::best(), 1);
    let mut cache = KvCache::new(2, 16, 2, 4, DType::F32).unwrap();
    let kv = Tensor::zeros(&[1, 2, 4], DType::F32, Device::Cpu).unwrap();
    assert!(cache.write(&rt, &[32], kv.view(), kv.view()).is_err(), "slot beyond the pool");
    assert!(cache.write(&rt, &[-2], kv.view(), kv.view()).is_err(), "negative slot");
    assert!(cache.write(&rt, &[0, 1], kv.view(), kv.view()).is_err(), "too few rows");
    cache.write(&rt, &[-1], kv.view(), kv.view()).expect("-1 writes nothing");

    let mut scratch = AttentionScratch::new(&rt, 4, 32, 4, 4).unwrap();
    let mut attend = |q_dims: &[usize], cu: &[i32], kv: &[i32], table: &[i32]| {
        let q = Tensor::zeros(q_dims, DType::F32, Device::Cpu).unwrap();
        let row = q_dims[1] * q_dims[2];
        let mut out = Tensor::zeros(&[q_dims[0], row], DType::F32, Device::Cpu).unwrap();
        let sequences = Sequences {
            cu_seqlens_q: cu,
            seq_lens_kv: kv,
            block_table: table,
            max_blocks: table.len(),
            device: None,
        };
        let params = AttentionParams { scale: 1.0, window: None };
        attention(&rt, q.view(), &cache, sequences, params, &mut scratch, out.view_mut())
    };
    attend(&[1, 4, 4], &[0, 1], &[17], &[1, 0]).expect("this one is fine");
    assert!(attend(&[1, 3, 4], &[0, 1], &[1], &[0]).is_err(), "heads that do not divide");
    assert!(attend(&[1, 4, 6], &[0, 1], &[1], &[0]).is_err(), "another head dim");
    assert!(attend(&[1, 4, 4], &[0, 2], &[2], &[0]).is_err(), "offsets past the batch");
    assert!(attend(&[2, 4, 4], &[0, 2], &[1], &[0]).is_err(), "fewer keys than queries");
    assert!(attend(&[1, 4, 4], &[0, 1], &[17], &[0]).is_err(), "table too short");
    assert!(attend(&[1, 4, 4], &[0, 1], &[1], &[2]).is_err(), "block beyond the pool");
    assert!(attend(&[1, 4, 4], &[0, 1], &[17], &[0, -1]).is_err(), "a block that is not there");
    assert!(attend(&[1, 4, 4], &[0, 1], &[33], &[0, 1, 0]).is_err(), "more keys than scratch");
}
