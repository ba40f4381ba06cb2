//! Attention: bound by memory where each sequence has one query, by arithmetic where it has thousands.

use anyhow::Result;
use kernels::ops::{Arithmetic, AttentionParams, Sequences, attention};
use kernels::{Buffer, Float, Heads, Kv, KvShape, MatMut};

use super::{Limits, Measure, Ratio, Runs, Target, by_bandwidth, by_matmul, filled, time};
use crate::Context;

/// Heads as in Llama 3 8B and Qwen3 8B.
const Q_HEADS: usize = 32;
const KV_HEADS: usize = 8;
const DIM: usize = 128;
const BLOCK: usize = 16;

pub(super) fn run(ctx: &Context, limits: &Limits, take: &mut dyn FnMut(Measure)) -> Result<()> {
    let decode: &[(usize, usize, Option<f64>)] = if ctx.tiny() {
        &[(2, 24, None)]
    } else {
        &[(64, 4096, Some(0.80)), (1, 4096, None), (256, 1024, None)]
    };
    for &(batch, context, least) in decode {
        for arithmetic in [Arithmetic::Fast, Arithmetic::BatchInvariant] {
            let took = step(ctx, &vec![(1, context); batch], arithmetic)?;
            let bytes = batch * context * KV_HEADS * DIM * 2 * 2;
            let workload = format!("batch {batch}, context {context}, {}", heads(arithmetic));
            let least = least.filter(|_| arithmetic == Arithmetic::Fast);
            take(by_bandwidth(limits, "decode attention", workload, bytes, took, least));
        }
    }
    let tokens = if ctx.tiny() { 24 } else { 8192 };
    for arithmetic in [Arithmetic::Fast, Arithmetic::BatchInvariant] {
        let took = step(ctx, &[(tokens, tokens)], arithmetic)?;
        // Two matmuls over half of all pairs: keys after a query are not counted.
        let operations = 2.0 * 2.0 * (tokens * tokens / 2) as f64 * (Q_HEADS * DIM) as f64;
        let workload = format!("{tokens} tokens, causal, {}", heads(arithmetic));
        take(by_matmul(limits, "prefill attention", workload, operations, took, 0.30));
    }
    mixed(ctx, take)
}

/// A chunk of a prompt beside many decodes, as in most steps of a busy server, and how much longer that takes than the
/// two apart.
fn mixed(ctx: &Context, take: &mut dyn FnMut(Measure)) -> Result<()> {
    let (chunk, decodes, context) = if ctx.tiny() { (20, 3, 24) } else { (2048, 255, 1024) };
    let prompt = vec![(chunk, chunk)];
    let others = vec![(1, context); decodes];
    let both = [prompt.clone(), others.clone()].concat();
    let time = |lens: &[(usize, usize)]| step(ctx, lens, Arithmetic::Fast);
    let apart = (time(&prompt)? + time(&others)?).as_secs_f64();
    let took = time(&both)?.as_secs_f64();
    take(Measure {
        name: "mixed attention".into(),
        workload: format!(
            "a chunk of {chunk}, {decodes} decodes of {context}, {}",
            heads(Arithmetic::Fast)
        ),
        value: took * 1e6,
        unit: "us",
        seconds: took,
        ratio: Some(Ratio {
            of: "the two apart".into(),
            value: took / apart.max(1e-9),
            share: false,
            target: Some(Target::AtMost(1.15)),
        }),
    });
    Ok(())
}

fn heads(arithmetic: Arithmetic) -> String {
    let mode = if arithmetic == Arithmetic::BatchInvariant { ", batch invariant" } else { "" };
    format!("{Q_HEADS}/{KV_HEADS} heads of {DIM}{mode}")
}

/// Median time of attention over sequences of so many queries and keys.
fn step(
    ctx: &Context,
    lens: &[(usize, usize)],
    arithmetic: Arithmetic,
) -> Result<std::time::Duration> {
    let gpu = &ctx.gpu;
    let batch = lens.len();
    let most = |of: fn(&(usize, usize)) -> usize| lens.iter().map(of).max().unwrap_or(0);
    let (q_len, context) = (most(|l| l.0), most(|l| l.1));
    let each = context.div_ceil(BLOCK);
    let dtype = Float::Bf16;
    let shape =
        KvShape { blocks: batch * each, block_size: BLOCK, heads: KV_HEADS, dim: DIM, dtype };
    let (k, v) = (filled(gpu, shape.bytes())?, filled(gpu, shape.bytes())?);
    let mut cu = vec![0_i32];
    cu.extend(lens.iter().scan(0, |end, l| {
        *end += l.0 as i32;
        Some(*end)
    }));
    let tokens = cu[batch] as usize;
    let q = filled(gpu, 4 * tokens * Q_HEADS * DIM)?;
    let mut out = Buffer::zeroed(gpu, 2 * tokens * Q_HEADS * DIM)?;
    // A sequence's blocks are not neighbours.
    let table: Vec<i32> =
        (0..batch).flat_map(|s| (0..each).map(move |i| (i * batch + s) as i32)).collect();
    let (cu, table) = (Buffer::from_slice(gpu, &cu)?, Buffer::from_slice(gpu, &table)?);
    let kv_lens: Vec<i32> = lens.iter().map(|l| l.1 as i32).collect();
    let lens = Buffer::from_slice(gpu, &kv_lens)?;
    let params = AttentionParams { scale: 1.0 / (DIM as f32).sqrt(), window: None, arithmetic };
    time(gpu, if q_len == 1 { Runs::short(ctx) } else { Runs::long(ctx) }, |_| {
        let sequences = Sequences {
            cu_seqlens_q: cu.view().cast(),
            seq_lens_kv: lens.view().cast(),
            block_table: table.view().cast(),
            max_blocks: each,
            max_q_len: q_len,
            max_kv_len: context,
        };
        let q = Heads::new(q.view(), Float::F32, [tokens, Q_HEADS, DIM], Q_HEADS * DIM)?;
        let cache = Kv::new(shape, k.view(), v.view())?;
        let out = MatMut::dense(out.view_mut(), Float::Bf16, tokens, Q_HEADS * DIM)?;
        Ok(attention(gpu, q, cache, sequences, params, out)?)
    })
}
