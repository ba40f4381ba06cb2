//! Attention against the formula, against torch, and against itself: the same token must have the
//! same bits however the work around it was arranged.

mod support;

use l1_tensor::cpu::Isa;
use l1_tensor::ops::attention::reference;
use l1_tensor::ops::{
    AttentionParams, AttentionScratch, AttentionShape, KvCache, Sequences, TILE, attention,
};
use l1_tensor::{DType, Device, Result, Runtime, Tensor, bf16};
use proptest::prelude::*;
use support::*;

struct Case {
    shape: AttentionShape,
    params: AttentionParams,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Case {
    fn random(shape: AttentionShape, window: Option<usize>, seed: u64) -> Self {
        let AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim } = shape;
        let scale = 1.0 / (head_dim as f32).sqrt();
        Self {
            shape,
            params: AttentionParams { scale, window },
            // Large queries make sharp distributions, where mistakes show.
            q: noise(q_len * q_heads * head_dim, seed).iter().map(|x| x * 4.0).collect(),
            k: noise(kv_len * kv_heads * head_dim, seed + 1),
            v: noise(kv_len * kv_heads * head_dim, seed + 2),
        }
    }

    fn reference(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.q.len()];
        reference(self.shape, self.params, &self.q, &self.k, &self.v, &mut out);
        out
    }

    fn kv(&self, x: &[f32], from: usize, to: usize) -> Tensor {
        let row = self.shape.kv_heads * self.shape.head_dim;
        let dims = [to - from, self.shape.kv_heads, self.shape.head_dim];
        Tensor::from_slice(&x[from * row..to * row], &dims).unwrap()
    }
}

/// How to arrange one case's work.
struct Plan<'a> {
    /// Query lengths of the steps; they add up to the case's `q_len`.
    chunks: &'a [usize],
    /// Which tile of the pool holds tile `t` of the sequence.
    table: Vec<u32>,
    pool_tiles: usize,
    /// Another sequence that takes part in every step, before this one.
    beside: Option<&'a Case>,
}

impl Plan<'_> {
    fn contiguous<'a>(case: &Case, chunks: &'a [usize]) -> Plan<'a> {
        let tiles = case.shape.kv_len.div_ceil(TILE);
        Plan { chunks, table: (0..tiles as u32).collect(), pool_tiles: tiles, beside: None }
    }
}

/// Run a case step by step: write the step's keys, attend with its queries.
fn run(rt: &Runtime, case: &Case, dtype: DType, plan: &Plan) -> Result<Vec<f32>> {
    let AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim } = case.shape;
    let beside_tiles = plan.beside.map_or(0, |b| b.shape.kv_len.div_ceil(TILE));
    let mut cache = KvCache::new(plan.pool_tiles + beside_tiles, kv_heads, head_dim, dtype)?;
    let slot = |p: usize| i64::from(plan.table[p / TILE]) * TILE as i64 + (p % TILE) as i64;
    let max_kv = kv_len.max(plan.beside.map_or(0, |b| b.shape.kv_len));
    let max_tokens = q_len + plan.beside.map_or(0, |b| b.shape.q_len);
    let mut scratch = AttentionScratch::new(rt, max_tokens, max_kv, q_heads, kv_heads, head_dim)?;
    // Tokens before the first query are cached already.
    let mut done = kv_len - q_len;
    let write = |cache: &mut KvCache, from: usize, to: usize| {
        let slots: Vec<i64> = (from..to).map(slot).collect();
        cache.write(
            rt,
            &slots,
            case.kv(&case.k, from, to).view(),
            case.kv(&case.v, from, to).view(),
        )
    };
    write(&mut cache, 0, done)?;
    let mut out = Vec::new();
    let mut table = plan.table.clone();
    let (mut b_q, mut b_kv) = (0, 0);
    if let Some(b) = plan.beside {
        (b_q, b_kv) = (b.shape.q_len, b.shape.kv_len);
        let slots: Vec<i64> = (0..b_kv).map(|p| (plan.pool_tiles * TILE + p) as i64).collect();
        cache.write(rt, &slots, b.kv(&b.k, 0, b_kv).view(), b.kv(&b.v, 0, b_kv).view())?;
        table.extend((0..beside_tiles).map(|t| (plan.pool_tiles + t) as u32));
    }
    for &chunk in plan.chunks {
        write(&mut cache, done, done + chunk)?;
        let row = q_heads * head_dim;
        let first = done - (kv_len - q_len);
        let mut q = plan.beside.map_or(vec![], |b| b.q.clone());
        q.extend_from_slice(&case.q[first * row..(first + chunk) * row]);
        let tokens = b_q + chunk;
        let q = Tensor::from_slice(&q, &[tokens, q_heads, head_dim])?;
        done += chunk;
        let both = plan.beside.is_some();
        let cu = [0, b_q as i32, tokens as i32];
        let kv = [b_kv as i32, done as i32];
        let rows = [plan.table.len(), 0];
        let from = usize::from(!both);
        let cu: Vec<i32> = if both { cu.to_vec() } else { vec![0, tokens as i32] };
        let sequences = Sequences {
            cu_seqlens_q: &cu,
            seq_lens_kv: &kv[from..],
            tile_table: &table,
            table_rows: &rows[from..],
        };
        let mut o = Tensor::zeros(&[tokens, row], DType::F32, Device::Cpu)?;
        attention(rt, q.view(), &cache, sequences, case.params, &mut scratch, o.view_mut())?;
        out.extend_from_slice(&o.to_vec_f32()?[b_q * row..]);
    }
    Ok(out)
}

