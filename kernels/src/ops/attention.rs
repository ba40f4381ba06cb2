//! Attention over blocks: which of three kernels computes which sequences.
//!
//! | | `Fast` | `BatchInvariant` |
//! |---|---|---|
//! | steps of at most 16 queries a sequence | `attention_decode`: split over the keys | `attention_prefill` |
//! | others: sequences with one query | `attention_decode` | `attention_prefill` |
//! | others: sequences with more | `attention_prefill`: tiles of queries | `attention_prefill` |
//! | f32 caches, head sizes without tensor core kernels | `attention_rows` | `attention_rows` |
//!
//! The host knows bounds only, so that a captured launch stays valid for the lengths at replay. A step with
//! both kinds of sequences launches both kernels, and each skips, on the device, the sequences of the other.

use std::sync::Arc;

use super::Arithmetic;
use crate::error::{Error, Result};
use crate::scratch::Purpose;
use crate::{Args, Float, Gpu, Heads, Kv, Launch, MatMut, View};

/// Parameters of attention beside memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// Factor of the scores; positive.
    pub scale: f32,
    /// Sliding window: maximum number of keys that a query sees, itself included; at least 1. `None`: all
    /// keys before it.
    pub window: Option<usize>,
    /// Order of sums.
    pub arithmetic: Arithmetic,
}

/// Tokens and keys of each sequence, and bounds of a step of this shape, which alone decide the grid.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// `[S + 1]`: queries of sequence `s` are tokens `cu_seqlens_q[s]..cu_seqlens_q[s + 1]`.
    pub cu_seqlens_q: View<'a, i32>,
    /// `[S]`: keys of each sequence, those of this step included; 0 for padding.
    pub seq_lens_kv: View<'a, i32>,
    /// `[S, max_blocks]`: blocks of each sequence, -1 where there is none.
    pub block_table: View<'a, i32>,
    /// Number of entries of a row of the table.
    pub max_blocks: usize,
    /// Maximum number of queries of a sequence in this step.
    pub max_q_len: usize,
    /// Maximum number of keys of a sequence.
    pub max_kv_len: usize,
}

/// Computes attention: `q` f32 `[T, q_heads, dim]` over the cache, `out` `[T, q_heads * dim]` f32 or bf16.
/// Query `i` of a sequence sees keys `0..=(kv_len - q_len + i)`; a window keeps only the last few of these. A
/// sequence without keys gets zeros; tokens of no sequence are left unchanged.
///
/// Over a bf16 cache queries and weights are rounded to bf16 where tensor cores multiply them (heads of
/// 64, 80, 96 or 128); sums are f32 always. With [`Arithmetic::BatchInvariant`] the bits of a query's
/// output depend on its own keys and its position only.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn attention(
    gpu: &Arc<Gpu>,
    q: Heads<'_>,
    cache: Kv<'_>,
    sequences: Sequences<'_>,
    params: AttentionParams,
    out: MatMut<'_>,
) -> Result<()> {
    let call = Call { gpu, q, cache, sequences, params, out };
    call.check()?;
    let (count, queries) = (call.count(), call.queries());
    if count == 0 || queries == 0 || q.heads == 0 || q.dim == 0 {
        return Ok(());
    }
    let Some(kernels) = call.tensor_cores() else {
        return call.rows();
    };
    match params.arithmetic {
        Arithmetic::BatchInvariant => call.prefill(kernels, 1),
        Arithmetic::Fast if queries <= FEW_QUERIES => call.decode(kernels, queries),
        // With one sequence its kind is known on the host.
        Arithmetic::Fast if count == 1 => call.prefill(kernels, 1),
        Arithmetic::Fast => {
            call.decode(kernels, 1)?;
            call.prefill(kernels, 2)
        }
    }
}

/// The kernels for a head size.
#[derive(Clone, Copy)]
struct Names {
    decode: &'static str,
    prefill: &'static str,
}

struct Call<'a> {
    gpu: &'a Arc<Gpu>,
    q: Heads<'a>,
    cache: Kv<'a>,
    sequences: Sequences<'a>,
    params: AttentionParams,
    out: MatMut<'a>,
}

// Constants of the kernels: see those of the same names there.
const ROWS_HEADS_PER_BLOCK: usize = 4;
const PREFILL_THREADS: usize = 256;
const PREFILL_ROWS: usize = 128;
const PREFILL_KEYS: usize = 64;
const DECODE_THREADS: usize = 128;
const DECODE_ROWS: usize = 16;
const DECODE_ROUND: usize = 64;
const DECODE_SHORTEST_SPLIT: usize = 128;
const DECODE_MOST_PARTS: usize = 64;

/// Maximum number of queries of a sequence in a step whose attention is split over the keys: a token and its drafts.
/// In a group of 4 heads, 4 queries fill the 16 rows of a block; 16 queries are 4 blocks, of which 3 find the keys in
/// the L2 cache.
const FEW_QUERIES: usize = 16;

