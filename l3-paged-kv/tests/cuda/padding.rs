//! Steps as an engine makes them: arrays of a mixed batch, filled up to a width, over memory of blocks.

use l1_tensor::ops::{AttentionParams, AttentionScratch};
use l1_tensor::{DType, Precision, Runtime, Tensor};
use l2_model::ModelConfig;
use l3_paged_kv::{BlockTable, ForwardMeta, PagedKv};

use crate::judge;
use crate::models::{device, host, load};

const BLOCKS: usize = 9;
const SIZE: usize = 4;

/// A layer of tiny-llama: 6 query heads over 2, of 16 elements.
const HEADS: [usize; 2] = [6, 2];
const DIM: usize = 16;

fn config() -> ModelConfig {
    load("tiny-llama", &host(Precision::F32)).config().clone()
}

/// Rows that say where they are from.
fn rows(rt: &Runtime, tokens: usize, heads: usize, seed: usize) -> Tensor {
    let n = tokens * heads * DIM;
    let values: Vec<f32> = (0..n).map(|i| ((i * 7 + seed * 13) % 29) as f32 / 16.0 - 0.8).collect();
    let rows = Tensor::from_slice(&values, &[tokens, heads, DIM]).unwrap();
    rows.to_device(rt.device()).unwrap()
}

/// One layer's attention over a step, for its first `tokens` tokens; the others are padding.
fn attend(rt: &Runtime, kv: &mut PagedKv, meta: &ForwardMeta, captured: bool) -> Vec<f32> {
    let t = meta.tokens();
    let (q, k, v) = (rows(rt, t, HEADS[0], 1), rows(rt, t, HEADS[1], 2), rows(rt, t, HEADS[1], 3));
    let mut scratch = AttentionScratch::new(rt, t, BLOCKS * SIZE, HEADS[0], DIM).unwrap();
    let params = AttentionParams { scale: 0.25, window: None };
    let mut out = Tensor::zeros(&[t, HEADS[0] * DIM], DType::F32, rt.device()).unwrap();
    kv.stage(rt, meta, captured).unwrap();
    let (q, k, v, out_view) = (q.view(), k.view(), v.view(), out.view_mut());
    kv.attend(rt, 0, meta, q, k, v, params, &mut scratch, out_view).unwrap();
    out.to_vec_f32().unwrap()
}

/// Two sequences that go on by one token each, behind a prompt each.
struct Decoding {
    tables: [BlockTable; 2],
    kv: PagedKv,
}

impl Decoding {
    fn new(rt: &Runtime, dtype: DType) -> Self {
        let tables = [BlockTable::from_blocks(SIZE, &[3, 7]), BlockTable::from_blocks(SIZE, &[5])];
        let mut kv = PagedKv::new_on(rt.device(), &config(), BLOCKS, SIZE, dtype).unwrap();
        let mut meta = ForwardMeta::new(16, 4, BLOCKS, SIZE);
        meta.push(&tables[0], 0, 5).unwrap();
        meta.push(&tables[1], 0, 2).unwrap();
        attend(rt, &mut kv, &meta, false);
        Self { tables, kv }
    }

    fn meta(&self) -> ForwardMeta {
        let mut meta = ForwardMeta::new(16, 4, BLOCKS, SIZE);
        meta.push(&self.tables[0], 5, 1).unwrap();
        meta.push(&self.tables[1], 2, 1).unwrap();
        meta
    }

    /// Keys and values of every block, as f32.
    fn stored(&self) -> Vec<f32> {
        let cache = self.kv.layer(0).unwrap();
        let (k, v) = cache.gather(&(0..BLOCKS as i32).collect::<Vec<_>>(), BLOCKS * SIZE).unwrap();
        k.into_iter().chain(v).collect()
    }
}

