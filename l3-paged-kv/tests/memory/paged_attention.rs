//! Attention over blocks: against the readable one over what is stored, and against attention over
//! keys that were never in a block.

use std::path::Path;

use crate::judge;
use crate::paging::{Heads, Text, numbers, runtime, shuffled};
use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{DType, Device, Precision, Runtime, Tensor, bf16};
use l2_model::{ModelConfig, Op};
use l3_paged_kv::reference::paged_attention;
use l3_paged_kv::{BlockTable, CopyBlock, ForwardMeta, KvError, PagedKv};
use proptest::prelude::*;

/// tiny-llama with other heads, and as many layers as asked for.
fn config(heads: Heads, layers: usize) -> ModelConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-llama/config.json");
    let mut config = ModelConfig::from_hf_file(&path).unwrap();
    config.layers.truncate(layers);
    for branch in config.layers.iter_mut().flat_map(|l| &mut l.branches) {
        if let Op::Attention(a) = &mut branch.op {
            (a.q_heads, a.kv_heads, a.head_dim) = (heads.q, heads.kv, heads.dim);
        }
    }
    config
}

/// Memory that strangers have used, with all that attending over it takes.
struct Bench {
    rt: Runtime,
    heads: Heads,
    kv: PagedKv,
    meta: ForwardMeta,
    scratch: AttentionScratch,
    max_tokens: usize,
}

impl Bench {
    /// Every place of every block holds what is not a number.
    fn new(
        rt: Runtime,
        heads: Heads,
        blocks: (usize, usize),
        dtype: DType,
        max_len: usize,
    ) -> Self {
        let (num_blocks, block_size) = blocks;
        let kv = PagedKv::new(&config(heads, 1), num_blocks, block_size, dtype).unwrap();
        let max_tokens = (4 * max_len + 4).max(block_size);
        let max_blocks = max_len.max(block_size).div_ceil(block_size);
        let meta = ForwardMeta::new(max_tokens, 8, max_blocks, block_size);
        let longest = max_len.max(block_size);
        let scratch = AttentionScratch::new(&rt, max_tokens, longest, heads.q, heads.dim).unwrap();
        let mut bench = Self { rt, heads, kv, meta, scratch, max_tokens };
        for block in 0..num_blocks as u32 {
            let nan = vec![f32::NAN; block_size * heads.q * heads.dim];
            let kv = &nan[..block_size * heads.kv * heads.dim];
            let table = BlockTable::from_blocks(block_size, &[block]);
            bench.meta.clear();
            bench.meta.push(&table, 0, block_size).unwrap();
            bench.attend(&nan, kv, kv).unwrap();
        }
        bench
    }

    /// Attend with the step that `meta` says: `[T, H_q, D]`.
    fn attend(&mut self, q: &[f32], k: &[f32], v: &[f32]) -> Result<Vec<f32>, KvError> {
        let (t, Heads { q: q_heads, kv: kv_heads, dim, .. }) = (self.meta.tokens(), self.heads);
        assert!(t <= self.max_tokens);
        let tensor = |x: &[f32], heads| Tensor::from_slice(x, &[t, heads, dim]).unwrap();
        let (q, k, v) = (tensor(q, q_heads), tensor(k, kv_heads), tensor(v, kv_heads));
        let mut out = Tensor::zeros(&[t, q_heads * dim], DType::F32, Device::Cpu).unwrap();
        let params = AttentionParams { scale: self.heads.scale(), window: self.heads.window };
        let (rt, meta, scratch) = (&self.rt, &self.meta, &mut self.scratch);
        let (q, k, v) = (q.view(), k.view(), v.view());
        self.kv.attend(rt, 0, meta, q, k, v, params, scratch, out.view_mut())?;
        Ok(out.to_vec_f32().unwrap())
    }

