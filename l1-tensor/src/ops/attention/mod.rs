//! Causal attention with grouped queries and an optional sliding window.
//!
//! For query `i` of a sequence, at position `p = kv_len - q_len + i`, and head `h`:
//!
//! ```text
//! score[j] = scale * dot(q[i, h], k[j, h / group])      for j in lo ..= p
//! out[i, h] = sum_j softmax(score)[j] * v[j, h / group]
//! lo = 0, or p + 1 - window when a window is set
//! ```
//!
//! `group = q_heads / kv_heads` query heads share one KV head (grouped-query attention, Ainslie et
//! al. 2023); the window is Mistral's (Jiang et al. 2023, after Longformer).
//!
//! The fast path works on one KV head, a few queries and one *split* of the keys at a time: all
//! scores, then the softmax, then the weighted sum of values. Splits begin at fixed positions and are
//! merged from the left (see `cpu::attention::splits`), so scratch does not grow with the context, and
//! threads may share a long one. Every sum has one order: a dot product runs along the head
//! dimension, a softmax adds by key index modulo 16 and then folds the 16 lanes, the weighted sum runs
//! along the keys, splits follow each other. None of these knows how queries were grouped into a
//! step, which thread did what, or where the keys lie. Hence a token's output has the same bits in a
//! prefill, in a decode, in any batch, over blocks of any size.

mod kv_cache;

pub(crate) use kv_cache::Geometry;
pub use kv_cache::{KvCache, TILE};

use crate::cpu::attention as kernel;
use crate::storage::AlignedBytes;
use crate::{DType, Error, OpKind, Result, Runtime, TensorMut, TensorRef, Work};

/// Parameters of attention beside tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Sliding window: maximum number of keys that a query sees, itself included. `None`: all before it.
    pub window: Option<usize>,
}

/// Tokens and blocks of each sequence of a packed batch.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// `[S + 1]`: queries of sequence `s` are tokens `cu_seqlens_q[s]..cu_seqlens_q[s + 1]`.
    pub cu_seqlens_q: &'a [i32],
    /// `[S]`: keys of each sequence, those of this step included.
    pub seq_lens_kv: &'a [i32],
    /// `[S, max_blocks]`: row `s` is the blocks of sequence `s` in the cache, in order, then -1. Entries
    /// that lie wholly behind the window of the sequence's first query are not read.
    pub block_table: &'a [i32],
    /// Number of entries of a row of the table.
    pub max_blocks: usize,
    /// The same three arrays in a device's memory, where a step runs on one.
    pub device: Option<DeviceSequences<'a>>,
}

/// [`Sequences`] in a device's memory, with the bounds of a step of this shape. The bounds alone decide the
/// launch, so that a captured step fits every later one.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSequences<'a> {
    /// I32 `[S + 1]`.
    pub cu_seqlens_q: TensorRef<'a>,
    /// I32 `[S]`.
    pub seq_lens_kv: TensorRef<'a>,
    /// I32 `[S, max_blocks]`.
    pub block_table: TensorRef<'a>,
    /// Maximum number of queries of a sequence in a step.
    pub max_q_len: usize,
    /// Maximum number of keys of a sequence.
    pub max_kv_len: usize,
}

/// Scratch memory of [`attention`]: one area per thread, the list of work items, and room for the partial
/// results of threads that share a long context. On a device it holds nothing: there the splits of a context
/// have their own memory.
pub struct AttentionScratch {
    pub(crate) areas: Vec<kernel::Area>,
    pub(crate) agenda: kernel::Agenda,
    pub(crate) partial_totals: Vec<Option<kernel::Totals>>,
    pub(crate) partial_values: AlignedBytes,
    pub(crate) head_dim: usize,
    pub(crate) max_kv: usize,
}

