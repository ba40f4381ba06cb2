//! Reference implementation of paged attention.
//!
//! It copies the keys and values of a sequence through its block table, in order, and then runs layer 1's reference
//! attention over this one sequence. It is slow and simple: tests compare the fast path with it.

use l1_tensor::ops::attention::reference;
use l1_tensor::ops::{AttentionParams, AttentionShape, KvCache};

use crate::{ForwardMeta, KvError, Result};

/// Attends over blocks: `q` `[T, q_heads, D]`, `out` likewise, dense f32. Keys and values of this step
/// are in the cache already; a row of padding gets zeros.
///
/// # Errors
/// [`KvError::Malformed`] for buffers of another size or heads that do not divide; a table that names
/// no block of the cache.
pub fn paged_attention(
    cache: &KvCache,
    meta: &ForwardMeta,
    params: AttentionParams,
    q: &[f32],
    q_heads: usize,
    out: &mut [f32],
) -> Result<()> {
    let (kv_heads, head_dim) = (cache.heads(), cache.head_dim());
    let width = q_heads * head_dim;
    if q.len() != meta.tokens() * width || out.len() != q.len() {
        let (tokens, q, out) = (meta.tokens(), q.len(), out.len());
        return Err(KvError::Malformed(format!(
            "{tokens} tokens of {q_heads} heads of {head_dim}, but q has {q} numbers and out {out}"
        )));
    }
    if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
        let why = format!("{q_heads} query heads over {kv_heads} KV heads: not a multiple");
        return Err(KvError::Malformed(why));
    }
    // exercise l3.reference
    for (s, kv_len) in meta.seq_lens_kv().iter().enumerate() {
        let (start, end) = (meta.cu_seqlens_q()[s] as usize, meta.cu_seqlens_q()[s + 1] as usize);
        let rows = start * width..end * width;
        let (q_len, kv_len) = (end - start, *kv_len as usize);
        if kv_len == 0 {
            out[rows].fill(0.0);
            continue;
        }
        let (k, v) = collect(cache, meta.block_table_row(s), kv_len)?;
        let shape = AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim };
        reference(shape, params, &q[rows.clone()], &k, &v, &mut out[rows]);
    }
    Ok(())
    // end of exercise
}

/// The keys and values of a sequence's first `kv_len` tokens, `[kv_len, kv_heads, D]` each, block after
/// block. The last block may be filled in part only.
fn collect(cache: &KvCache, row: &[i32], kv_len: usize) -> Result<(Vec<f32>, Vec<f32>)> {
    let block_size = cache.block_size();
    // exercise l3.reference
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (i, block) in row.iter().take(kv_len.div_ceil(block_size)).enumerate() {
        let tokens = block_size.min(kv_len - i * block_size);
        let (k, v) = cache.gather(&[*block], tokens)?;
        keys.extend(k);
        values.extend(v);
    }
    Ok((keys, values))
    // end of exercise
}
