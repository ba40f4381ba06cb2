//! The attention kernel: scores, softmax, weighted sum, for one KV head and a few queries.

use std::ops::Range;

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
    // Position of the item's first query; the last key it may see, and the first.
    let p0 = kv_len - q_len + item.first as usize;
    let lowest = |p: usize| job.params.window.map_or(0, |w| (p + 1).saturating_sub(w));
    let tile0 = lowest(p0) / TILE;
    let tiles = (p0 + queries - 1) / TILE + 1 - tile0;
    let table = &s.tile_table[s.table_rows[seq] + tile0..][..tiles];

    let per_word = if job.bf16 { 2 } else { 1 };
    let steps = job.dim.div_ceil(per_word);
    let padded = job.dim.next_multiple_of(16);
    let tile_words = TILE * padded / per_word;
    let kv_head = item.head as usize / (job.q_heads / job.kv_heads);
    let tile_at = |t: usize| (table[t] as usize * job.kv_heads + kv_head) * tile_words;

    let q_words: *mut u32 = area.queries.as_mut_slice().as_mut_ptr().cast();
    let scores: *mut f32 = area.scores.as_mut_slice().as_mut_ptr().cast();
    let row_len = tiles * TILE;
    for r in 0..rows {
        let token = token0 + r / heads;
        let at = token * job.q_strides[0] + (item.head as usize + r % heads) * job.q_strides[1];
        let q = &job.q[at..at + job.dim];
        // SAFETY: `r` is below the area's rows, `steps` at most `dim`.
        let words = unsafe { std::slice::from_raw_parts_mut(q_words.add(r * steps), steps) };
        to_words(q, words, job.bf16);
    }
    // SAFETY: tiles were checked to lie in the pool; the areas hold `rows` rows of `row_len`.
    unsafe {
        scores_of_tiles::<S>(&Gemm { q_words, steps, rows, tiles, scores, row_len }, |t| {
            job.k.as_ptr().add(tile_at(t))
        });
    }
    for r in 0..rows {
        let p = p0 + r / heads;
        let keys = (lowest(p) - tile0 * TILE)..(p + 1 - tile0 * TILE);
        // SAFETY: row `r` of the scores.
        let row = unsafe { std::slice::from_raw_parts_mut(scores.add(r * row_len), row_len) };
        area.inverse[r] = 1.0 / softmax_in_place::<FMA>(row, keys, job.params.scale, job.bf16);
    }
    // SAFETY: as above; output rows are this item's own.
    unsafe {
        let weights: *const u32 = scores.cast();
        let sum = WeightedSum {
            weights,
            row_words: row_len,
            rows,
            tiles,
            steps: TILE / per_word,
            padded,
        };
        sum.run::<S>(
            |t| job.v.as_ptr().add(tile_at(t)),
            |r, chunk, values| {
                let head = item.head as usize + r % heads;
                let at = (token0 + r / heads) * job.out_stride + head * job.dim + chunk * 16;
                let n = (job.dim - chunk * 16).min(16);
                write_out(job.out, at, &values[..n], area.inverse[r]);
            },
        );
    }
}

#[inline(always)]
fn to_words(q: &[f32], words: &mut [u32], bf16: bool) {
    if !bf16 {
        for (w, x) in words.iter_mut().zip(q) {
            *w = x.to_bits();
        }
        return;
    }
    let bits = |x: f32| u32::from(lanes::round_bf16(x).to_bits());
    for (w, pair) in words.iter_mut().zip(q.chunks(2)) {
        *w = bits(pair[0]) | pair.get(1).map_or(0, |x| bits(*x) << 16);
    }
}

struct Gemm {
    q_words: *const u32,
    steps: usize,
    rows: usize,
    tiles: usize,
    scores: *mut f32,
    row_len: usize,
}

/// `scores[r][16 t + i] = dot(q[r], key i of tile t)`, one accumulator per score.
///
/// # Safety
/// The pointers of `g` and `tile` cover the sizes in `g`.
#[inline(always)]
unsafe fn scores_of_tiles<S: Dot>(g: &Gemm, tile: impl Fn(usize) -> *const u32) {
    // SAFETY: passed on from the caller; blocks partition rows and tiles.
    unsafe {
        let mut t = 0;
        if S::REGISTERS >= 24 {
            if g.rows <= 4 {
                while t + 4 <= g.tiles {
                    score_rows::<S, 4>(g, t, [tile(t), tile(t + 1), tile(t + 2), tile(t + 3)]);
                    t += 4;
                }
            }
            while t + 2 <= g.tiles {
                score_rows::<S, 2>(g, t, [tile(t), tile(t + 1)]);
                t += 2;
            }
        }
        while t < g.tiles {
            score_rows::<S, 1>(g, t, [tile(t)]);
            t += 1;
        }
    }
}