    /// A step: (text, table, tokens it has, tokens it gets), and rows of padding. The output of each
    /// part, and what the readable attention says of all of it.
    fn step(&mut self, parts: &[(&Text, &BlockTable, usize, usize)], pads: usize) -> Step {
        let (q_row, kv_row) = (self.heads.q * self.heads.dim, self.heads.kv * self.heads.dim);
        let (mut q, mut k, mut v) = (vec![], vec![], vec![]);
        self.meta.clear();
        for (text, table, computed, q_len) in parts {
            let (from, to) = (*computed, computed + q_len);
            self.meta.push(table, from, *q_len).unwrap();
            q.extend_from_slice(&text.q[from * q_row..to * q_row]);
            k.extend_from_slice(&text.k[from * kv_row..to * kv_row]);
            v.extend_from_slice(&text.v[from * kv_row..to * kv_row]);
        }
        self.meta.pad_to(parts.len() + pads).unwrap();
        for (x, row) in [(&mut q, q_row), (&mut k, kv_row), (&mut v, kv_row)] {
            x.resize(self.meta.tokens() * row, f32::NAN);
        }
        let got = judge::works("attending over blocks", self.attend(&q, &k, &v));
        if self.kv.dtype() != DType::F32 {
            // The fast path multiplies in bf16; keys and values are stored so already.
            q.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
        }
        let mut reference = vec![0.0; q.len()];
        let params = AttentionParams { scale: self.heads.scale(), window: self.heads.window };
        let cache = self.kv.layer(0).unwrap();
        paged_attention(cache, &self.meta, params, &q, self.heads.q, &mut reference).unwrap();
        Step { got, reference }
    }
}

struct Step {
    got: Vec<f32>,
    reference: Vec<f32>,
}

/// Sums of some hundreds of numbers below 1, in f32.
const ALLOWED_F32: f32 = 4e-6;
/// Weights are rounded to 8 bits before the values are added up.
const ALLOWED_BF16: f32 = 4e-3;

fn allowed(dtype: DType) -> f32 {
    if dtype == DType::F32 { ALLOWED_F32 } else { ALLOWED_BF16 }
}

/// Feed texts of `lens` tokens in steps of at most `chunks[i]` tokens each, in blocks here and there. All
/// outputs of each text: `[len, H_q * D]`.
fn feed(
    rt: &Runtime,
    heads: Heads,
    block_size: usize,
    dtype: DType,
    texts: &[(usize, usize)],
    pads: usize,
) -> Vec<Vec<f32>> {
    let longest = texts.iter().map(|(len, _)| *len).max().unwrap();
    let needed = |len: usize| len.div_ceil(block_size);
    let num_blocks = texts.iter().map(|(len, _)| needed(*len)).sum::<usize>() + 3;
    let mut bench = Bench::new(rt.clone(), heads, (num_blocks, block_size), dtype, longest);
    let mut blocks = shuffled(num_blocks, 11).into_iter();
    let mut sequences: Vec<(Text, BlockTable, usize, usize, Vec<f32>)> = texts
        .iter()
        .enumerate()
        .map(|(i, (len, chunk))| {
            let table: Vec<u32> = blocks.by_ref().take(needed(*len)).collect();
            let table = BlockTable::from_blocks(block_size, &table);
            (Text::new(heads, *len, i as u64 + 1), table, *len, *chunk, vec![])
        })
        .collect();
    let row = heads.q * heads.dim;
    while sequences.iter().any(|(_, _, len, _, out)| out.len() < len * row) {
        let parts: Vec<_> = sequences
            .iter()
            .map(|(text, table, len, chunk, out)| {
                let done = out.len() / row;
                (text, table, done, (*chunk).min(len - done))
            })
            .filter(|(.., q_len)| *q_len > 0)
            .collect();
        let q_lens: Vec<usize> = parts.iter().map(|(.., q_len)| *q_len).collect();
        let step = bench.step(&parts, pads);
        let what = format!(
            "attention over blocks of {block_size} in {dtype}, against the readable one, queries {q_lens:?}, {heads:?}"
        );
        let dims = [step.got.len() / row, heads.q, heads.dim];
        judge::close(&what, &dims, &step.got, &step.reference, allowed(dtype));
        let mut got = step.got.as_slice();
        for (.., len, chunk, out) in &mut sequences {
            let n = (*chunk).min(*len - out.len() / row);
            out.extend_from_slice(&got[..n * row]);
            got = &got[n * row..];
        }
        assert!(got.len() == pads * row && got.iter().all(|x| *x == 0.0), "padding gives zeros");
    }
    if dtype == DType::F32 {
        for (text, _, len, _, out) in &sequences {
            let expected: Vec<f32> = (0..*len).flat_map(|p| text.attended(heads, p)).collect();
            let what = format!(
                "attention over blocks of {block_size} in {dtype}, against keys in one row, {heads:?}"
            );
            judge::close(&what, &[*len, heads.q, heads.dim], out, &expected, ALLOWED_F32);
        }
    }
    sequences.into_iter().map(|(.., out)| out).collect()
}

