//! The attention kernel: scores, softmax, weighted sum, for one KV head and a few queries.

mod items;
mod scores;
mod splits;
mod tiles;
mod weighted_sum;

use std::ops::Range;

pub(crate) use items::Agenda;
use items::Item;
use scores::Gemm;
pub(crate) use splits::Totals;
use splits::{SPLIT, SPLIT_TILES, merge, splits_of, within};
pub(crate) use tiles::Pool;
use tiles::{Part, Reader, Workbench, make_tiles};
use weighted_sum::WeightedSum;

use super::simd::{self, Dot};
use super::{Isa, lanes};
use crate::ops::{AttentionParams, AttentionScratch, Sequences, TILE};
use crate::storage::AlignedBytes;
use crate::{DType, Result, Runtime};

/// Maximum number of rows (queries times heads of a group) of an item: enough to reuse a key tile many times,
/// few enough that their scores over a split stay in a level-2 cache.
const MAX_ROWS: usize = 48;

/// Maximum number of rows that meet four tiles of keys at a time: more would not fit the registers.
const FEW_ROWS: usize = 4;

/// One thread's scratch. Its size does not depend on the length of contexts.
pub(crate) struct Area {
    /// `[rows][words of D]`: queries as words.
    queries: AlignedBytes,
    /// `[rows][SPLIT]`: scores, then weights.
    scores: AlignedBytes,
    /// Tiles that were assembled or widened: keys of a split, then its values.
    words: AlignedBytes,
    codes: AlignedBytes,
    /// `[rows][D']`: the weighted values so far, and those of the current split.
    values: AlignedBytes,
    more_values: AlignedBytes,
    totals: [Option<Totals>; MAX_ROWS],
    more_totals: [Option<Totals>; MAX_ROWS],
}

impl Area {
    pub(crate) fn new(dim: usize) -> Result<Self> {
        let padded = dim.next_multiple_of(16).max(16);
        let floats = |n: usize| AlignedBytes::zeroed(n * size_of::<f32>());
        Ok(Self {
            queries: floats(MAX_ROWS * padded)?,
            scores: floats(MAX_ROWS * SPLIT)?,
            words: floats(SPLIT * padded)?,
            codes: AlignedBytes::zeroed(TILE * padded)?,
            values: floats(MAX_ROWS * padded)?,
            more_values: floats(MAX_ROWS * padded)?,
            totals: [None; MAX_ROWS],
            more_totals: [None; MAX_ROWS],
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        let Self { queries, scores, words, codes, values, more_values, .. } = self;
        let buffers = [queries, scores, words, codes, values, more_values];
        size_of::<Self>() + buffers.map(|b| b.as_slice().len()).iter().sum::<usize>()
    }
}

/// Destination of results: rows of `q_heads * D`.
#[derive(Clone, Copy)]
pub(crate) enum Out {
    F32(*mut f32),
    Bf16(*mut half::bf16),
}

/// A checked call of the op. Pointers and slices cover what `sequences` names.
pub(crate) struct Job<'a> {
    pub isa: Isa,
    pub q: &'a [f32],
    pub q_strides: [usize; 2],
    pub pool: Pool<'a>,
    pub sequences: Sequences<'a>,
    pub params: AttentionParams,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub out: Out,
    pub out_stride: usize,
}

// SAFETY: items write disjoint parts of `out` (their own tokens and heads).
unsafe impl Sync for Job<'_> {}

/// Rows of results: `[rows]` totals and `[rows][D']` weighted values.
#[derive(Clone, Copy)]
struct Rows {
    totals: *mut Option<Totals>,
    values: *mut f32,
}

/// Work to do on an item.
#[derive(Clone, Copy)]
enum Work {
    /// The whole item.
    Whole,
    /// One of its splits, into rows of partial results.
    Split(usize, Rows),
    /// Merge of its splits, whose rows follow each other.
    Merge(Rows),
}

/// A split among those that one thread takes in turn.
#[derive(Clone, Copy)]
struct Turn {
    split: usize,
    first: bool,
    last: bool,
}

struct Shared {
    areas: *mut Area,
    partials: Rows,
}
// SAFETY: each worker takes only the area of its own index, each piece its own rows.
unsafe impl Sync for Shared {}

pub(crate) fn run(rt: &Runtime, job: &Job, scratch: &mut AttentionScratch) {
    scratch.agenda.list(job, rt.pool().threads());
    let shared = Shared {
        areas: scratch.areas.as_mut_ptr(),
        partials: Rows {
            totals: scratch.partial_totals.as_mut_ptr(),
            values: scratch.partial_values.as_mut_slice().as_mut_ptr().cast(),
        },
    };
    let (isa, padded) = (rt.isa(), job.pool.geometry.padded());
    let Agenda { items, pieces, .. } = &scratch.agenda;
    let work = |item: &Item, work: Work, worker: usize| {
        let shared = &shared;
        // SAFETY: `worker` is below the thread count, one thread a worker; `isa` is available.
        unsafe { run_item(isa, job, item, work, &mut *shared.areas.add(worker)) }
    };
    if pieces.is_empty() {
        rt.pool().run(items.len(), &|i, worker| work(&items[i], Work::Whole, worker));
        return;
    }
    let rows = |first: usize| {
        let shared = &shared;
        Rows {
            totals: shared.partials.totals.wrapping_add(first),
            values: shared.partials.values.wrapping_add(first * padded),
        }
    };
    rt.pool().run(pieces.len(), &|i, worker| {
        let item = &items[pieces[i].item as usize];
        let split = pieces[i].split as usize;
        let first = item.partials as usize + (split - splits_seen(job, item).start) * item.rows();
        work(item, Work::Split(split, rows(first)), worker);
    });
    // Few rows, by the condition above: waking other threads would cost more.
    for item in items {
        work(item, Work::Merge(rows(item.partials as usize)), 0);
    }
}

/// # Safety
/// `isa` is available, the job was checked, and `area` and the rows of `work` belong to this thread.
unsafe fn run_item(isa: Isa, job: &Job, item: &Item, work: Work, area: &mut Area) {
    let pairs = job.pool.geometry.dtype != DType::F32;
    // SAFETY: each arm's instruction set is the one that was found available.
    unsafe {
        match (isa, pairs) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx | Isa::Avx512Bf16, true) => avx512_bf16(job, item, work, area),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512, false) => avx512_f32(job, item, work, area),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, true) => avx512_wide(job, item, work, area),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, false) => avx2_f32(job, item, work, area),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, true) => avx2_wide(job, item, work, area),
            (_, false) => {
                attend::<simd::PortableF32, { lanes::PORTABLE_FMA }>(job, item, work, area)
            }
            (_, true) => {
                attend::<simd::PortableBf16, { lanes::PORTABLE_FMA }>(job, item, work, area)
            }
        }
    }
}

