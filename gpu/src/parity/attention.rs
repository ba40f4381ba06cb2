//! Keys and values in blocks, and attention over them.

use anyhow::Result;
use l1_tensor::ops::{AttentionParams, AttentionScratch, KvCache, Sequences, attention};
use l1_tensor::{DType, Runtime};

use super::{Check, Outcome, Tolerance, both, close};
use crate::context::{tensor, zeros};
use crate::{Context, Numbers};
use l1_tensor::Precision;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "attention of single queries",
        run: |ctx| over_shapes(ctx, &[(1, 40), (1, 1), (1, 333)]),
    },
    Check {
        name: "attention of prompts",
        run: |ctx| over_shapes(ctx, &[(40, 40), (1, 1), (17, 33)]),
    },
    Check {
        name: "attention of prompts and single queries in one batch",
        run: |ctx| over_shapes(ctx, &[(1, 77), (30, 30), (0, 0), (5, 90), (1, 200)]),
    },
    Check {
        name: "attention of a token and its drafts",
        run: |ctx| over_shapes(ctx, &[(5, 300), (1, 90), (4, 4), (2, 129), (0, 0)]),
    },
    Check {
        name: "a query without keys gets zeros",
        run: |ctx| over_shapes(ctx, &[(1, 0), (1, 9), (1, 0)]),
    },
    Check {
        name: "attention in batch-invariant mode is the same bits alone and in a batch",
        run: alone,
    },
    Check { name: "long contexts", run: long },
];

/// Number of query heads and of KV heads, elements of a head, tokens of a block.
const HEADS: [(usize, usize, usize, usize); 6] = [
    (1, 1, 18, 16),
    (4, 2, 32, 4),
    (6, 2, 64, 16),
    (8, 1, 64, 32),
    (3, 3, 128, 8),
    (8, 2, 128, 16),
];

/// A step: the number of queries and keys of each sequence, and their values.
struct Step {
    heads: (usize, usize, usize, usize),
    lens: Vec<(usize, usize)>,
    /// All keys of a sequence, the first ones included.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    queries: Vec<Vec<f32>>,
}

impl Step {
    fn new(
        heads: (usize, usize, usize, usize),
        lens: &[(usize, usize)],
        numbers: &mut Numbers,
    ) -> Self {
        let (q_heads, kv_heads, dim, _) = heads;
        let mut kv = |per: usize| lens.iter().map(|l| numbers.normals(l.1 * per, 1.0)).collect();
        let (keys, values) = (kv(kv_heads * dim), kv(kv_heads * dim));
        let queries = lens.iter().map(|l| numbers.normals(l.0 * q_heads * dim, 1.5)).collect();
        Self { heads, lens: lens.to_vec(), keys, values, queries }
    }

    /// The step with only one of its sequences.
    fn only(&self, s: usize) -> Self {
        Self {
            heads: self.heads,
            lens: vec![self.lens[s]],
            keys: vec![self.keys[s].clone()],
            values: vec![self.values[s].clone()],
            queries: vec![self.queries[s].clone()],
        }
    }

