//! A model of the Llama family, and the forward pass of one token.

use crate::attention::attend;
use crate::ops::{rms_norm, rope, swiglu};
use crate::{Heads, KvMemory, Matrix};

/// A model. `H` is its hidden size, `V` its vocabulary size.
#[derive(Clone, Debug)]
pub struct Model {
    /// A row of `H` for each token of the vocabulary: `[V, H]`.
    pub embedding: Matrix,
    /// The layers, in their order.
    pub layers: Vec<Layer>,
    /// Weight of the norm behind the last layer.
    pub norm: Vec<f32>,
    /// The output projection, `[V, H]`. In many models it is the embedding.
    pub lm_head: Matrix,
    /// Shape of attention.
    pub heads: Heads,
    /// The epsilon of all norms.
    pub eps: f32,
    /// Base of the frequencies of RoPE.
    pub rope_theta: f32,
}

/// Weights of a layer. All matrices are `[outputs, inputs]`.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Weight of the norm before attention.
    pub attn_norm: Vec<f32>,
    /// Query projection.
    pub q: Matrix,
    /// Key projection.
    pub k: Matrix,
    /// Value projection.
    pub v: Matrix,
    /// Output projection of attention.
    pub o: Matrix,
    /// Weight of the norm before the MLP.
    pub mlp_norm: Vec<f32>,
    /// Gate projection.
    pub gate: Matrix,
    /// Up projection.
    pub up: Matrix,
    /// Down projection.
    pub down: Matrix,
}

impl Model {
    /// Memory for the keys and values of so many tokens.
    pub fn kv_memory(&self, slots: usize) -> KvMemory {
        KvMemory::new(self.layers.len(), slots, self.heads.kv * self.heads.dim)
    }

    /// The forward pass of one token: stores its keys and values, and returns the logits of the token behind it, `V`
    /// numbers.
    ///
    /// `slots` has the slot of every token of the sequence so far, the slot of this one last. So the position of this token
    /// is `slots.len() - 1`, and the keys and values of all others must be stored.
    pub fn forward(&self, token: u32, slots: &[usize], kv: &mut KvMemory) -> Vec<f32> {
        // exercise nano.forward
        let mut x = self.embedding.row(token as usize).to_vec();
        for layer in 0..self.layers.len() {
            let attended = self.attention(layer, &x, slots, kv);
            add(&mut x, &attended);
            let processed = self.mlp(layer, &x);
            add(&mut x, &processed);
        }
        self.lm_head.times(&rms_norm(&x, &self.norm, self.eps))
        // end of exercise
    }

    /// The attention branch of a layer: norm, projections, RoPE, store, attend, output projection. `x` is the residual
    /// stream, `H` numbers, and so is the result.
    ///
    /// RoPE rotates every head of the query and of the key, by the position of the token; the value is not rotated.
    pub fn attention(
        &self,
        layer: usize,
        x: &[f32],
        slots: &[usize],
        kv: &mut KvMemory,
    ) -> Vec<f32> {
        let weights = &self.layers[layer];
        let (position, slot) = (slots.len() - 1, slots[slots.len() - 1]);
        // exercise nano.layer
        let x = rms_norm(x, &weights.attn_norm, self.eps);
        let (mut q, mut k) = (weights.q.times(&x), weights.k.times(&x));
        let v = weights.v.times(&x);
        for head in q.chunks_exact_mut(self.heads.dim).chain(k.chunks_exact_mut(self.heads.dim)) {
            rope(head, position, self.rope_theta);
        }
        kv.store(layer, slot, &k, &v);
        let (keys, values) = kv.load(layer, slots);
        weights.o.times(&attend(&q, &keys, &values, self.heads))
        // end of exercise
    }

    /// The MLP branch of a layer: norm, `down * swiglu(gate * x, up * x)`.
    pub fn mlp(&self, layer: usize, x: &[f32]) -> Vec<f32> {
        let weights = &self.layers[layer];
        // exercise nano.layer
        let x = rms_norm(x, &weights.mlp_norm, self.eps);
        weights.down.times(&swiglu(&weights.gate.times(&x), &weights.up.times(&x)))
        // end of exercise
    }
}

/// `x_i += y_i`: a branch is added to the residual stream.
pub fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
