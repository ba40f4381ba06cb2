//! The attention kernel: scores, softmax, weighted sum, for one KV head and a few queries.

mod scores;
mod weighted_sum;

use std::ops::Range;

use scores::Gemm;
use weighted_sum::WeightedSum;

use super::matmul::prefetch;
use super::simd::{self, Dot};
use super::{Isa, lanes};
use crate::ops::{AttentionParams, AttentionScratch, Sequences, TILE};
use crate::storage::AlignedBytes;
use crate::{Result, Runtime};

/// The most rows (queries times heads of a group) an item works on, and the bytes of scores it
/// may keep: enough to reuse a key tile many times, small enough for a level-2 cache.
const MAX_ROWS: usize = 48;
const SCORE_BYTES: usize = 512 * 1024;

/// One thread's scratch.
pub(crate) struct Area {
    /// `[rows][words of D]`: queries as words.
    queries: AlignedBytes,
    /// `[rows][keys]`: scores, then weights.
    scores: AlignedBytes,
    /// 1 / sum of weights, per row.
    inverse: [f32; MAX_ROWS],
    rows: usize,
}

impl Area {
    pub(crate) fn new(group: usize, max_kv: usize, dim: usize) -> Result<Self> {
        let row_bytes = max_kv.next_multiple_of(TILE).max(TILE) * 4;
        let rows = (SCORE_BYTES / row_bytes).clamp(group.min(MAX_ROWS), MAX_ROWS);
        Ok(Self {
            queries: AlignedBytes::zeroed(rows * dim.max(1) * 4)?,
            scores: AlignedBytes::zeroed(rows * row_bytes)?,
            inverse: [0.0; MAX_ROWS],
            rows,
        })
    }
}

/// Where results go: rows of `q_heads * D`.
#[derive(Clone, Copy)]
pub(crate) enum Out {
    F32(*mut f32),
    Bf16(*mut half::bf16),
}

/// A checked call of the op. Pointers and slices cover what `sequences` names.
pub(crate) struct Job<'a> {
    pub q: &'a [f32],
    pub q_strides: [usize; 2],
    pub k: &'a [u32],
    pub v: &'a [u32],
    pub sequences: Sequences<'a>,
    pub params: AttentionParams,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub bf16: bool,
    pub out: Out,
    pub out_stride: usize,
}

// SAFETY: items write disjoint parts of `out` (their own tokens and heads).
unsafe impl Sync for Job<'_> {}

/// A piece of work: some queries of a sequence, some heads of one group.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    seq: u32,
    /// First query, within the sequence, and how many.
    first: u32,
    queries: u32,
    /// First query head and how many; all share a KV head.
    head: u32,
    heads: u32,
}

struct Areas(*mut Area);
// SAFETY: each worker takes only the area of its own index.
unsafe impl Sync for Areas {}

pub(crate) fn run(rt: &Runtime, job: &Job, scratch: &mut AttentionScratch) {
    list_items(job, scratch, rt.pool().threads());
    let (items, areas) = (&scratch.items, Areas(scratch.areas.as_mut_ptr()));
    let isa = rt.isa();
    let one = |i: usize, worker: usize| {
        let areas = &areas;
        // SAFETY: `worker` is below the thread count, one thread a worker; `isa` is available.
        unsafe { run_item(isa, job, &items[i], &mut *areas.0.add(worker)) }
    };
    rt.pool().run(items.len(), &one);
}

/// Cut the batch into items, long ones first within a sequence so that threads end together. How
/// it is cut is free to change: no row's arithmetic depends on its neighbours.
fn list_items(job: &Job, scratch: &mut AttentionScratch, threads: usize) {
    let group = job.q_heads / job.kv_heads;
    let max_rows = scratch.areas[0].rows;
    let s = &job.sequences;
    // A group shares its keys; split it only where too few items would leave a thread idle.
    let tokens = s.cu_seqlens_q[s.seq_lens_kv.len()] as usize;
    let per_item = if tokens * job.kv_heads < 4 * threads { 1 } else { group.min(max_rows) };
    let per_tile = (max_rows / per_item).max(1) as u32;
    scratch.items.clear();
    for seq in 0..s.seq_lens_kv.len() {
        let q_len = (s.cu_seqlens_q[seq + 1] - s.cu_seqlens_q[seq]) as u32;
        for tile in (0..q_len.div_ceil(per_tile)).rev() {
            let first = tile * per_tile;
            let queries = per_tile.min(q_len - first);
            for kv_head in 0..job.kv_heads {
                for g in (0..group).step_by(per_item) {
                    let heads = per_item.min(group - g) as u32;
                    let head = (kv_head * group + g) as u32;
                    scratch.items.push(Item { seq: seq as u32, first, queries, head, heads });
                }
            }
        }
    }
}