impl AttentionScratch {
    /// Creates scratch for steps of at most `max_tokens` queries over at most `max_kv` keys a sequence, for
    /// heads of at most `head_dim`. A call with more than `q_heads` heads allocates.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(
        rt: &Runtime,
        max_tokens: usize,
        max_kv: usize,
        q_heads: usize,
        head_dim: usize,
    ) -> Result<Self> {
        let threads = if rt.gpu().is_some() { 0 } else { rt.pool().threads() };
        let q_heads = if threads == 0 { 0 } else { q_heads };
        let areas = (0..threads).map(|_| kernel::Area::new(head_dim)).collect::<Result<_>>()?;
        let agenda = kernel::Agenda::new(max_tokens, max_kv, q_heads, threads);
        let partials = agenda.partials();
        let row = head_dim.next_multiple_of(16) * size_of::<f32>();
        let partial_values = AlignedBytes::zeroed(partials * row)?;
        let partial_totals = vec![None; partials];
        Ok(Self { areas, agenda, partial_totals, partial_values, head_dim, max_kv })
    }

    /// Number of bytes held.
    pub fn bytes(&self) -> usize {
        let areas: usize = self.areas.iter().map(kernel::Area::bytes).sum();
        let totals = self.partial_totals.capacity() * size_of::<Option<kernel::Totals>>();
        areas + self.agenda.bytes() + totals + self.partial_values.as_slice().len()
    }
}

/// Computes attention: `q` `[T, q_heads, D]` f32 against the cache, into `out` `[T, q_heads * D]` (F32 or
/// BF16). The step's own keys and values must already be in the cache ([`KvCache::write`]). A sequence
/// without keys (`seq_lens_kv` 0, a padding row) gets zeros.
///
/// # Errors
/// Shapes that do not fit, heads that do not divide, a required block that is not in the table or not in the
/// pool, more keys or wider heads than the scratch was made for.
pub fn attention(
    rt: &Runtime,
    q: TensorRef,
    cache: &KvCache,
    sequences: Sequences,
    params: AttentionParams,
    scratch: &mut AttentionScratch,
    out: TensorMut,
) -> Result<()> {
    const OP: &str = "attention";
    let [tokens, q_heads, dim] = *q.layout().dims() else {
        let why = "queries are [tokens, heads, head dim]";
        return Err(Error::UnsupportedLayout { op: OP, why, layout: *q.layout() });
    };
    let shape = |why| Error::ShapeMismatch { op: OP, why, lhs: *q.layout(), rhs: *out.layout() };
    if *out.layout().dims() != [tokens, q_heads * dim] {
        return Err(shape("the output is [tokens, heads * head dim]"));
    }
    if dim != cache.head_dim() {
        return Err(shape("the cache holds another head dim"));
    }
    if cache.heads() == 0 || !q_heads.is_multiple_of(cache.heads()) {
        return Err(shape("query heads must be a multiple of the KV heads"));
    }
    if dim > 1 && q.layout().strides()[2] != 1 {
        let why = "needs a dense head dimension";
        return Err(Error::UnsupportedLayout { op: OP, why, layout: *q.layout() });
    }
    if params.window == Some(0) {
        return Err(Error::BadParameter { op: OP, why: "the window must be at least 1".into() });
    }
    if dim > scratch.head_dim {
        return Err(shape("the scratch was made for narrower heads"));
    }
    check_sequences(&sequences, params, tokens, cache, scratch.max_kv)?;
    let _timed = rt.time(|| (OpKind::Attention, work(&sequences, params, cache, q_heads)));
    if tokens == 0 || q_heads == 0 || dim == 0 {
        return Ok(());
    }
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::attention::attention(rt, gpu, q, cache, sequences, params, out);
    }
    cache.on_host(OP)?;
    let out_layout = *out.layout();
    let out = match out.dtype() {
        DType::F32 => kernel::Out::F32(out.rows_mut::<f32>(OP)?.as_mut_ptr()),
        DType::BF16 => kernel::Out::Bf16(out.rows_mut::<half::bf16>(OP)?.as_mut_ptr()),
        got => {
            let expected = "F32 or BF16";
            return Err(Error::UnexpectedDType { op: OP, expected, got, layout: out_layout });
        }
    };
    let job = kernel::Job {
        isa: rt.isa(),
        q: q.strided::<f32>(OP)?,
        q_strides: [q.layout().strides()[0], q.layout().strides()[1]],
        pool: cache.pool(),
        sequences,
        params,
        q_heads,
        kv_heads: cache.heads(),
        dim,
        out,
        out_stride: out_layout.strides()[0],
    };
    kernel::run(rt, &job, scratch);
    Ok(())
}

