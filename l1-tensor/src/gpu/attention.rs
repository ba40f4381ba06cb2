//! Attention over a cache on the device.

use std::sync::Arc;

use kernels::{Gpu, ops};

use super::indices::Numbers;
use super::views::{f32_heads, mat_mut};
use crate::ops::{AttentionParams, KvCache, Sequences};
use crate::{Error, Result, Runtime, TensorMut, TensorRef};

/// The longest of a step: queries of a sequence, and keys.
fn longest(s: &Sequences<'_>) -> (usize, usize) {
    let queries = s.cu_seqlens_q.windows(2).map(|w| w[1].abs_diff(w[0]) as usize).max();
    let keys = s.seq_lens_kv.iter().map(|n| n.unsigned_abs() as usize).max();
    (queries.unwrap_or(0), keys.unwrap_or(0))
}

/// Attend: everything was checked, on the host's numbers.
pub(crate) fn attention(
    rt: &Runtime,
    gpu: &Arc<Gpu>,
    q: TensorRef<'_>,
    cache: &KvCache,
    s: Sequences<'_>,
    params: AttentionParams,
    out: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "attention";
    let q = f32_heads(OP, gpu, q)?;
    let out = mat_mut(OP, gpu, out)?;
    let kv = cache.on_cuda(OP, gpu)?;
    let (queries, keys) = longest(&s);
    let (max_q_len, max_kv_len) = match s.device {
        None => (queries, keys),
        Some(d) if queries <= d.max_q_len && keys <= d.max_kv_len => (d.max_q_len, d.max_kv_len),
        Some(d) => {
            let (most_queries, most_keys) = (d.max_q_len, d.max_kv_len);
            let why = format!(
                "{queries} queries over {keys} keys in a launch for {most_queries} over {most_keys}"
            );
            return Err(Error::BadParameter { op: OP, why });
        }
    };
    let numbers = |host, device| Numbers::new(OP, gpu, host, device);
    let cu_seqlens_q = numbers(s.cu_seqlens_q, s.device.map(|d| d.cu_seqlens_q))?;
    let seq_lens_kv = numbers(s.seq_lens_kv, s.device.map(|d| d.seq_lens_kv))?;
    let block_table = numbers(s.block_table, s.device.map(|d| d.block_table))?;
    let sequences = ops::Sequences {
        cu_seqlens_q: cu_seqlens_q.view(),
        seq_lens_kv: seq_lens_kv.view(),
        block_table: block_table.view(),
        max_blocks: s.max_blocks,
        max_q_len,
        max_kv_len,
    };
    let AttentionParams { scale, window } = params;
    let params = ops::AttentionParams { scale, window, arithmetic: rt.arithmetic() };
    Ok(ops::attention(gpu, q, kv, sequences, params, out)?)
}