fn to_bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// What was looked at, for messages.
fn described(ran: &str, case: &Case) -> String {
    let AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim } = case.shape;
    let window = case.params.window.map_or(String::new(), |w| format!(", window {w}"));
    format!(
        "attention, {ran}, q [{q_len}, {q_heads}, {head_dim}], k [{kv_len}, {kv_heads}, {head_dim}]{window}"
    )
}

/// The dimensions of a case's output.
fn out_dims(case: &Case) -> [usize; 3] {
    [case.shape.q_len, case.shape.q_heads, case.shape.head_dim]
}

/// A case's result by the reference and, with keys in f32, on every instruction set.
fn every_way(case: &Case) -> Vec<(String, Vec<f32>)> {
    let mut all = vec![("the reference".to_string(), case.reference())];
    let plan = Plan::contiguous(case, std::slice::from_ref(&case.shape.q_len));
    for isa in Isa::available() {
        let got = run(&runtime(isa, 2), case, DType::F32, &plan).unwrap();
        all.push((format!("on {isa}"), got));
    }
    all
}

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
            let plan = Plan::contiguous(&case, std::slice::from_ref(&shape.q_len));
            let got = run(&runtime(isa, 2), &case, DType::F32, &plan).unwrap();
            let what = described(&format!("f32 on {isa}"), &case);
            let off = differences(what, &out_dims(&case), &got, &expected, within(0.0, 2e-6));
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
            let plan = Plan::contiguous(&case, std::slice::from_ref(&shape.q_len));
            let got = run(&runtime(isa, 2), &case, DType::BF16, &plan).unwrap();
            let what = described(&format!("bf16 on {isa}"), &case);
            let off = differences(what, &out_dims(&case), &got, &expected, within(0.0, 4e-3));
            prop_assert!(off.is_none(), "{}", off.unwrap_or_default());
        }
    }

    #[test]
    fn a_token_has_the_same_bits_in_any_chunking_batch_tile_order_and_thread_count(
        (shape, window) in shapes(), seed in 0u64..1000, cut in 0usize..100,
        (beside, _) in shapes(),
    ) {
        let case = Case::random(shape, window, seed);
        let beside = Case::random(
            AttentionShape { q_len: beside.q_len, kv_len: beside.kv_len, ..shape }, window, seed + 7);
        let one_by_one = vec![1; shape.q_len];
        let cut = cut % shape.q_len;
        let two = [cut, shape.q_len - cut];
        for isa in Isa::available() {
            for dtype in [DType::F32, DType::BF16] {
                let whole = [shape.q_len];
                let plan = Plan::contiguous(&case, &whole);
                let expected = to_bits(&run(&runtime(isa, 1), &case, dtype, &plan).unwrap());
                let decode = Plan::contiguous(&case, &one_by_one);
                let chunked = Plan::contiguous(&case, &two);
                let mut scattered = Plan::contiguous(&case, &whole);
                scattered.pool_tiles = 2 * scattered.table.len() + 1;
                scattered.table = scattered.table.iter().rev().map(|t| 2 * t + 1).collect();
                let mut batched = Plan::contiguous(&case, &two);
                batched.beside = Some(&beside);
                for (name, plan, threads) in [
                    ("decoded one by one", &decode, 2),
                    ("in two chunks", &chunked, 3),
                    ("over scattered tiles", &scattered, 2),
                    ("beside another sequence", &batched, 2),
                ] {
                    let got = to_bits(&run(&runtime(isa, threads), &case, dtype, plan).unwrap());
                    prop_assert!(got == expected, "{isa} {dtype}: {name} differs, {shape:?} {window:?}");
                }
            }
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
            let what = described(&format!("{ran}, {key} of torch"), &case);
            assert_close(what, &out_dims(&case), &got, &expected, within(0.0, 1e-5));
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
        let what = described(&format!("{ran}, values that name their KV head"), &case);
        assert_close(what, &out_dims(&case), &got, &want, within(1e-6, 1e-6));
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
            let what = described(&format!("{ran}, outputs that are rows of weights"), &case);
            assert_close(what, &out_dims(&case), &got, &want, within(1e-6, 1e-9));
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
            let what = described(&ran, &case);
            assert_close(what, &out_dims(&case), &got, &case.reference(), within(0.0, 2e-6));
        }
        for x in [&mut case.q, &mut case.k, &mut case.v] {
            *x = rounded(x);
        }
        let expected = case.reference();
        let plan = Plan::contiguous(&case, std::slice::from_ref(&case.shape.q_len));
        for isa in Isa::available() {
            let got = run(&runtime(isa, 2), &case, DType::BF16, &plan).unwrap();
            let what = described(&format!("keys and values in bf16 on {isa}"), &case);
            assert_close(what, &out_dims(&case), &got, &expected, within(0.0, 4e-3));
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
                let plan = Plan::contiguous(&case, &[21]);
                let expected = run(&runtime(isa, 1), &case, dtype, &plan).unwrap();
                let one_by_one = [1; 21];
                let mut batched = Plan::contiguous(&case, &[13, 8]);
                batched.beside = Some(&beside);
                for (how, plan) in [
                    ("decoded one by one", Plan::contiguous(&case, &one_by_one)),
                    ("in two chunks beside another sequence", batched),
                ] {
                    let got = run(&runtime(isa, 3), &case, dtype, &plan).unwrap();
                    let what = described(&format!("{dtype} on {isa}, {how}"), &case);
                    assert_close(what, &out_dims(&case), &got, &expected, SAME_BITS);
                }
            }
        }
    }
}

