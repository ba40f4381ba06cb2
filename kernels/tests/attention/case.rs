//! A batch of sequences over a paged cache, what attention makes of it on the device, and what it must
//! be: softmax written out over plain arrays, in f64.

use std::sync::Arc;

use half::bf16;
use kernels::ops::{Arithmetic, AttentionParams, Sequences, attention};
use kernels::{Buffer, Error, Float, Gpu, Heads, Kv, KvShape, MatMut, View};

/// A number in -1..1 that depends on its name only: so a token has the same query, key and value in
/// whichever batch its sequence is.
fn value(seed: u64, what: u64, token: usize, element: usize) -> f32 {
    let name = seed << 48 ^ what << 44 ^ (token as u64) << 24 ^ element as u64;
    let mut x = name.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ x >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// A sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct Seq {
    /// Which: sequences of one seed are beginnings of one another.
    pub seed: u64,
    /// Its queries in this step.
    pub q_len: usize,
    /// Its keys, those of the queries included.
    pub kv_len: usize,
}

/// Shapes, and what is not a sequence's own.
#[derive(Clone, Debug)]
pub struct Case {
    pub group: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub block_size: usize,
    pub window: Option<usize>,
    pub cache: Float,
    pub out: Float,
    pub arithmetic: Arithmetic,
    /// Multiplies queries, and with them the scores.
    pub sharpness: f32,
    /// The step's bounds; those of its sequences where there is none.
    pub max_q_len: Option<usize>,
    pub max_kv_len: Option<usize>,
    /// What lies where no key is.
    pub rest: f32,
}

impl Case {
    pub fn new(group: usize, kv_heads: usize, dim: usize, cache: Float) -> Self {
        Self {
            group,
            kv_heads,
            dim,
            block_size: 16,
            window: None,
            cache,
            out: Float::F32,
            arithmetic: Arithmetic::Fast,
            sharpness: 3.0,
            max_q_len: None,
            max_kv_len: None,
            rest: f32::NAN,
        }
    }

    pub fn heads(&self) -> usize {
        self.group * self.kv_heads
    }

    pub fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// Whether tensor cores multiply, which round queries and weights to bf16.
    pub fn tensor_cores(&self) -> bool {
        self.cache == Float::Bf16 && [64, 80, 96, 128].contains(&self.dim)
    }

    /// As it lies in the cache.
    fn stored(&self, x: f32) -> f32 {
        if self.cache == Float::Bf16 { bf16::from_f32(x).to_f32() } else { x }
    }

    fn key(&self, s: Seq, token: usize, kv_head: usize, d: usize) -> f32 {
        self.stored(value(s.seed, 1, token, kv_head * self.dim + d))
    }

    fn value(&self, s: Seq, token: usize, kv_head: usize, d: usize) -> f32 {
        self.stored(value(s.seed, 2, token, kv_head * self.dim + d))
    }

    fn query(&self, s: Seq, token: usize, head: usize, d: usize) -> f32 {
        self.sharpness * value(s.seed, 3, token, head * self.dim + d)
    }

    /// What attention must be: for each token of the batch its heads' outputs.
    pub fn expected(&self, batch: &[Seq]) -> Vec<f32> {
        let mut all = Vec::new();
        for &s in batch {
            for i in 0..s.q_len {
                // A sequence without keys is padding: its queries see nothing.
                let seen = (s.kv_len + i + 1).saturating_sub(s.q_len).min(s.kv_len);
                let first = seen.saturating_sub(self.window.unwrap_or(usize::MAX));
                for head in 0..self.heads() {
                    all.extend(self.expected_row(s, head, first, seen));
                }
            }
        }
        all
    }

    fn expected_row(&self, s: Seq, head: usize, first: usize, behind: usize) -> Vec<f32> {
        let kv_head = head / self.group;
        let mut out = vec![0.0_f64; self.dim];
        if first >= behind {
            return vec![0.0; self.dim];
        }
        let query = |d: usize| {
            let x = self.query(s, behind - 1, head, d);
            if self.tensor_cores() { bf16::from_f32(x).to_f32() } else { x }
        };
        let query: Vec<f32> = (0..self.dim).map(query).collect();
        let score = |key: usize| -> f64 {
            let of = |d: usize| f64::from(query[d]) * f64::from(self.key(s, key, kv_head, d));
            f64::from(self.scale()) * (0..self.dim).map(of).sum::<f64>()
        };
        let scores: Vec<f64> = (first..behind).map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
        for (key, score) in (first..behind).zip(&scores) {
            for (d, out) in out.iter_mut().enumerate() {
                *out += (score - largest).exp() / total * f64::from(self.value(s, key, kv_head, d));
            }
        }
        out.into_iter().map(|x| x as f32).collect()
    }