/// Number of blocks for each multiprocessor when keys are split. A multiprocessor holds three blocks of the
/// decode kernel at a time; several more to follow keep all of them busy until near the end.
const DECODE_BLOCKS: usize = 16;

impl Call<'_> {
    /// Number of sequences, padding included.
    fn count(&self) -> usize {
        self.sequences.seq_lens_kv.len()
    }

    /// Maximum number of queries of a sequence.
    fn queries(&self) -> usize {
        self.sequences.max_q_len.min(self.q.tokens)
    }

    fn window(&self) -> i32 {
        let window = self.params.window.and_then(|w| i32::try_from(w).ok());
        window.unwrap_or(i32::MAX)
    }

    fn check(&self) -> Result<()> {
        let Self { q, cache: Kv { shape, .. }, sequences: s, params, out, .. } = self;
        let bad = |why: String| Err(Error::shape("attention", why));
        if q.dtype != Float::F32 {
            return bad(format!("queries are {:?}, not F32", q.dtype));
        }
        if q.dim != shape.dim {
            return bad(format!("queries of {} elements, keys of {}", q.dim, shape.dim));
        }
        if shape.heads == 0 || !q.heads.is_multiple_of(shape.heads) {
            return bad(format!("{} query heads over {} KV heads", q.heads, shape.heads));
        }
        if (out.rows, out.width) != (q.tokens, q.heads * q.dim) {
            let (t, w) = (q.tokens, q.heads * q.dim);
            return bad(format!("output is [{}, {}], not [{t}, {w}]", out.rows, out.width));
        }
        let count = self.count();
        if s.cu_seqlens_q.len() != count + 1 {
            let n = s.cu_seqlens_q.len();
            return bad(format!("{n} starts of queries for {count} sequences, not one more"));
        }
        if s.block_table.len() != count * s.max_blocks {
            let (n, m) = (s.block_table.len(), s.max_blocks);
            return bad(format!("a table of {n} blocks for {count} sequences of {m}"));
        }
        if shape.block_size == 0 || i32::try_from(shape.blocks * shape.block_size).is_err() {
            return bad(format!("{} blocks of {} tokens", shape.blocks, shape.block_size));
        }
        if s.max_kv_len > s.max_blocks * shape.block_size {
            let (n, m, b) = (s.max_kv_len, s.max_blocks, shape.block_size);
            return bad(format!("{n} keys in {m} blocks of {b}"));
        }
        if params.window == Some(0) {
            return bad("a window of 0 keys, but a query sees itself".into());
        }
        if !(params.scale.is_finite() && params.scale > 0.0) {
            return bad(format!("scores are multiplied by {}", params.scale));
        }
        Ok(())
    }

    /// The tensor core kernels, where there are any for this cache: they read 16 bytes at a time.
    fn tensor_cores(&self) -> Option<Names> {
        let aligned = (self.cache.k | self.cache.v).is_multiple_of(16);
        if self.cache.shape.dtype != Float::Bf16 || !aligned {
            return None;
        }
        let (decode, prefill) = match self.q.dim {
            64 => ("attention_decode_d64", "attention_prefill_d64"),
            80 => ("attention_decode_d80", "attention_prefill_d80"),
            96 => ("attention_decode_d96", "attention_prefill_d96"),
            128 => ("attention_decode_d128", "attention_prefill_d128"),
            _ => return None,
        };
        Some(Names { decode, prefill })
    }

    /// Arguments with which all kernels begin.
    fn inputs(&self) -> Args {
        Args::new()
            .ptr(self.q.ptr)
            .ptr(self.cache.k)
            .ptr(self.cache.v)
            .view(self.sequences.cu_seqlens_q)
            .view(self.sequences.seq_lens_kv)
            .view(self.sequences.block_table)
            .ptr(self.out.ptr)
    }

    fn strides_and_heads(&self, args: Args) -> Args {
        args.long(self.q.stride).long(self.out.stride).int(self.q.heads).int(self.cache.shape.heads)
    }

    fn paging(&self, args: Args) -> Args {
        args.int(self.cache.shape.block_size).int(self.sequences.max_blocks).signed(self.window())
    }

    /// The scale of scores whose exponential is taken to the base of 2.
    fn scale_log2(&self) -> f32 {
        self.params.scale * std::f32::consts::LOG2_E
    }

    fn out_bf16(&self) -> usize {
        usize::from(self.out.dtype == Float::Bf16)
    }

    fn rows(&self) -> Result<()> {
        let name = match self.cache.shape.dtype {
            Float::F32 => "attention_rows_f32",
            Float::Bf16 => "attention_rows_bf16",
        };
        let args = self.strides_and_heads(self.inputs()).int(self.q.dim);
        let args = self.paging(args).float(self.params.scale).int(self.out_bf16());
        let heads = self.q.heads.div_ceil(ROWS_HEADS_PER_BLOCK);
        let launch = Launch::new("attention_rows", name, 0, ROWS_HEADS_PER_BLOCK * 32)
            .grid([self.queries(), heads, self.count()])
            .shared(ROWS_HEADS_PER_BLOCK * (2 * self.q.dim + 64) * 4);
        // SAFETY: `check` has seen that all shapes fit each other, and the views that they fit memory;
        // lengths and tables are the caller's promise (see the docs of `ops`).
        unsafe { launch.enqueue(self.gpu, args) }
    }

    /// Launches the kernel for sequences with at least so many queries.
    fn prefill(&self, kernels: Names, least_q_len: usize) -> Result<()> {
        let (dim, kv_heads) = (self.q.dim, self.cache.shape.heads);
        let args = self.paging(self.strides_and_heads(self.inputs()));
        let args = args.float(self.scale_log2()).int(self.count()).int(least_q_len);
        let args = args.int(self.out_bf16());
        // Tiles of all sequences: see the kernel.
        let tiles = self.q.tokens * (self.q.heads / kv_heads) / PREFILL_ROWS + self.count();
        let stages = 2 * 2 * PREFILL_KEYS * (dim + 8) * 2;
        let launch = Launch::new("attention_prefill", kernels.prefill, 0, PREFILL_THREADS)
            .grid([kv_heads, tiles, 1])
            .shared(stages + 2 * PREFILL_KEYS * 4);
        // SAFETY: as in `rows`; cache and stages are aligned to 16 bytes.
        unsafe { launch.enqueue(self.gpu, args) }
    }

    /// Number of tiles of 16 rows: of the queries of a sequence and the heads of a group, for all KV heads.
    fn row_tiles(&self, queries: usize) -> usize {
        let kv_heads = self.cache.shape.heads;
        kv_heads * (queries * (self.q.heads / kv_heads)).div_ceil(DECODE_ROWS)
    }

    /// Number of parts into which keys are split. Depends only on values that are the same at every replay.
    fn parts(&self, queries: usize) -> usize {
        let blocks = self.count() * self.row_tiles(queries);
        let wanted = (DECODE_BLOCKS * self.gpu.properties().multiprocessors).div_ceil(blocks);
        let window =
            self.params.window.map_or(usize::MAX, |window| window.saturating_add(queries - 1));
        let keys = self.sequences.max_kv_len.min(window);
        wanted.min(keys.div_ceil(DECODE_SHORTEST_SPLIT)).clamp(1, DECODE_MOST_PARTS)
    }

    /// Launches the kernel for sequences with at most so many queries.
    fn decode(&self, kernels: Names, queries: usize) -> Result<()> {
        let parts = self.parts(queries);
        if parts == 1 {
            return self.splits(kernels, queries, parts, (0, 0));
        }
        let cells = self.count() * queries * self.q.heads * parts;
        // This call owns the scratch until the splits are merged: without the lock another thread could
        // enqueue a kernel in between.
        self.gpu.scratch(|scratch| {
            let bytes = cells * (self.q.dim + 2) * 4;
            let partial = scratch.region(self.gpu, Purpose::AttentionSplits, bytes)?;
            let ends = partial + (cells * self.q.dim * 4) as u64;
            self.splits(kernels, queries, parts, (partial, ends))?;
            self.merge(queries, parts, (partial, ends))
        })
    }

    fn splits(
        &self,
        kernels: Names,
        queries: usize,
        parts: usize,
        (partial, ends): (u64, u64),
    ) -> Result<()> {
        let args = self.strides_and_heads(self.inputs().ptr(partial).ptr(ends));
        let args = self.paging(args).float(self.scale_log2()).int(queries).int(self.out_bf16());
        let launch = Launch::new("attention_decode", kernels.decode, 0, DECODE_THREADS)
            .grid([parts, self.row_tiles(queries), self.count()])
            .shared(2 * 2 * DECODE_ROUND * (self.q.dim + 8) * 2);
        // SAFETY: as in `prefill`; the scratch has room for every part of every query and head.
        unsafe { launch.enqueue(self.gpu, args) }
    }

    fn merge(&self, queries: usize, parts: usize, (partial, ends): (u64, u64)) -> Result<()> {
        let args = Args::new()
            .ptr(partial)
            .ptr(ends)
            .view(self.sequences.cu_seqlens_q)
            .view(self.sequences.seq_lens_kv)
            .ptr(self.out.ptr)
            .long(self.out.stride)
            .int(self.q.dim)
            .int(parts)
            .signed(self.window())
            .int(self.out_bf16());
        let launch = Launch::new("attention_decode", "attention_decode_merge", 0, DECODE_THREADS)
            .grid([self.q.heads, self.count(), queries]);
        // SAFETY: as in `splits`.
        unsafe { launch.enqueue(self.gpu, args) }
    }
}
