//! Attention's cases, and the many ways of arranging the same work.
#![allow(dead_code)]

use l1_tensor::cpu::Isa;
use l1_tensor::ops::attention::reference;
use l1_tensor::ops::{
    AttentionParams, AttentionScratch, AttentionShape, KvCache, Sequences, attention,
};
use l1_tensor::{DType, Device, Result, Runtime, Tensor};

use crate::support::*;

pub struct Case {
    pub shape: AttentionShape,
    pub params: AttentionParams,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl Case {
    pub fn random(shape: AttentionShape, window: Option<usize>, seed: u64) -> Self {
        let AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim } = shape;
        let scale = 1.0 / (head_dim as f32).sqrt();
        Self {
            shape,
            params: AttentionParams { scale, window },
            // Large queries make sharp distributions, where mistakes show.
            q: noise(q_len * q_heads * head_dim, seed).iter().map(|x| x * 4.0).collect(),
            k: noise(kv_len * kv_heads * head_dim, seed + 1),
            v: noise(kv_len * kv_heads * head_dim, seed + 2),
        }
    }

    pub fn reference(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.q.len()];
        reference(self.shape, self.params, &self.q, &self.k, &self.v, &mut out);
        out
    }

    pub fn kv(&self, x: &[f32], from: usize, to: usize) -> Tensor {
        let row = self.shape.kv_heads * self.shape.head_dim;
        let dims = [to - from, self.shape.kv_heads, self.shape.head_dim];
        Tensor::from_slice(&x[from * row..to * row], &dims).unwrap()
    }

    /// The dimensions of the output.
    pub fn dims(&self) -> [usize; 3] {
        [self.shape.q_len, self.shape.q_heads, self.shape.head_dim]
    }

    /// What was looked at, for messages.
    pub fn described(&self, ran: &str) -> String {
        let AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim } = self.shape;
        let window = self.params.window.map_or(String::new(), |w| format!(", window {w}"));
        format!(
            "attention, {ran}, q [{q_len}, {q_heads}, {head_dim}], k [{kv_len}, {kv_heads}, {head_dim}]{window}"
        )
    }
}

/// How to arrange one case's work.
#[derive(Clone)]
pub struct Plan<'a> {
    /// Query lengths of the steps; they add up to the case's `q_len`.
    pub chunks: Vec<usize>,
    pub block_size: usize,
    /// Which block of the pool holds block `b` of the sequence.
    pub table: Vec<i32>,
    pub pool_blocks: usize,
    /// Another sequence that takes part in every step, before this one.
    pub beside: Option<&'a Case>,
    /// Rows without a sequence at the end of every step.
    pub padding: usize,
    /// Forget the blocks that the window has left behind, as their owner may.
    pub forget: bool,
}

impl<'a> Plan<'a> {
    /// One block for everything, all queries in one step.
    pub fn contiguous(case: &Case) -> Plan<'a> {
        Self::blocks(case, case.shape.kv_len.next_multiple_of(16))
    }

    /// Blocks in their natural order.
    pub fn blocks(case: &Case, block_size: usize) -> Plan<'a> {
        let blocks = case.shape.kv_len.div_ceil(block_size);
        Plan {
            chunks: vec![case.shape.q_len],
            block_size,
            table: (0..blocks as i32).collect(),
            pool_blocks: blocks,
            beside: None,
            padding: 0,
            forget: false,
        }
    }

    /// Every block somewhere else, with blocks of strangers between them.
    pub fn scattered(case: &Case, block_size: usize, seed: u64) -> Plan<'a> {
        let mut plan = Self::blocks(case, block_size);
        plan.pool_blocks = 2 * plan.table.len() + 3;
        let keys = noise(plan.pool_blocks, seed);
        let mut all: Vec<i32> = (0..plan.pool_blocks as i32).collect();
        all.sort_by(|a, b| keys[*a as usize].total_cmp(&keys[*b as usize]));
        plan.table.iter_mut().zip(all).for_each(|(entry, block)| *entry = block);
        plan
    }

    pub fn chunked(self, chunks: &[usize]) -> Self {
        Plan { chunks: chunks.to_vec(), ..self }
    }

    pub fn beside(self, other: &'a Case) -> Self {
        Plan { beside: Some(other), ..self }
    }
}

/// Keys and values of everybody who was here before: not numbers.
pub fn poison(rt: &Runtime, cache: &mut KvCache) -> Result<()> {
    let slots: Vec<i64> = (0..(cache.blocks() * cache.block_size()) as i64).collect();
    let dims = [slots.len(), cache.heads(), cache.head_dim()];
    let nan = Tensor::from_slice(&vec![f32::NAN; dims.iter().product()], &dims)?;
    cache.write(rt, &slots, nan.view(), nan.view())
}

/// What a run found.
pub struct Ran {
    /// `[q_len, q_heads, D]`.
    pub out: Vec<f32>,
    /// The case with keys and values as the cache has them.
    pub stored: Case,
}