/// Keys and values that a step reads, and the products of its scores and weighted sums.
fn work(s: &Sequences, params: AttentionParams, cache: &KvCache, q_heads: usize) -> Work {
    let window = params.window.unwrap_or(usize::MAX);
    let (mut keys, mut pairs) = (0, 0);
    for (bounds, kv) in s.cu_seqlens_q.windows(2).zip(s.seq_lens_kv) {
        let (q_len, kv) = ((bounds[1] - bounds[0]) as usize, *kv as usize);
        if kv == 0 || q_len == 0 {
            continue;
        }
        let first = kv - q_len;
        keys += kv - (first + 1).saturating_sub(window);
        pairs += (first + 1..=kv).map(|visible| visible.min(window) as u64).sum::<u64>();
    }
    let flops = 4 * pairs * q_heads as u64 * cache.head_dim() as u64;
    Work { bytes: (keys * cache.token_bytes()) as u64, flops }
}

fn check_sequences(
    s: &Sequences,
    params: AttentionParams,
    tokens: usize,
    cache: &KvCache,
    max_kv: usize,
) -> Result<()> {
    const OP: &str = "attention";
    let bad = |why: String| Err(Error::BadParameter { op: OP, why });
    let n = s.seq_lens_kv.len();
    if s.cu_seqlens_q.len() != n + 1 || s.block_table.len() != n * s.max_blocks {
        let why = format!("{n} sequences need {} offsets and {n} rows of a table", n + 1);
        return bad(why);
    }
    if s.cu_seqlens_q[0] != 0 || s.cu_seqlens_q[n] as usize != tokens {
        return bad(format!("cu_seqlens_q must run from 0 to the {tokens} tokens of the batch"));
    }
    for i in 0..n {
        let (start, end, kv) = (s.cu_seqlens_q[i], s.cu_seqlens_q[i + 1], s.seq_lens_kv[i]);
        if end < start || kv < 0 || (kv != 0 && kv < end - start) {
            return bad(format!("sequence {i}: queries {start}..{end} over {kv} keys"));
        }
        if kv == 0 || start == end {
            continue;
        }
        let (kv, q_len) = (kv as usize, (end - start) as usize);
        if kv > max_kv {
            let what = "key count";
            return Err(Error::OutOfRange { op: OP, what, index: kv as i64, limit: max_kv + 1 });
        }
        // Blocks behind the window of the first query may have been freed.
        let first_key = params.window.map_or(0, |w| (kv - q_len + 1).saturating_sub(w));
        let blocks = first_key / cache.block_size()..kv.div_ceil(cache.block_size());
        let row = &s.block_table[i * s.max_blocks..][..s.max_blocks];
        let Some(row) = row.get(blocks.clone()) else {
            let (needs, has) = (blocks.end, s.max_blocks);
            return bad(format!(
                "sequence {i}: {kv} keys need {needs} blocks, but a row has {has}"
            ));
        };
        if let Some(entry) = row.iter().find(|b| cache.block(**b).is_none()) {
            let (what, index) = ("block", i64::from(*entry));
            return Err(Error::OutOfRange { op: OP, what, index, limit: cache.blocks() });
        }
    }
    Ok(())
}

/// Sizes of one sequence's attention, for [`reference()`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Queries: the last `q_len` of the sequence's tokens.
    pub q_len: usize,
    /// Keys: all tokens of the sequence.
    pub kv_len: usize,
    /// Query heads.
    pub q_heads: usize,
    /// KV heads; divides `q_heads`.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
}

/// Attention by the formula above: `q` `[q_len, q_heads, D]`, `k` and `v` `[kv_len, kv_heads, D]`, `out`
/// `[q_len, q_heads, D]`, all dense f32.
pub fn reference(
    shape: AttentionShape,
    params: AttentionParams,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
) {
    // exercise l1.attention
    let AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim: d } = shape;
    let group = q_heads / kv_heads;
    for i in 0..q_len {
        let p = kv_len - q_len + i;
        let lo = params.window.map_or(0, |w| (p + 1).saturating_sub(w));
        for h in 0..q_heads {
            let q_row = &q[(i * q_heads + h) * d..][..d];
            let kv_at = |j: usize| (j * kv_heads + h / group) * d;
            let scores: Vec<f32> = (lo..=p)
                .map(|j| {
                    let k_row = &k[kv_at(j)..][..d];
                    params.scale * q_row.iter().zip(k_row).map(|(a, b)| a * b).sum::<f32>()
                })
                .collect();
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
            let total: f32 = weights.iter().sum();
            let out_row = &mut out[(i * q_heads + h) * d..][..d];
            out_row.fill(0.0);
            for (j, w) in (lo..=p).zip(&weights) {
                for (o, x) in out_row.iter_mut().zip(&v[kv_at(j)..][..d]) {
                    *o += w / total * x;
                }
            }
        }
    }
    // end of exercise
}