const HEADS: Heads = Heads { q: 6, kv: 2, dim: 16, window: None };

#[test]
fn attention_over_scattered_blocks_is_attention() {
    let rt = runtime(Precision::F32, 2);
    for block_size in [1, 4, 16, 64] {
        feed(&rt, HEADS, block_size, DType::F32, &[(37, 37)], 0);
        // Prompts and decodes in one step, ends in the middle of blocks, rows of padding.
        feed(&rt, HEADS, block_size, DType::F32, &[(20, 1), (33, 9), (12, 12)], 2);
        let narrow = Heads { window: Some(7), ..HEADS };
        feed(&rt, narrow, block_size, DType::F32, &[(30, 1), (21, 8)], 1);
    }
}

#[test]
fn what_is_stored_in_fewer_bits_is_what_is_attended_to() {
    for (dtype, precision) in [(DType::BF16, Precision::Bf16), (DType::F8E4M3, Precision::Bf16)] {
        let rt = runtime(precision, 1);
        for block_size in [1, 8, 16, 32] {
            feed(&rt, HEADS, block_size, dtype, &[(20, 1), (35, 9)], 1);
        }
    }
}

/// The size of blocks is where a token lies, and nothing else.
#[test]
fn blocks_of_any_size_give_the_same_bits() {
    for (dtype, precision) in [
        (DType::F32, Precision::F32),
        (DType::BF16, Precision::Bf16),
        (DType::F8E4M3, Precision::Bf16),
    ] {
        // More than one split of the keys.
        for texts in [&[(45, 45), (20, 1)][..], &[(540, 300)]] {
            let whole = feed(&runtime(precision, 1), HEADS, 1024, dtype, texts, 0);
            for (block_size, threads) in [(1, 1), (2, 3), (8, 2), (16, 1), (32, 3), (256, 2)] {
                let got = feed(&runtime(precision, threads), HEADS, block_size, dtype, texts, 1);
                for ((got, want), (len, _)) in got.iter().zip(&whole).zip(texts) {
                    let what = format!(
                        "attention in {dtype} on {threads} threads, blocks of {block_size} against one"
                    );
                    judge::same_bits(&what, &[*len, HEADS.q, HEADS.dim], got, want);
                }
            }
        }
    }
}

/// The error of eight bits, as the documentation of the cache states it: each number is within 2^-4 of
/// itself, or of the smallest steps.
#[test]
fn eight_bits_keep_what_they_promise() {
    let rt = runtime(Precision::Bf16, 1);
    let mut bench = Bench::new(rt, HEADS, (4, 16), DType::F8E4M3, 40);
    let text = Text::new(HEADS, 40, 5);
    let table = BlockTable::from_blocks(16, &[3, 1, 2]);
    bench.step(&[(&text, &table, 0, 40)], 0);
    let (k, v) = bench.kv.layer(0).unwrap().gather(bench.meta.block_table_row(0), 40).unwrap();
    for (stored, given) in [(k, text.k), (v, text.v)] {
        for (stored, given) in stored.chunks(HEADS.dim).zip(given.chunks(HEADS.dim)) {
            let largest = given.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            for (s, x) in stored.iter().zip(given) {
                let bound = (x.abs() / 16.0).max(largest * 2f32.powi(-17));
                assert!((s - x).abs() <= bound, "{x} was stored as {s}, further than {bound}");
            }
        }
    }
}