/// All rows against `C` tiles, in the largest row blocks the registers hold.
///
/// # Safety
/// As [`scores_of_tiles`].
#[inline(always)]
unsafe fn score_rows<S: Dot, const C: usize>(g: &Gemm, t: usize, k: [*const u32; C]) {
    let mut r = 0;
    // SAFETY: passed on from the caller; `r` stays below `rows`.
    unsafe {
        while r < g.rows {
            let left = g.rows - r;
            r += if C <= 2 && S::REGISTERS >= 24 && left >= 12 {
                score_block::<S, 12, C>(g, r, t, k)
            } else if C <= 2 && S::REGISTERS >= 24 && left >= 6 {
                score_block::<S, 6, C>(g, r, t, k)
            } else if left >= 3 {
                score_block::<S, 3, C>(g, r, t, k)
            } else {
                score_block::<S, 1, C>(g, r, t, k)
            };
        }
    }
}

/// # Safety
/// As [`scores_of_tiles`].
#[inline(always)]
unsafe fn score_block<S: Dot, const R: usize, const C: usize>(
    g: &Gemm,
    r0: usize,
    t: usize,
    k: [*const u32; C],
) -> usize {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut acc = [[S::zero(); C]; R];
        let q = g.q_words.add(r0 * g.steps);
        for w in 0..g.steps {
            for r in 0..R {
                for c in 0..C {
                    acc[r][c] = S::step(acc[r][c], k[c].add(w * TILE), q.add(r * g.steps + w));
                }
            }
        }
        for (r, row) in acc.into_iter().enumerate() {
            for (c, sums) in row.into_iter().enumerate() {
                S::store(sums, g.scores.add((r0 + r) * g.row_len + (t + c) * TILE));
            }
        }
    }
    R
}

/// Turn a row of scores into unnormalised weights and return their sum. Only `keys` count, the
/// rest become 0. Lane `j % 16` sums key `j`, then the lanes are folded: an order that the key
/// indices fix (tiles start at multiples of 16 in every call). With `bf16` the weights are written
/// as bf16 over the front of the row.
#[inline(always)]
fn softmax_in_place<const FMA: bool>(
    row: &mut [f32],
    keys: Range<usize>,
    scale: f32,
    bf16: bool,
) -> f32 {
    let masked = |base: usize, tile: &[f32; 16]| {
        std::array::from_fn::<f32, 16, _>(|i| {
            let inside = (base + i >= keys.start) & (base + i < keys.end);
            if inside { tile[i] * scale } else { f32::NEG_INFINITY }
        })
    };
    let (first, last) = (keys.start / TILE, (keys.end - 1) / TILE);
    let (tiles, _) = row.as_chunks_mut::<16>();
    let mut max = [f32::NEG_INFINITY; 16];
    for (t, tile) in tiles.iter_mut().enumerate().take(last + 1).skip(first) {
        *tile =
            if t == first || t == last { masked(t * TILE, tile) } else { tile.map(|x| x * scale) };
        for i in 0..16 {
            max[i] = lanes::max(tile[i], max[i]);
        }
    }
    let max = lanes::fold_lanes(max, |a, b| lanes::max(b, a));
    let mut sum = [0.0; 16];
    for t in 0..tiles.len() {
        let weights = if (first..=last).contains(&t) {
            tiles[t].map(|x| lanes::exp::<FMA>(x - max))
        } else {
            [0.0; 16]
        };
        for i in 0..16 {
            sum[i] += weights[i];
        }
        if bf16 {
            let words = bf16_pairs(weights);
            let at = &mut tiles.as_flattened_mut()[t * 8..t * 8 + 8];
            for (w, word) in at.iter_mut().zip(words) {
                *w = f32::from_bits(word);
            }
        } else {
            tiles[t] = weights;
        }
    }
    lanes::sum_lanes(sum)
}