/// # Safety
/// `isa` is available, the job was checked, and `area` belongs to this thread.
unsafe fn run_item(isa: Isa, job: &Job, item: &Item, area: &mut Area) {
    // SAFETY: each arm's instruction set is the one that was found available.
    unsafe {
        match (isa, job.bf16) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16, true) => avx512_bf16(job, item, area),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16 | Isa::Avx512, false) => avx512_f32(job, item, area),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, true) => avx512_wide(job, item, area),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, false) => avx2_f32(job, item, area),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, true) => avx2_wide(job, item, area),
            (_, false) => attend::<simd::PortableF32, { lanes::PORTABLE_FMA }>(job, item, area),
            (_, true) => attend::<simd::PortableBf16, { lanes::PORTABLE_FMA }>(job, item, area),
        }
    }
}

macro_rules! entry {
    ($name:ident, $features:literal, $dot:ty) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name(job: &Job, item: &Item, area: &mut Area) {
            // SAFETY: passed on from the caller.
            unsafe { attend::<$dot, true>(job, item, area) }
        }
    };
}
entry!(avx512_bf16, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", simd::Avx512Bf16);
entry!(avx512_f32, "avx512f,avx512bw,avx512dq,avx512vl", simd::Avx512F32);
entry!(avx512_wide, "avx512f,avx512bw,avx512dq,avx512vl", simd::Avx512Wide);
entry!(avx2_f32, "avx2,fma", simd::Avx2F32);
entry!(avx2_wide, "avx2,fma", simd::Avx2Wide);

/// # Safety
/// As [`run_item`], with the instruction set of `S` available.
#[inline(always)]
unsafe fn attend<S: Dot, const FMA: bool>(job: &Job, item: &Item, area: &mut Area) {
    let seq = item.seq as usize;
    let s = &job.sequences;
    let q_len = (s.cu_seqlens_q[seq + 1] - s.cu_seqlens_q[seq]) as usize;
    let kv_len = s.seq_lens_kv[seq] as usize;
    let (heads, queries) = (item.heads as usize, item.queries as usize);
    let rows = heads * queries;
    let token0 = s.cu_seqlens_q[seq] as usize + item.first as usize;
    if kv_len == 0 {
        // SAFETY: these tokens and heads are this item's own.
        unsafe { write_zeros(job, item, token0) };
        return;
    }
    // Position of the item's first query, and the tiles its queries see some key of.
    let p0 = kv_len - q_len + item.first as usize;
    let tile0 = visible(p0, job.params.window).start / TILE;
    let tiles = (p0 + queries - 1) / TILE + 1 - tile0;
    let table = &s.tile_table[s.table_rows[seq] + tile0..][..tiles];

    let per_word = if S::PAIRS { 2 } else { 1 };
    let steps = job.dim.div_ceil(per_word);
    let padded = job.dim.next_multiple_of(16);
    let tile_words = TILE * padded / per_word;
    let kv_head = kv_head_of(item.head as usize, job.q_heads, job.kv_heads);
    let tiles_of = |pool: &[u32]| Tiles {
        pool: pool.as_ptr(),
        table,
        heads: job.kv_heads,
        head: kv_head,
        words: tile_words,
    };

    let q_words: *mut u32 = area.queries.as_mut_slice().as_mut_ptr().cast();
    let scores: *mut f32 = area.scores.as_mut_slice().as_mut_ptr().cast();
    let row_len = tiles * TILE;
    for r in 0..rows {
        let token = token0 + r / heads;
        let at = token * job.q_strides[0] + (item.head as usize + r % heads) * job.q_strides[1];
        let q = &job.q[at..at + job.dim];
        // SAFETY: `r` is below the area's rows, `steps` at most `dim`.
        let words = unsafe { std::slice::from_raw_parts_mut(q_words.add(r * steps), steps) };
        to_words::<S>(q, words);
    }
    // SAFETY: tiles were checked to lie in the pool; the areas hold `rows` rows of `row_len`.
    unsafe {
        let gemm =
            Gemm { q_words, steps, rows, scores, row_len, k: tiles_of(job.k), v: tiles_of(job.v) };
        gemm.run::<S>();
    }
    for r in 0..rows {
        let p = p0 + r / heads;
        let seen = visible(p, job.params.window);
        let keys = seen.start - tile0 * TILE..seen.end - tile0 * TILE;
        // SAFETY: row `r` of the scores.
        let row = unsafe { std::slice::from_raw_parts_mut(scores.add(r * row_len), row_len) };
        area.inverse[r] = 1.0 / softmax_in_place::<S, FMA>(row, keys, job.params.scale);
    }
    // SAFETY: as above; output rows are this item's own.
    unsafe {
        let sum = WeightedSum {
            weights: scores.cast(),
            row_words: row_len,
            rows,
            steps: TILE / per_word,
            padded,
            v: tiles_of(job.v),
            inverse: &area.inverse,
            job,
            head: item.head as usize,
            heads,
            token0,
        };
        sum.run::<S>();
    }
}

/// The keys that the query at position `p` sees: none after itself, and at most a window of them.
#[inline(always)]
fn visible(p: usize, window: Option<usize>) -> Range<usize> {
    // exercise l1.attention
    let first = window.map_or(0, |w| (p + 1).saturating_sub(w));
    first..p + 1
    // end of exercise
}

/// The KV head that a query head reads: neighbours share one.
#[inline(always)]
fn kv_head_of(q_head: usize, q_heads: usize, kv_heads: usize) -> usize {
    // exercise l1.attention
    let group = q_heads / kv_heads;
    q_head / group
    // end of exercise
}

/// The tiles of one sequence and KV head, in order.
struct Tiles<'a> {
    pool: *const u32,
    table: &'a [u32],
    heads: usize,
    head: usize,
    words: usize,
}