#[test]
fn a_copy_of_the_beginning_of_a_block_is_all_that_is_left_of_it() {
    for dtype in [DType::F32, DType::BF16, DType::F8E4M3] {
        let precision = if dtype == DType::F32 { Precision::F32 } else { Precision::Bf16 };
        for block_size in [4, 16, 32] {
            let what = format!("in blocks of {block_size} in {dtype}");
            let bench = || Bench::new(runtime(precision, 1), HEADS, (6, block_size), dtype, 64);
            let text = Text::new(HEADS, 2 * block_size, 5);
            let kept = block_size + block_size / 2;
            // What follows the first `kept` tokens, as if nothing else had been there.
            let mut fresh = bench();
            let table = BlockTable::from_blocks(block_size, &[4, 2]);
            fresh.step(&[(&text, &table, 0, kept)], 0);
            let expected = fresh.step(&[(&text, &table, kept, 1)], 0).got;

            // The other text goes on behind `kept`, and with values that are no numbers.
            let mut other = text.clone();
            let row = HEADS.kv * HEADS.dim;
            other.k[kept * row..].copy_from_slice(&numbers((2 * block_size - kept) * row, 9));
            other.v[kept * row..].fill(f32::NAN);
            let mut copied = bench();
            copied.step(&[(&other, &table, 0, 2 * block_size)], 0);
            let copy = CopyBlock { from: 2, to: 5, tokens: block_size / 2 };
            copied.kv.copy(copy).unwrap();
            let private = BlockTable::from_blocks(block_size, &[4, 5]);
            let got = copied.step(&[(&text, &private, kept, 1)], 0).got;
            let dims = [1, HEADS.q, HEADS.dim];
            judge::same_bits(&format!("attention after a copy, {what}"), &dims, &got, &expected);

            // The same block, cut short where it is.
            copied.kv.clear(2, block_size / 2).unwrap();
            let got = copied.step(&[(&text, &table, kept, 1)], 0).got;
            judge::same_bits(&format!("attention after a cut, {what}"), &dims, &got, &expected);
        }
    }
}

#[test]
fn what_is_done_to_a_block_is_done_in_every_layer() {
    const LAYERS: usize = 2;
    let rt = runtime(Precision::F32, 1);
    let mut kv = PagedKv::new(&config(HEADS, LAYERS), 6, 8, DType::F32).unwrap();
    let row = HEADS.kv * HEADS.dim;
    let mut meta = ForwardMeta::new(8, 1, 1, 8);
    meta.push(&BlockTable::from_blocks(8, &[2]), 0, 8).unwrap();
    let stored: Vec<Vec<f32>> = (0..LAYERS).map(|layer| numbers(8 * row, layer as u64)).collect();
    for (layer, x) in stored.iter().enumerate() {
        let x = Tensor::from_slice(x, &[8, HEADS.kv, HEADS.dim]).unwrap();
        judge::works("storing a block", kv.write(&rt, layer, &meta, x.view(), x.view()));
    }
    let check = |kv: &PagedKv, what: &str, block: i32, tokens: usize| {
        for (layer, stored) in stored.iter().enumerate() {
            let (k, v) = kv.layer(layer).unwrap().gather(&[block], tokens).unwrap();
            for (name, got) in [("keys", k), ("values", v)] {
                let what = format!("{name} of layer {layer} {what}");
                let dims = [tokens, HEADS.kv, HEADS.dim];
                judge::same_bits(&what, &dims, &got, &stored[..tokens * row]);
            }
        }
    };
    check(&kv, "in the block they were stored in", 2, 8);
    kv.copy(CopyBlock { from: 2, to: 5, tokens: 3 }).unwrap();
    check(&kv, "in a copy of the first three tokens", 5, 3);
    let saved = kv.save(&[2]).unwrap();
    kv.load(&[4], &saved).unwrap();
    check(&kv, "in a block that was saved and loaded", 4, 8);
    kv.clear(2, 3).unwrap();
    check(&kv, "before a cut", 2, 3);
    for layer in 0..LAYERS {
        let (_, v) = kv.layer(layer).unwrap().gather(&[2], 8).unwrap();
        assert!(v[3 * row..].iter().all(|x| *x == 0.0), "values of layer {layer} behind a cut");
    }
}