#[test]
fn rows_of_padding_store_nothing_see_nothing_and_leave_others_as_they_are() {
    for (precision, dtype) in [(Precision::F32, DType::F32), (Precision::Bf16, DType::BF16)] {
        let rt = device(precision);
        let width = HEADS[0] * DIM;
        let mut alone = Decoding::new(&rt, dtype);
        let meta = alone.meta();
        let expected = attend(&rt, &mut alone.kv, &meta, false);
        let mut padded = Decoding::new(&rt, dtype);
        let mut meta = padded.meta();
        meta.pad_to(4).unwrap();
        let got = attend(&rt, &mut padded.kv, &meta, true);
        let what = format!("attention in {dtype} beside two rows of padding");
        judge::same_bits(&what, &[2, width], &got[..2 * width], &expected);
        assert_eq!(got[2 * width..], vec![0.0; 2 * width], "{dtype}: what padding sees");
        let what = format!("blocks in {dtype} after a step with padding");
        let (got, expected) = (padded.stored(), alone.stored());
        judge::same_bits(&what, &[got.len()], &got, &expected);
        assert!(got.iter().any(|x| *x != 0.0), "something was stored");
    }
}

#[test]
fn drafts_in_the_shape_of_a_decode_step_see_what_single_tokens_see() {
    for (precision, dtype) in [(Precision::F32, DType::F32), (Precision::Bf16, DType::BF16)] {
        let rt = device(precision);
        let width = HEADS[0] * DIM;
        // The first sequence's two drafts and the second's token, behind each other.
        let mut one_by_one = Decoding::new(&rt, dtype);
        let mut meta = ForwardMeta::new(16, 8, BLOCKS, SIZE);
        for at in 5..8 {
            meta.push(&one_by_one.tables[0], at, 1).unwrap();
        }
        meta.push(&one_by_one.tables[1], 2, 1).unwrap();
        let expected = attend(&rt, &mut one_by_one.kv, &meta, true);

        let mut drafted = Decoding::new(&rt, dtype);
        let mut meta = ForwardMeta::new(16, 8, BLOCKS, SIZE).with_captured_queries(4);
        meta.push(&drafted.tables[0], 5, 3).unwrap();
        meta.push(&drafted.tables[1], 2, 1).unwrap();
        meta.pad_to_width(6).unwrap();
        let got = attend(&rt, &mut drafted.kv, &meta, true);
        let what = format!("attention in {dtype} of a token and two drafts, and of a token");
        judge::close(&what, &[4, width], &got[..4 * width], &expected, 1e-5);
        assert_eq!(got[4 * width..], vec![0.0; 2 * width], "{dtype}: what padding sees");
        let what = format!("blocks in {dtype} after a step with drafts");
        let (got, expected) = (drafted.stored(), one_by_one.stored());
        judge::same_bits(&what, &[got.len()], &got, &expected);
    }
}

/// The null block, which padding and errors would hit first, and blocks of nobody stay zero.
#[test]
fn blocks_of_nobody_stay_as_they_were_on_a_device() {
    let rt = device(Precision::F32);
    let decoding = Decoding::new(&rt, DType::F32);
    let cache = decoding.kv.layer(0).unwrap();
    for block in [0, 1, 2, 4, 6, 8] {
        let (k, v) = cache.gather(&[block], SIZE).unwrap();
        assert!(k.iter().chain(&v).all(|x| *x == 0.0), "block {block} was written");
    }
}

#[test]
fn attention_over_blocks_on_a_device_is_that_on_a_cpu() {
    for (precision, dtype, allowed) in
        [(Precision::F32, DType::F32, 1e-5), (Precision::Bf16, DType::BF16, 2e-2)]
    {
        let (rt, host) = (device(precision), host(precision));
        let on = |rt: &Runtime| {
            let mut decoding = Decoding::new(rt, dtype);
            let meta = decoding.meta();
            (attend(rt, &mut decoding.kv, &meta, false), decoding.stored())
        };
        let ((got, stored), (expected, stored_on_host)) = (on(&rt), on(&host));
        let what = format!("attention over blocks in {dtype} on a device, against the CPU");
        judge::close(&what, &[2, HEADS[0] * DIM], &got, &expected, allowed);
        let what = format!("what is stored in {dtype} on a device, against the CPU");
        judge::same_bits(&what, &[stored.len()], &stored, &stored_on_host);
    }
}