#[test]
fn a_padding_row_without_keys_gets_zeros() {
    let rt = runtime(Isa::best(), 2);
    let cache = KvCache::new(1, 2, 8, DType::F32).unwrap(); // Nothing was ever written to it.
    let mut scratch = AttentionScratch::new(&rt, 1, 16, 4, 2, 8).unwrap();
    let q = Tensor::from_slice(&noise(32, 3), &[1, 4, 8]).unwrap();
    let mut out = Tensor::from_slice(&[7.0f32; 32], &[1, 32]).unwrap();
    let sequences =
        Sequences { cu_seqlens_q: &[0, 1], seq_lens_kv: &[0], tile_table: &[], table_rows: &[0] };
    let params = AttentionParams { scale: 1.0, window: None };
    attention(&rt, q.view(), &cache, sequences, params, &mut scratch, out.view_mut()).unwrap();
    assert_eq!(out.to_vec_f32().unwrap(), [0.0; 32], "attention of a query without keys");
}

#[test]
fn what_an_earlier_owner_left_in_a_tile_cannot_leak() {
    let rt = runtime(Isa::best(), 1);
    for dtype in [DType::F32, DType::BF16] {
        let mut cache = KvCache::new(1, 1, 2, dtype).unwrap();
        let nan = Tensor::from_slice(&[f32::NAN; 32], &[16, 1, 2]).unwrap();
        let all: Vec<i64> = (0..16).collect();
        cache.write(&rt, &all, nan.view(), nan.view()).unwrap();
        let one = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2]).unwrap();
        cache.write(&rt, &[0], one.view(), one.view()).unwrap();
        let mut scratch = AttentionScratch::new(&rt, 1, 16, 1, 1, 2).unwrap();
        let mut out = Tensor::zeros(&[1, 2], DType::F32, Device::Cpu).unwrap();
        let sequences = Sequences {
            cu_seqlens_q: &[0, 1],
            seq_lens_kv: &[1],
            tile_table: &[0],
            table_rows: &[0],
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
                let mut cache = KvCache::new(1, 1, 6, dtype).unwrap();
                let written = if clear { 16 } else { keep };
                let slots: Vec<i64> = (0..written as i64).collect();
                let (k, v) = (case.kv(&case.k, 0, written), case.kv(&case.v, 0, written));
                cache.write(&rt, &slots, k.view(), v.view()).unwrap();
                if clear {
                    cache.clear(0, keep).unwrap();
                }
                let mut scratch = AttentionScratch::new(&rt, 1, 16, 1, 1, 6).unwrap();
                let q = Tensor::from_slice(&case.q, &[1, 1, 6]).unwrap();
                let mut out = Tensor::zeros(&[1, 6], DType::F32, Device::Cpu).unwrap();
                let sequences = Sequences {
                    cu_seqlens_q: &[0, 1],
                    seq_lens_kv: &[keep.max(1) as i32],
                    tile_table: &[0],
                    table_rows: &[0],
                };
                let (q, out_view) = (q.view(), out.view_mut());
                let params = AttentionParams { scale: 1.0, window: None };
                attention(&rt, q, &cache, sequences, params, &mut scratch, out_view).unwrap();
                to_bits(&out.to_vec_f32().unwrap())
            };
            assert_eq!(attend(&case, true), attend(&case, false), "{dtype}, {keep} kept");
        }
    }
    assert!(KvCache::new(1, 1, 6, DType::F32).unwrap().clear(1, 0).is_err(), "no such tile");
}