impl Tiles<'_> {
    /// Ask memory for tile `t`, if there is one.
    #[inline(always)]
    fn prefetch(&self, t: usize) {
        let Some(tile) = self.table.get(t) else { return };
        let start = (*tile as usize * self.heads + self.head) * self.words;
        for word in (0..self.words).step_by(16) {
            prefetch(self.pool.wrapping_add(start + word).cast());
        }
    }

    /// Where tile `t` begins.
    ///
    /// # Safety
    /// The table's tiles lie in the pool.
    #[inline(always)]
    unsafe fn at(&self, t: usize) -> *const u32 {
        let tile = self.table[t] as usize;
        // SAFETY: passed on from the caller.
        unsafe { self.pool.add((tile * self.heads + self.head) * self.words) }
    }
}

#[inline(always)]
fn to_words<S: Dot>(q: &[f32], words: &mut [u32]) {
    if !S::PAIRS {
        for (w, x) in words.iter_mut().zip(q) {
            *w = x.to_bits();
        }
        return;
    }
    for (words, q) in words.chunks_mut(TILE / 2).zip(q.chunks(TILE)) {
        let mut padded = [0.0; 16];
        padded[..q.len()].copy_from_slice(q);
        // SAFETY: the instruction set of `S` is available, as in all of this module.
        let rounded = unsafe { S::round(padded) };
        words.copy_from_slice(&rounded[..words.len()]);
    }
}

/// Turn a row of scores into unnormalised weights and return their sum. Only `keys` count, the
/// rest become 0. Lane `j % 16` sums key `j`, then the lanes are folded: an order that the key
/// indices fix (rows start at a tile in every call). For bf16 the weights are rounded in place,
/// to words at the front of the row.
#[inline(always)]
fn softmax_in_place<S: Dot, const FMA: bool>(
    row: &mut [f32],
    keys: Range<usize>,
    scale: f32,
) -> f32 {
    // exercise l1.attention
    let (first, end) = (keys.start / TILE * TILE, keys.end.next_multiple_of(TILE));
    row[..first].fill(0.0);
    row[end..].fill(0.0);
    // One simple loop for each step: that is what the compiler turns into whole vectors.
    let used = &mut row[first..end];
    for x in used.iter_mut() {
        *x *= scale;
    }
    used[..keys.start - first].fill(f32::NEG_INFINITY);
    used[keys.end - first..].fill(f32::NEG_INFINITY);
    let max = lanes::max_of(used);
    for x in used.iter_mut() {
        *x = lanes::exp::<FMA>(*x - max);
    }
    let sum = lanes::sum(used);
    if S::PAIRS {
        for t in 0..row.len() / TILE {
            let tile = row.as_chunks().0[t];
            // SAFETY: the instruction set of `S` is available, as in all of this module.
            let words = unsafe { S::round(tile) };
            for (x, word) in row[t * TILE / 2..][..TILE / 2].iter_mut().zip(words) {
                *x = f32::from_bits(word);
            }
        }
    }
    sum
    // end of exercise
}

/// # Safety
/// The item's tokens and heads lie in the output.
unsafe fn write_zeros(job: &Job, item: &Item, token0: usize) {
    for token in token0..token0 + item.queries as usize {
        let at = token * job.out_stride + item.head as usize * job.dim;
        for i in 0..item.heads as usize * job.dim {
            // SAFETY: passed on from the caller.
            unsafe {
                match job.out {
                    Out::F32(p) => p.add(at + i).write(0.0),
                    Out::Bf16(p) => p.add(at + i).write(half::bf16::ZERO),
                }
            }
        }
    }
}