    /// Writes all keys, then computes attention. Blocks are assigned backwards, so that no two neighbours are
    /// in order.
    fn run(&self, rt: &Runtime, dtype: DType, window: Option<usize>) -> Result<Vec<f32>> {
        let (q_heads, kv_heads, dim, block) = self.heads;
        let needed: Vec<usize> = self.lens.iter().map(|l| l.1.div_ceil(block)).collect();
        let blocks = needed.iter().sum::<usize>() + 2;
        let max_blocks = needed.iter().copied().max().unwrap_or(0).max(1);
        let mut cache = KvCache::on(rt.device(), blocks, block, kv_heads, dim, dtype)?;
        let (mut next, mut table, mut slots, mut cu) =
            (blocks, Vec::new(), Vec::<i64>::new(), vec![0_i32]);
        for (&(q_len, kv_len), &needed) in self.lens.iter().zip(&needed) {
            let mine: Vec<i32> = (0..needed).map(|i| (next - 1 - i) as i32).collect();
            next -= needed;
            slots.extend(
                (0..kv_len).map(|p| i64::from(mine[p / block]) * block as i64 + (p % block) as i64),
            );
            table.extend((0..max_blocks).map(|i| mine.get(i).copied().unwrap_or(-1)));
            cu.push(cu[cu.len() - 1] + q_len as i32);
        }
        let keys = tensor(rt, &self.keys.concat(), &[slots.len(), kv_heads, dim], DType::F32)?;
        let values = tensor(rt, &self.values.concat(), &[slots.len(), kv_heads, dim], DType::F32)?;
        cache.write(rt, &slots, keys.view(), values.view())?;
        let tokens = cu[cu.len() - 1] as usize;
        let queries = tensor(rt, &self.queries.concat(), &[tokens, q_heads, dim], DType::F32)?;
        let mut out = zeros(rt, &[tokens, q_heads * dim], DType::F32)?;
        let kv_lens: Vec<i32> = self.lens.iter().map(|l| l.1 as i32).collect();
        let longest = self.lens.iter().map(|l| l.1).max().unwrap_or(0).max(1);
        let mut scratch = AttentionScratch::new(rt, tokens.max(1), longest, q_heads, dim)?;
        let sequences = Sequences {
            cu_seqlens_q: &cu,
            seq_lens_kv: &kv_lens,
            block_table: &table,
            max_blocks,
            device: None,
        };
        let params = AttentionParams { scale: 1.0 / (dim as f32).sqrt(), window };
        attention(rt, queries.view(), &cache, sequences, params, &mut scratch, out.view_mut())?;
        Ok(out.to_vec_f32()?)
    }
}

/// Weights may be rounded to bf16 before they multiply values that are bf16 themselves.
fn tolerance(dtype: DType) -> Tolerance {
    match dtype {
        DType::F32 => Tolerance { absolute: 1e-4, relative: 1e-4 },
        _ => Tolerance { absolute: 2e-2, relative: 1e-2 },
    }
}

fn over_shapes(ctx: &Context, lens: &[(usize, usize)]) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("attention"));
    let heads = if ctx.tiny() { &HEADS[..4] } else { &HEADS[..] };
    for (i, &heads) in heads.iter().enumerate() {
        let step = Step::new(heads, lens, &mut numbers);
        for dtype in [DType::F32, DType::BF16] {
            // Every other shape has a window.
            let window = (i % 2 == 1).then_some(13);
            let what = format!("{heads:?} over {dtype}, window {window:?}");
            outcome.add(both(ctx, &what, tolerance(dtype), |rt| step.run(rt, dtype, window))?);
        }
    }
    Ok(outcome)
}

fn long(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("long"));
    let lens: &[(usize, usize)] =
        if ctx.tiny() { &[(1, 700), (3, 601)] } else { &[(1, 9000), (1, 4097), (300, 5000)] };
    let heads = if ctx.tiny() { (2, 1, 32, 16) } else { (8, 2, 128, 16) };
    let step = Step::new(heads, lens, &mut numbers);
    for dtype in [DType::F32, DType::BF16] {
        let what = format!("{heads:?} over {dtype}");
        outcome.add(both(ctx, &what, tolerance(dtype), |rt| step.run(rt, dtype, None))?);
    }
    Ok(outcome)
}

fn alone(ctx: &Context) -> Result<Outcome> {
    let (mut outcome, mut numbers) = (Outcome::default(), Numbers::new("alone"));
    let lens = [(1, 300), (20, 20), (1, 5), (7, 65), (1, 128)];
    let rt = ctx.device(Precision::Bf16, true);
    for heads in [(4, 2, 32, 16), (2, 1, 64, 8)] {
        let step = Step::new(heads, &lens, &mut numbers);
        for dtype in [DType::F32, DType::BF16] {
            let together = step.run(rt, dtype, None)?;
            let width = heads.0 * heads.2;
            let mut at = 0;
            for (s, (q_len, _)) in lens.iter().enumerate() {
                let single = step.only(s).run(rt, dtype, None)?;
                let what = format!("sequence {s} of {heads:?} over {dtype}");
                let wanted = &together[at..at + q_len * width];
                outcome.add(close(&what, &single, wanted, Tolerance::EXACT)?);
                at += q_len * width;
            }
        }
    }
    Ok(outcome)
}