/// Sixteen weights as eight words of two bf16, the even one in the low half.
#[inline(always)]
fn bf16_pairs(x: [f32; 16]) -> [u32; 8] {
    let bits = x.map(|x| u32::from(lanes::round_bf16(x).to_bits()));
    std::array::from_fn(|i| bits[2 * i] | bits[2 * i + 1] << 16)
}

struct WeightedSum {
    weights: *const u32,
    row_words: usize,
    rows: usize,
    tiles: usize,
    /// Words of weights per tile, rows of words per value tile.
    steps: usize,
    padded: usize,
}

impl WeightedSum {
    /// `out(r, c, sums)` receives row `r`'s sums of value elements `16 c..16 c + 16`.
    ///
    /// # Safety
    /// The pointers of `self` and `tile` cover the sizes in `self`.
    #[inline(always)]
    unsafe fn run<S: Dot>(
        &self,
        tile: impl Fn(usize) -> *const u32,
        mut out: impl FnMut(usize, usize, [f32; 16]),
    ) {
        let chunks = self.padded / 16;
        let mut r = 0;
        // SAFETY: passed on from the caller; blocks partition rows and chunks.
        unsafe {
            while r < self.rows {
                let left = self.rows - r;
                let wide = S::REGISTERS >= 24;
                let mut c = 0;
                let taken = if wide && left >= 6 {
                    6
                } else if left >= 3 {
                    3
                } else {
                    1
                };
                while c < chunks {
                    let four = wide && c + 4 <= chunks;
                    c += match (taken, four) {
                        (6, true) => self.block::<S, 6, 4>(r, c, &tile, &mut out),
                        (6, false) => self.block::<S, 6, 1>(r, c, &tile, &mut out),
                        (3, true) => self.block::<S, 3, 4>(r, c, &tile, &mut out),
                        (3, false) => self.block::<S, 3, 1>(r, c, &tile, &mut out),
                        (_, true) => self.block::<S, 1, 4>(r, c, &tile, &mut out),
                        (_, false) => self.block::<S, 1, 1>(r, c, &tile, &mut out),
                    };
                }
                r += taken;
            }
        }
    }

    /// # Safety
    /// As [`WeightedSum::run`].
    #[inline(always)]
    unsafe fn block<S: Dot, const R: usize, const C: usize>(
        &self,
        r0: usize,
        c0: usize,
        tile: &impl Fn(usize) -> *const u32,
        out: &mut impl FnMut(usize, usize, [f32; 16]),
    ) -> usize {
        // SAFETY: passed on from the caller.
        unsafe {
            let mut acc = [[S::zero(); C]; R];
            let weights = self.weights.add(r0 * self.row_words);
            for t in 0..self.tiles {
                let v = tile(t).add(c0 * 16);
                for w in 0..self.steps {
                    for r in 0..R {
                        for c in 0..C {
                            acc[r][c] = S::step(
                                acc[r][c],
                                v.add(w * self.padded + c * 16),
                                weights.add(r * self.row_words + t * self.steps + w),
                            );
                        }
                    }
                }
            }
            for (r, row) in acc.into_iter().enumerate() {
                for (c, sums) in row.into_iter().enumerate() {
                    let mut values = [0.0; 16];
                    S::store(sums, values.as_mut_ptr());
                    out(r0 + r, c0 + c, values);
                }
            }
        }
        C
    }
}

/// # Safety
/// `at..at + values.len()` lies in the output and belongs to this item.
#[inline(always)]
unsafe fn write_out(out: Out, at: usize, values: &[f32], factor: f32) {
    for (i, x) in values.iter().enumerate() {
        // SAFETY: passed on from the caller.
        unsafe {
            match out {
                Out::F32(p) => p.add(at + i).write(x * factor),
                Out::Bf16(p) => {
                    p.add(at + i).write(lanes::round_bf16(x * factor));
                }
            }
        }
    }
}

/// # Safety
/// The item's tokens and heads lie in the output.
unsafe fn write_zeros(job: &Job, item: &Item, token0: usize) {
    for token in token0..token0 + item.queries as usize {
        let at = token * job.out_stride + item.head as usize * job.dim;
        for i in 0..item.heads as usize * job.dim {
            // SAFETY: passed on from the caller.
            unsafe { write_out(job.out, at + i, &[0.0], 1.0) };
        }
    }
}