#[test]
fn saved_blocks_come_back_elsewhere() {
    for dtype in [DType::F32, DType::BF16, DType::F8E4M3] {
        let precision = if dtype == DType::F32 { Precision::F32 } else { Precision::Bf16 };
        let text = Text::new(HEADS, 30, 5);
        let mut bench = Bench::new(runtime(precision, 1), HEADS, (9, 8), dtype, 40);
        let table = BlockTable::from_blocks(8, &[7, 1, 4, 2]);
        bench.step(&[(&text, &table, 0, 29)], 0);
        let saved = bench.kv.save(table.blocks()).unwrap();
        assert_eq!((saved.num_blocks(), saved.block_size(), saved.dtype()), (4, 8, dtype));
        let expected = bench.step(&[(&text, &table, 29, 1)], 0).got;
        let mut other = Bench::new(runtime(precision, 1), HEADS, (9, 8), dtype, 40);
        let elsewhere = BlockTable::from_blocks(8, &[3, 8, 5, 6]);
        other.kv.load(elsewhere.blocks(), &saved).unwrap();
        let got = other.step(&[(&text, &elsewhere, 29, 1)], 0).got;
        let what = format!("attention over blocks that were saved and loaded, in {dtype}");
        judge::same_bits(&what, &[1, HEADS.q, HEADS.dim], &got, &expected);
    }
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let mut bench = Bench::new(runtime(Precision::F32, 1), HEADS, (4, 8), DType::F32, 16);
    let (q, kv) = (vec![0.0; 6 * 16], vec![0.0; 2 * 16]);
    bench.meta = ForwardMeta::new(4, 1, 4, 4);
    bench.meta.push(&BlockTable::from_blocks(4, &[1]), 0, 1).unwrap();
    let refused = bench.attend(&q, &kv, &kv);
    judge::fails_with!("a step of blocks of 4 over blocks of 8", refused, KvError::Malformed(_));
    bench.meta = ForwardMeta::new(4, 1, 4, 8);
    bench.meta.push(&BlockTable::from_blocks(8, &[4]), 0, 1).unwrap();
    let refused = bench.attend(&q, &kv, &kv);
    judge::fails_with!("block 4 of a pool of four", refused, KvError::Tensor(_));
    assert!(bench.kv.layer(1).is_none() && bench.kv.layer(0).is_some());
    judge::refused("a block that is not there", "an error", bench.kv.clear(4, 0));
    let copy = CopyBlock { from: 1, to: 2, tokens: 9 };
    judge::refused("nine tokens of a block of eight", "an error", bench.kv.copy(copy));
    judge::refused("saving a block that is not there", "an error", bench.kv.save(&[1, 4]));
    let deep = PagedKv::new(&config(HEADS, 2), 4, 8, DType::F32).unwrap();
    let saved = deep.save(&[1]).unwrap();
    judge::refused("blocks of two layers", "an error", bench.kv.load(&[1], &saved));
    let saved = bench.kv.save(&[1]).unwrap();
    judge::refused("two blocks where one was saved", "an error", bench.kv.load(&[1, 2], &saved));
    for size in [0, 3, 12] {
        let refused = PagedKv::new(&config(HEADS, 1), 4, size, DType::F32);
        judge::fails_with!(format!("blocks of {size} tokens"), refused, KvError::Tensor(_));
    }
}

fn shapes() -> impl Strategy<Value = (Heads, usize, DType, Vec<(usize, usize)>, usize, usize)> {
    let heads = (
        1..4usize,
        1..4usize,
        prop::sample::select(vec![1, 8, 20, 64]),
        prop::option::of(1..30usize),
    )
        .prop_map(|(kv, group, dim, window)| Heads { q: kv * group, kv, dim, window });
    let block_size = prop::sample::select(vec![1, 2, 8, 16, 32, 256]);
    let dtype = prop::sample::select(vec![DType::F32, DType::BF16, DType::F8E4M3]);
    let texts = prop::collection::vec((1..60usize, 1..70usize), 1..4);
    (heads, block_size, dtype, texts, 0..3usize, 1..4usize)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mix_over_any_blocks_is_what_the_reference_says(
        (heads, block_size, dtype, texts, pads, threads) in shapes()
    ) {
        let precision = if dtype == DType::F32 { Precision::F32 } else { Precision::Bf16 };
        feed(&runtime(precision, threads), heads, block_size, dtype, &texts, pads);
    }
}