#[test]
fn inputs_that_do_not_fit_are_typed_errors() {
    let rt = runtime(Isa::best(), 1);
    let mut cache = KvCache::new(2, 2, 4, DType::F32).unwrap();
    let kv = Tensor::zeros(&[1, 2, 4], DType::F32, Device::Cpu).unwrap();
    assert!(cache.write(&rt, &[32], kv.view(), kv.view()).is_err(), "slot beyond the pool");
    assert!(cache.write(&rt, &[-2], kv.view(), kv.view()).is_err(), "negative slot");
    assert!(cache.write(&rt, &[0, 1], kv.view(), kv.view()).is_err(), "too few rows");
    cache.write(&rt, &[-1], kv.view(), kv.view()).expect("-1 writes nothing");

    let mut scratch = AttentionScratch::new(&rt, 4, 32, 4, 2, 4).unwrap();
    let mut attend = |q_dims: &[usize], cu: &[i32], kv: &[i32], table: &[u32]| {
        let q = Tensor::zeros(q_dims, DType::F32, Device::Cpu).unwrap();
        let row = q_dims[1] * q_dims[2];
        let mut out = Tensor::zeros(&[q_dims[0], row], DType::F32, Device::Cpu).unwrap();
        let sequences =
            Sequences { cu_seqlens_q: cu, seq_lens_kv: kv, tile_table: table, table_rows: &[0] };
        let params = AttentionParams { scale: 1.0, window: None };
        attention(&rt, q.view(), &cache, sequences, params, &mut scratch, out.view_mut())
    };
    attend(&[1, 4, 4], &[0, 1], &[17], &[1, 0]).expect("this one is fine");
    assert!(attend(&[1, 3, 4], &[0, 1], &[1], &[0]).is_err(), "heads that do not divide");
    assert!(attend(&[1, 4, 6], &[0, 1], &[1], &[0]).is_err(), "another head dim");
    assert!(attend(&[1, 4, 4], &[0, 2], &[2], &[0]).is_err(), "offsets past the batch");
    assert!(attend(&[2, 4, 4], &[0, 2], &[1], &[0]).is_err(), "fewer keys than queries");
    assert!(attend(&[1, 4, 4], &[0, 1], &[17], &[0]).is_err(), "table too short");
    assert!(attend(&[1, 4, 4], &[0, 1], &[1], &[2]).is_err(), "tile beyond the pool");
    assert!(attend(&[1, 4, 4], &[0, 1], &[33], &[0, 1, 0]).is_err(), "more keys than scratch");
}