    /// What the device makes of it.
    pub fn attend(&self, gpu: &Arc<Gpu>, batch: &[Seq]) -> Vec<f32> {
        Prepared::new(self, gpu, batch).attend().expect("attention")
    }

    /// Compare with [`Case::expected`].
    pub fn check(&self, gpu: &Arc<Gpu>, batch: &[Seq]) {
        self.compare(&self.attend(gpu, batch), batch);
    }

    pub fn compare(&self, ours: &[f32], batch: &[Seq]) {
        let theirs = self.expected(batch);
        assert_eq!(ours.len(), theirs.len());
        // Everything is f32: scores are off by some 2^-24 of the largest products, so the weights are off
        // by that of themselves. Tensor cores get weights rounded to bf16, each off by up to 2^-8 of
        // itself, not all in one direction: half of that for a sum of values below 1. A bf16 output is
        // off by up to 2^-8 more.
        let single = 1e-5 * (self.sharpness / 3.0).max(1.0);
        let weights = if self.tensor_cores() { 1.0 / 512.0 } else { 0.0 };
        let rounding = if self.out == Float::Bf16 { 1.0 / 256.0 } else { 0.0 };
        for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let allowed = single + weights + rounding * theirs.abs();
            let width = self.heads() * self.dim;
            let (token, head, d) = (i / width, i % width / self.dim, i % self.dim);
            assert!(
                (ours - theirs).abs() <= allowed,
                "token {token}, head {head}, element {d}: {ours}, must be {theirs}\n{self:?}\n{batch:?}"
            );
        }
    }
}

/// A batch in device memory.
pub struct Prepared<'a> {
    pub case: &'a Case,
    pub gpu: &'a Arc<Gpu>,
    pub tokens: usize,
    pub q_stride: usize,
    pub shape: KvShape,
    pub q: Buffer,
    pub k: Buffer,
    pub v: Buffer,
    pub starts: Vec<i32>,
    pub lens: Vec<i32>,
    pub table: Vec<i32>,
    pub max_blocks: usize,
    pub max_q_len: usize,
    pub max_kv_len: usize,
    pub scale: f32,
}

fn floats(gpu: &Arc<Gpu>, dtype: Float, data: &[f32]) -> Buffer {
    let narrowed = |x: &f32| bf16::from_f32(*x).to_bits();
    match dtype {
        Float::F32 => Buffer::from_slice(gpu, data),
        Float::Bf16 => Buffer::from_slice(gpu, &data.iter().map(narrowed).collect::<Vec<u16>>()),
    }
    .expect("device memory")
}

impl<'a> Prepared<'a> {
    pub fn new(case: &'a Case, gpu: &'a Arc<Gpu>, batch: &[Seq]) -> Self {
        let needed = |s: &Seq| s.kv_len.div_ceil(case.block_size);
        let longest = batch.iter().map(|s| s.kv_len).max().unwrap_or(0);
        let max_kv_len = case.max_kv_len.unwrap_or(longest);
        let max_blocks = max_kv_len.div_ceil(case.block_size);
        // As many blocks again as are used, and one.
        let blocks = 2 * batch.iter().map(needed).sum::<usize>() + 1;
        let per_token = case.kv_heads * case.dim;
        let (mut k, mut v) = (vec![], vec![]);
        k.resize(blocks * case.block_size * per_token, case.rest);
        v.resize(k.len(), case.rest);
        let mut table = vec![-1; batch.len() * max_blocks];
        let mut free = 0;
        for (i, &s) in batch.iter().enumerate() {
            for token in 0..s.kv_len {
                if token % case.block_size == 0 {
                    // Every other block, from the last down.
                    table[i * max_blocks + token / case.block_size] = (blocks - 2 - free) as i32;
                    free += 2;
                }
                let block = table[i * max_blocks + token / case.block_size] as usize;
                let at = (block * case.block_size + token % case.block_size) * per_token;
                for e in 0..per_token {
                    let (head, d) = (e / case.dim, e % case.dim);
                    k[at + e] = case.key(s, token, head, d);
                    v[at + e] = case.value(s, token, head, d);
                }
            }
        }
        // Queries lie between other things, as behind a joint projection.
        let q_stride = case.heads() * case.dim + 3;
        let mut q = vec![];
        let mut starts = vec![0];
        for &s in batch {
            for i in 0..s.q_len {
                let token = (s.kv_len + i).saturating_sub(s.q_len);
                for e in 0..q_stride {
                    let (head, d) = (e / case.dim, e % case.dim);
                    q.push(if head < case.heads() {
                        case.query(s, token, head, d)
                    } else {
                        f32::NAN
                    });
                }
            }
            starts.push((q.len() / q_stride) as i32);
        }
        let widest = batch.iter().map(|s| s.q_len).max().unwrap_or(0);
        Self {
            case,
            gpu,
            tokens: q.len() / q_stride,
            q_stride,
            shape: KvShape {
                blocks,
                block_size: case.block_size,
                heads: case.kv_heads,
                dim: case.dim,
                dtype: case.cache,
            },
            q: floats(gpu, Float::F32, &q),
            k: floats(gpu, case.cache, &k),
            v: floats(gpu, case.cache, &v),
            starts,
            lens: batch.iter().map(|s| s.kv_len as i32).collect(),
            table,
            max_blocks,
            max_q_len: case.max_q_len.unwrap_or(widest),
            max_kv_len,
            scale: case.scale(),
        }
    }

