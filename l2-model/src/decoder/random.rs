//! A model of any size without a checkpoint: weights drawn at random, where they will be used.
//!
//! How fast a model is depends on its shapes, hardly on its weights. So a benchmark needs a config and
//! nothing else. The numbers are drawn as the layers of a model are before it is trained (He et al. 2015,
//! arXiv 1502.01852, without the factor for ReLU): a matrix of `k` inputs has a standard deviation of
//! `1 / sqrt(k)`, so that what comes out is about as large as what goes in, through any number of layers.
//! Embedding and head have 0.02, as GPT-2's did; norms multiply by 1; biases are 0.02 wide.
//!
//! An element is a function of (seed, matrix, row, place), so the same model comes out on every device, with
//! any number of threads. No matrix is ever on the host as a whole: rows are drawn when they are asked for.

use std::cell::Cell;
use std::sync::Arc;

use l1_tensor::ops::RopeTable;
use l1_tensor::{RowOrder, Runtime, Tensor, Weight};

use super::load::{activation, on_device};
use super::{Attention, Branch, Decoder, Layer, Mlp, NormWeights, OpWeights};
use crate::config::{self, AttentionConfig, MlpConfig, Norm, Op};
use crate::{ModelConfig, Result};

/// The standard deviation of embeddings, head and biases.
const NARROW: f32 = 0.02;

impl Decoder {
    /// A model of this config with random weights, on the runtime's device: the same one for the same
    /// `seed`.
    ///
    /// # Errors
    /// No memory, or rope parameters that cannot be.
    pub fn random(rt: &Runtime, config: ModelConfig, seed: u64) -> Result<Self> {
        let draw = Draw { rt, seed, drawn: Cell::new(0) };
        let (h, v) = (config.hidden, config.vocab);
        let rope = RopeTable::new(config.rope.rotary_dim, config.rope.theta, &config.rope.scaling)?;
        let embedding = Arc::new(draw.matrix(v, h, NARROW, RowOrder::Plain)?);
        let lm_head = if config.tied_embeddings {
            Arc::clone(&embedding)
        } else {
            Arc::new(draw.matrix(v, h, NARROW, RowOrder::Plain)?)
        };
        let layers = config.layers.iter().map(|layer| draw.layer(h, layer));
        let layers = layers.collect::<Result<_>>()?;
        let final_norm = draw.norm(h, config.final_norm)?;
        Ok(Self { config, embedding, layers, final_norm, lm_head, rope })
    }
}

/// Draws one matrix or vector after the other.
struct Draw<'a> {
    rt: &'a Runtime,
    seed: u64,
    /// How many there are so far: each has numbers of its own.
    drawn: Cell<u64>,
}