macro_rules! entry {
    ($name:ident, $features:literal, $dot:ty) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name(job: &Job, item: &Item, work: Work, area: &mut Area) {
            // SAFETY: passed on from the caller.
            unsafe { attend::<$dot, true>(job, item, work, area) }
        }
    };
}
entry!(avx512_bf16, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", simd::Avx512Bf16);
entry!(avx512_f32, "avx512f,avx512bw,avx512dq,avx512vl", simd::Avx512F32);
entry!(avx512_wide, "avx512f,avx512bw,avx512dq,avx512vl", simd::Avx512Wide);
entry!(avx2_f32, "avx2,fma", simd::Avx2F32);
entry!(avx2_wide, "avx2,fma", simd::Avx2Wide);

/// Position of an item's first query, and the keys that any of its queries sees.
#[inline(always)]
fn keys_of(job: &Job, item: &Item) -> (usize, Range<usize>) {
    let (seq, s) = (item.seq as usize, &job.sequences);
    let q_len = (s.cu_seqlens_q[seq + 1] - s.cu_seqlens_q[seq]) as usize;
    let p0 = s.seq_lens_kv[seq] as usize - q_len + item.first as usize;
    (p0, visible(p0, job.params.window).start..p0 + item.queries as usize)
}

/// Splits of which an item's rows see some key. A padding row has no keys, and one split in which its zeros
/// are written.
fn splits_seen(job: &Job, item: &Item) -> Range<usize> {
    match job.sequences.seq_lens_kv[item.seq as usize] {
        0 => 0..1,
        _ => splits_of(&keys_of(job, item).1),
    }
}

/// # Safety
/// As [`run_item`], with the instruction set of `S` available.
#[inline(always)]
unsafe fn attend<S: Dot, const FMA: bool>(job: &Job, item: &Item, work: Work, area: &mut Area) {
    let seq = item.seq as usize;
    let s = &job.sequences;
    let token0 = s.cu_seqlens_q[seq] as usize + item.first as usize;
    if s.seq_lens_kv[seq] == 0 {
        // SAFETY: these tokens and heads are this item's own.
        unsafe { write_zeros(job, item, token0) };
        return;
    }
    let rows = item.rows();
    let padded = job.pool.geometry.padded();
    let (_, keys) = keys_of(job, item);
    let splits = splits_of(&keys);
    let own = Rows {
        totals: area.totals.as_mut_ptr(),
        values: area.values.as_mut_slice().as_mut_ptr().cast(),
    };
    let more = Rows {
        totals: area.more_totals.as_mut_ptr(),
        values: area.more_values.as_mut_slice().as_mut_ptr().cast(),
    };
    // SAFETY: areas have room for an item's rows, partial results for those of each split.
    unsafe {
        if let Work::Merge(first) = work {
            for n in 1..splits.len() {
                let more = Rows {
                    totals: first.totals.add(n * rows),
                    values: first.values.add(n * rows * padded),
                };
                merge_rows::<FMA>(first, more, rows, padded);
            }
            return write_rows::<S>(job, item, token0, first);
        }
        let (splits, into) = match work {
            Work::Split(split, into) => (split..split + 1, into),
            _ => (splits, own),
        };
        queries_to_words::<S>(job, item, token0, area);
        for split in splits.clone() {
            let first = split == splits.start;
            let turn = Turn { split, first, last: split + 1 == splits.end };
            one_split::<S, FMA>(job, item, turn, area, if first { into } else { more });
            if !first {
                merge_rows::<FMA>(into, more, rows, padded);
            }
        }
        if let Work::Whole = work {
            write_rows::<S>(job, item, token0, own);
        }
    }
}

/// # Safety
/// The area has room for the item's rows.
#[inline(always)]
unsafe fn queries_to_words<S: Dot>(job: &Job, item: &Item, token0: usize, area: &mut Area) {
    let steps = job.dim.div_ceil(job.pool.geometry.per_word());
    let heads = item.heads as usize;
    let q_words: *mut u32 = area.queries.as_mut_slice().as_mut_ptr().cast();
    for r in 0..item.rows() {
        let token = token0 + r / heads;
        let at = token * job.q_strides[0] + (item.head as usize + r % heads) * job.q_strides[1];
        let q = &job.q[at..at + job.dim];
        // SAFETY: `r` is below the area's rows, `steps` at most `dim`.
        let words = unsafe { std::slice::from_raw_parts_mut(q_words.add(r * steps), steps) };
        to_words::<S>(q, words);
    }
}

/// Computes an item's rows over one split; the queries are words already.
///
/// # Safety
/// As [`run_item`]; `out` has room for the item's rows.
#[inline(always)]
unsafe fn one_split<S: Dot, const FMA: bool>(
    job: &Job,
    item: &Item,
    Turn { split, first, last }: Turn,
    area: &mut Area,
    out: Rows,
) {
    let (seq, heads, rows) = (item.seq as usize, item.heads as usize, item.rows());
    let (p0, keys) = keys_of(job, item);
    let s = &job.sequences;
    let block_size = job.pool.block_size;
    let reader = Reader {
        pool: job.pool,
        table: &s.block_table[seq * s.max_blocks..][..s.max_blocks],
        blocks: keys.start / block_size..keys.end.div_ceil(block_size),
        head: kv_head_of(item.head as usize, job.q_heads, job.kv_heads),
    };
    let in_split = within(&keys, split);
    let tiles = in_split.start / TILE..in_split.end.div_ceil(TILE);
    let row_len = tiles.len() * TILE;
    let mut bench =
        Workbench { words: area.words.as_mut_slice(), codes: area.codes.as_mut_slice() };
    let scores: *mut f32 = area.scores.as_mut_slice().as_mut_ptr().cast();

    let (k, v) = if reader.in_place() {
        let v = reader.stored_tiles(Part::Values, tiles.clone());
        (reader.stored_tiles(Part::Keys, tiles.clone()), Some(v))
    } else {
        (make_tiles(job.isa, &reader, Part::Keys, tiles.clone(), &mut bench), None)
    };
    // SAFETY: tiles lie in the pool or the scratch; the areas hold `rows` rows of a split.
    unsafe {
        let q_words = area.queries.as_slice().as_ptr().cast();
        let steps = job.dim.div_ceil(job.pool.geometry.per_word());
        Gemm { q_words, steps, rows, k: &k, k_is_new: first, v: v.as_ref(), scores, row_len }
            .run::<S>();
    }
    for r in 0..rows {
        let seen = within(&visible(p0 + r / heads, job.params.window), split);
        // SAFETY: row `r` of the scores, and of the results.
        unsafe {
            let row = std::slice::from_raw_parts_mut(scores.add(r * row_len), row_len);
            *out.totals.add(r) = if seen.is_empty() {
                // Another query of the item sees this split, this one does not.
                row.fill(0.0);
                None
            } else {
                let begin = tiles.start * TILE;
                let keys = seen.start - begin..seen.end - begin;
                Some(softmax_in_place::<S, FMA>(row, keys, job.params.scale))
            };
        }
    }
    // While these values are summed, the keys of the next split are prefetched, so that memory is busy in both
    // halves of the work.
    let next = within(&keys, split + 1);
    let coming = (!last && v.is_some())
        .then(|| reader.stored_tiles(Part::Keys, next.start / TILE..next.end.div_ceil(TILE)));
    // Where tiles are assembled in scratch, values overwrite the keys.
    let v = match v {
        Some(v) => v,
        None => make_tiles(job.isa, &reader, Part::Values, tiles.clone(), &mut bench),
    };
    // SAFETY: as above.
    unsafe {
        WeightedSum {
            weights: scores.cast(),
            row_words: row_len,
            rows,
            steps: TILE / job.pool.geometry.per_word(),
            padded: job.pool.geometry.padded(),
            v: &v,
            coming: coming.as_ref(),
            out: out.values,
        }
        .run::<S>();
    }
}

/// Merges the rows of the next split into those of the splits before it.
///
/// # Safety
/// Both have `rows` rows.
#[inline(always)]
unsafe fn merge_rows<const FMA: bool>(into: Rows, more: Rows, rows: usize, padded: usize) {
    for r in 0..rows {
        // SAFETY: passed on from the caller; the two lie apart.
        unsafe {
            let totals = &mut *into.totals.add(r);
            let values = std::slice::from_raw_parts_mut(into.values.add(r * padded), padded);
            let more_values = std::slice::from_raw_parts(more.values.add(r * padded), padded);
            match (totals, *more.totals.add(r)) {
                (_, None) => {}
                (Some(totals), Some(more)) => merge::<FMA>(totals, values, more, more_values),
                (totals @ None, more) => {
                    *totals = more;
                    values.copy_from_slice(more_values);
                }
            }
        }
    }
}

/// Keys that the query at position `p` sees: none after itself, and at most a window of them.
#[inline(always)]
fn visible(p: usize, window: Option<usize>) -> Range<usize> {
    // exercise l1.attention
    let first = window.map_or(0, |w| (p + 1).saturating_sub(w));
    first..p + 1
    // end of exercise
}

/// KV head that a query head reads: neighbouring query heads share one.
#[inline(always)]
fn kv_head_of(q_head: usize, q_heads: usize, kv_heads: usize) -> usize {
    // exercise l1.attention
    let group = q_heads / kv_heads;
    q_head / group
    // end of exercise
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

/// Turns a row of scores into unnormalised weights and returns their maximum and their sum. Only `keys`
/// count, of which there is at least one; the rest become 0. Lane `j % 16` sums key `j`, then the lanes are
/// folded: an order that the key indices fix (rows start at a tile in every call). For bf16 the weights are
/// rounded in place, to words at the front of the row.
#[inline(always)]
fn softmax_in_place<S: Dot, const FMA: bool>(
    row: &mut [f32],
    keys: Range<usize>,
    scale: f32,
) -> Totals {
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
    Totals { max, sum }
    // end of exercise
}

/// Divides rows by their sums and writes them to the output.
///
/// # Safety
/// The item's tokens and heads lie in the output, its rows in `rows`.
#[inline(always)]
unsafe fn write_rows<S: Dot>(job: &Job, item: &Item, token0: usize, rows: Rows) {
    let padded = job.pool.geometry.padded();
    for r in 0..item.rows() {
        let token = token0 + r / item.heads as usize;
        let head = item.head as usize + r % item.heads as usize;
        // SAFETY: passed on from the caller.
        unsafe {
            let Some(totals) = *rows.totals.add(r) else { continue };
            let inverse = 1.0 / totals.sum;
            for d in (0..job.dim).step_by(16) {
                let at = token * job.out_stride + head * job.dim + d;
                let n = (job.dim - d).min(16);
                let values = rows.values.add(r * padded + d).cast::<[f32; 16]>().read();
                let values = values.map(|x| x * inverse);
                // Sixteen is the usual number and one move; any other number is a call.
                match job.out {
                    Out::F32(p) if n == 16 => p.add(at).cast::<[f32; 16]>().write_unaligned(values),
                    Out::F32(p) => p.add(at).copy_from_nonoverlapping(values.as_ptr(), n),
                    Out::Bf16(p) if n == 16 => {
                        p.add(at).cast::<[u32; 8]>().write_unaligned(S::round(values));
                    }
                    Out::Bf16(p) => {
                        let words = S::round(values);
                        p.add(at).copy_from_nonoverlapping(words.as_ptr().cast(), n);
                    }
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
            unsafe {
                match job.out {
                    Out::F32(p) => p.add(at + i).write(0.0),
                    Out::Bf16(p) => p.add(at + i).write(half::bf16::ZERO),
                }
            }
        }
    }
}