    pub fn attend(&self) -> Result<Vec<f32>, Error> {
        self.attend_to(self.queries(), self.case.heads() * self.case.dim)
    }

    /// With these queries, and an output of this width.
    pub fn attend_to(&self, q: Heads<'_>, width: usize) -> Result<Vec<f32>, Error> {
        let mut placed = self.place(width)?;
        self.enqueue(q, &mut placed)?;
        placed.rows(self)
    }

    /// What changes from step to step, and a place for the output.
    pub fn place(&self, width: usize) -> Result<Placed, Error> {
        // Rows of the output lie apart, too, and what is between them must stay.
        let before = vec![7.0; self.tokens * (width + 5)];
        Ok(Placed {
            starts: Buffer::from_slice(self.gpu, &self.starts)?,
            lens: Buffer::from_slice(self.gpu, &self.lens)?,
            table: Buffer::from_slice(self.gpu, &self.table)?,
            out: floats(self.gpu, self.case.out, &before),
            width,
        })
    }

    /// Only enqueue it.
    pub fn enqueue(&self, q: Heads<'_>, placed: &mut Placed) -> Result<(), Error> {
        let (case, width) = (self.case, placed.width);
        let sequences = Sequences {
            cu_seqlens_q: placed.starts.view().cast(),
            seq_lens_kv: placed.lens.view().cast(),
            block_table: placed.table.view().cast(),
            max_blocks: self.max_blocks,
            max_q_len: self.max_q_len,
            max_kv_len: self.max_kv_len,
        };
        let params =
            AttentionParams { scale: self.scale, window: case.window, arithmetic: case.arithmetic };
        let cache = Kv::new(self.shape, self.k.view(), self.v.view())?;
        let out = placed.out.view_mut();
        let out = MatMut::new(out, case.out, self.tokens, width, width + 5)?;
        attention(self.gpu, q, cache, sequences, params, out)
    }

    pub fn queries(&self) -> Heads<'_> {
        let dims = [self.tokens, self.case.heads(), self.case.dim];
        Heads::new(self.q.view(), Float::F32, dims, self.q_stride).unwrap()
    }
}

/// Arrays of a step in device memory.
pub struct Placed {
    pub starts: Buffer,
    pub lens: Buffer,
    pub table: Buffer,
    out: Buffer,
    width: usize,
}

impl Placed {
    /// The output, when it is there.
    pub fn rows(&self, of: &Prepared<'_>) -> Result<Vec<f32>, Error> {
        let all = read(of.gpu, of.case.out, self.out.view())?;
        let (rows, between): (Vec<_>, Vec<_>) =
            all.into_iter().enumerate().partition(|(i, _)| i % (self.width + 5) < self.width);
        assert!(between.iter().all(|(_, x)| *x == 7.0), "something was written between the rows");
        Ok(rows.into_iter().map(|(_, x)| x).collect())
    }
}

fn read(gpu: &Gpu, dtype: Float, memory: View<'_, u8>) -> Result<Vec<f32>, Error> {
    Ok(match dtype {
        Float::F32 => memory.cast::<f32>().to_vec(gpu)?,
        Float::Bf16 => {
            let words = memory.cast::<u16>().to_vec(gpu)?;
            words.into_iter().map(|bits| bf16::from_bits(bits).to_f32()).collect()
        }
    })
}

/// Bits, so that zeros of different signs differ.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// A batch of sequences of these `(q_len, kv_len)`.
pub fn batch(lens: &[(usize, usize)]) -> Vec<Seq> {
    let seq =
        |(i, &(q_len, kv_len)): (usize, &(usize, usize))| Seq { seed: i as u64 + 1, q_len, kv_len };
    lens.iter().enumerate().map(seq).collect()
}