impl Draw<'_> {
    fn layer(&self, hidden: usize, layer: &config::LayerConfig) -> Result<Layer> {
        let branch = |b: &config::Branch| {
            Ok(Branch {
                norm: self.norm(hidden, b.norm)?,
                op: match &b.op {
                    Op::Attention(a) => OpWeights::Attention(self.attention(hidden, a)?),
                    Op::Mlp(m) => OpWeights::Mlp(self.mlp(hidden, m)?),
                },
                mode: b.mode,
                scale: b.scale,
            })
        };
        Ok(Layer { branches: layer.branches.iter().map(branch).collect::<Result<_>>()? })
    }

    fn attention(&self, hidden: usize, a: &AttentionConfig) -> Result<Attention> {
        let (q, qkv) = (a.q_heads * a.head_dim, (a.q_heads + 2 * a.kv_heads) * a.head_dim);
        let head_norm = || a.qk_norm.map(|_| self.ones(a.head_dim)).transpose();
        Ok(Attention {
            config: a.clone(),
            qkv: self.layer_matrix(qkv, hidden, RowOrder::Plain)?,
            qkv_bias: self.bias(qkv, a.qkv_bias)?,
            q_norm: head_norm()?,
            k_norm: head_norm()?,
            o: self.layer_matrix(hidden, q, RowOrder::Plain)?,
            o_bias: self.bias(hidden, a.o_bias)?,
        })
    }

    fn mlp(&self, hidden: usize, m: &MlpConfig) -> Result<Mlp> {
        let wide = m.intermediate;
        Ok(Mlp {
            gate_up: self.layer_matrix(2 * wide, hidden, RowOrder::GateUp)?,
            gate_up_bias: self.bias(2 * wide, m.bias)?,
            activation: activation(m.activation),
            intermediate: wide,
            down: self.layer_matrix(hidden, wide, RowOrder::Plain)?,
            down_bias: self.bias(hidden, m.bias)?,
        })
    }

    fn norm(&self, width: usize, kind: Norm) -> Result<NormWeights> {
        let has_bias = matches!(kind, Norm::Layer { .. });
        Ok(NormWeights { kind, weight: self.ones(width)?, bias: self.bias(width, has_bias)? })
    }

    /// A matrix whose outputs are about as large as its inputs.
    fn layer_matrix(&self, n: usize, k: usize, order: RowOrder) -> Result<Weight> {
        self.matrix(n, k, 1.0 / (k.max(1) as f32).sqrt(), order)
    }

    fn matrix(&self, n: usize, k: usize, deviation: f32, order: RowOrder) -> Result<Weight> {
        let stream = self.stream();
        let row = |i: usize, out: &mut [f32]| -> Result<()> {
            fill(mix(stream ^ i as u64), deviation, out);
            Ok(())
        };
        Weight::load(self.rt, n, k, order, &row)
    }

    fn ones(&self, width: usize) -> Result<Tensor> {
        on_device(self.rt, &vec![1.0; width])
    }

    fn bias(&self, width: usize, present: bool) -> Result<Option<Tensor>> {
        let mut values = vec![0.0; if present { width } else { 0 }];
        fill(self.stream(), NARROW, &mut values);
        present.then(|| on_device(self.rt, &values)).transpose()
    }

    /// Where the numbers of the next matrix begin.
    fn stream(&self) -> u64 {
        let number = self.drawn.get();
        self.drawn.set(number + 1);
        mix(mix(self.seed) ^ number)
    }
}

/// Numbers of this standard deviation around 0, evenly spread: four of sixteen bits from each word.
fn fill(start: u64, deviation: f32, out: &mut [f32]) {
    // An even spread between -a and a has a deviation of a / sqrt(3).
    let (widest, half) = (deviation * 3f32.sqrt(), 32767.5);
    let step = widest / half;
    for (word, four) in out.chunks_mut(4).enumerate() {
        let mut bits = mix(start.wrapping_add(word as u64));
        for x in four {
            *x = ((bits & 0xffff) as f32 - half) * step;
            bits >>= 16;
        }
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
/// generators"): neighbouring numbers become unrelated ones.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(of: &[f32]) -> (f64, f64) {
        let n = of.len() as f64;
        let mean = of.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let square = of.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        (mean, square.sqrt())
    }

    #[test]
    fn numbers_have_the_mean_and_deviation_asked_for() {
        let mut out = vec![0.0; 100_003];
        fill(7, 0.25, &mut out);
        let (mean, deviation) = moments(&out);
        assert!(mean.abs() < 0.003, "a mean of {mean}, and 0 was wanted");
        assert!((deviation - 0.25).abs() < 0.002, "a deviation of {deviation}, not 0.25");
        assert!(out.iter().all(|x| x.abs() < 0.4331), "0.25 sqrt(3) is the widest");
    }

    #[test]
    fn neighbours_are_unrelated() {
        let (mut a, mut b) = (vec![0.0; 50_000], vec![0.0; 50_000]);
        fill(mix(4), 1.0, &mut a);
        fill(mix(5), 1.0, &mut b);
        let correlation = |a: &[f32], b: &[f32]| {
            let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum();
            (sum / a.len() as f64).abs()
        };
        // Five deviations of the mean of 50 000 products.
        assert!(correlation(&a, &b) < 0.023, "rows: {}", correlation(&a, &b));
        for apart in 1..5 {
            let c = correlation(&a[apart..], &a[..a.len() - apart]);
            assert!(c < 0.023, "elements {apart} apart: {c}");
        }
    }
}
