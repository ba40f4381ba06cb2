//! Texts made of numbers, and attention over them in f64: what paged attention is held against.
#![allow(dead_code, unused_imports)]

pub use crate::models::runtime;

/// Some numbers in -1..1, the same for the same seed.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// `0..count` in some order.
pub fn shuffled(count: usize, seed: u64) -> Vec<u32> {
    let keys = numbers(count, seed);
    let mut all: Vec<u32> = (0..count as u32).collect();
    all.sort_by(|a, b| keys[*a as usize].total_cmp(&keys[*b as usize]));
    all
}

/// The heads of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub q: usize,
    pub kv: usize,
    pub dim: usize,
    pub window: Option<usize>,
}

impl Heads {
    pub fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }
}

/// A sequence: queries, keys and values of each of its tokens, `[len, heads, D]`.
#[derive(Clone, Debug)]
pub struct Text {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl Text {
    pub fn new(heads: Heads, len: usize, seed: u64) -> Self {
        let kv = len * heads.kv * heads.dim;
        Self {
            // Large queries make sharp distributions, where mistakes show.
            q: numbers(len * heads.q * heads.dim, 3 * seed).iter().map(|x| x * 4.0).collect(),
            k: numbers(kv, 3 * seed + 1),
            v: numbers(kv, 3 * seed + 2),
        }
    }

    /// Attention of the query at `position` over the keys it sees: `[H_q * D]`.
    pub fn attended(&self, heads: Heads, position: usize) -> Vec<f32> {
        let Heads { q, kv, dim, window } = heads;
        let lo = window.map_or(0, |w| (position + 1).saturating_sub(w));
        let mut out = Vec::new();
        for h in 0..q {
            let g = h / (q / kv);
            let query = &self.q[(position * q + h) * dim..][..dim];
            let weight = |p: usize| {
                let key = &self.k[(p * kv + g) * dim..][..dim];
                let dot = query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b));
                dot.sum::<f64>() * f64::from(heads.scale())
            };
            let scores: Vec<f64> = (lo..=position).map(weight).collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            for d in 0..dim {
                let value = |p: usize| f64::from(self.v[(p * kv + g) * dim + d]);
                let all = (lo..=position).zip(&scores).map(|(p, s)| (s - max).exp() * value(p));
                out.push((all.sum::<f64>() / sum) as f32);
            }
        }
        out
    }
}