/// Run a case step by step: write the step's keys, attend with its queries.
pub fn run(rt: &Runtime, case: &Case, dtype: DType, plan: &Plan) -> Result<Vec<f32>> {
    Ok(run_and_read(rt, case, dtype, plan)?.out)
}

/// [`run`], and read the cache back.
pub fn run_and_read(rt: &Runtime, case: &Case, dtype: DType, plan: &Plan) -> Result<Ran> {
    let AttentionShape { q_len, kv_len, q_heads, kv_heads, head_dim } = case.shape;
    let size = plan.block_size;
    let (b_q, b_kv) = plan.beside.map_or((0, 0), |b| (b.shape.q_len, b.shape.kv_len));
    let b_blocks = b_kv.div_ceil(size);
    let mut cache = KvCache::new(plan.pool_blocks + b_blocks, size, kv_heads, head_dim, dtype)?;
    poison(rt, &mut cache)?;
    let max_tokens = q_len + b_q + plan.padding;
    let mut scratch = AttentionScratch::new(rt, max_tokens, kv_len.max(b_kv), q_heads, head_dim)?;
    let slot = |p: usize| i64::from(plan.table[p / size]) * size as i64 + (p % size) as i64;
    let write = |cache: &mut KvCache, from: usize, to: usize| {
        let slots: Vec<i64> = (from..to).map(slot).collect();
        let (k, v) = (case.kv(&case.k, from, to), case.kv(&case.v, from, to));
        cache.write(rt, &slots, k.view(), v.view())
    };
    // Tokens before the first query are cached already.
    let mut done = kv_len - q_len;
    write(&mut cache, 0, done)?;
    // A row is a table of the longer sequence; what the shorter one does not need is -1.
    let max_blocks = plan.table.len().max(b_blocks);
    let row = |blocks: Vec<i32>| blocks.into_iter().chain(std::iter::repeat(-1)).take(max_blocks);
    if let Some(b) = plan.beside {
        let first = (plan.pool_blocks * size) as i64;
        let slots: Vec<i64> = (first..first + b_kv as i64).collect();
        cache.write(rt, &slots, b.kv(&b.k, 0, b_kv).view(), b.kv(&b.v, 0, b_kv).view())?;
    }
    let width = q_heads * head_dim;
    let mut out = Vec::new();
    for &chunk in &plan.chunks {
        write(&mut cache, done, done + chunk)?;
        let mut blocks = plan.table.clone();
        if let (true, Some(window)) = (plan.forget, case.params.window) {
            let behind = (done + 1).saturating_sub(window) / size;
            blocks[..behind].fill(-1);
        }
        let first = done - (kv_len - q_len);
        done += chunk;
        let (mut q, mut table, mut cu, mut kv) = (vec![], vec![], vec![0], vec![]);
        if let Some(b) = plan.beside {
            q.extend_from_slice(&b.q);
            table.extend(row((0..b_blocks).map(|i| (plan.pool_blocks + i) as i32).collect()));
            cu.push(b_q as i32);
            kv.push(b_kv as i32);
        }
        q.extend_from_slice(&case.q[first * width..(first + chunk) * width]);
        table.extend(row(blocks));
        cu.push((b_q + chunk) as i32);
        kv.push(done as i32);
        for _ in 0..plan.padding {
            q.extend(vec![f32::NAN; width]);
            table.extend(row(vec![]));
            cu.push(cu[cu.len() - 1] + 1);
            kv.push(0);
        }
        let tokens = b_q + chunk + plan.padding;
        let q = Tensor::from_slice(&q, &[tokens, q_heads, head_dim])?;
        let sequences = Sequences {
            cu_seqlens_q: &cu,
            seq_lens_kv: &kv,
            block_table: &table,
            max_blocks,
            device: None,
        };
        let mut o = Tensor::zeros(&[tokens, width], DType::F32, Device::Cpu)?;
        attention(rt, q.view(), &cache, sequences, case.params, &mut scratch, o.view_mut())?;
        let o = o.to_vec_f32()?;
        out.extend_from_slice(&o[b_q * width..(b_q + chunk) * width]);
        assert!(o[(b_q + chunk) * width..].iter().all(|x| *x == 0.0), "a padding row is zeros");
    }
    let (k, v) = cache.gather(&plan.table, kv_len)?;
    let stored = Case { shape: case.shape, params: case.params, q: case.q.clone(), k, v };
    Ok(Ran { out, stored })
}

pub fn to_bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A case's result by the reference and, with keys in f32, on every instruction set.
pub fn every_way(case: &Case) -> Vec<(String, Vec<f32>)> {
    let mut all = vec![("the reference".to_string(), case.reference())];
    let plan = Plan::contiguous(case);
    for isa in Isa::available() {
        let got = run(&runtime(isa, 2), case, DType::F32, &plan).unwrap();
        all.push((format!("on {isa}"), got));
    }
    all
}
