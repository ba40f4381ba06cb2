//! The matrices of a decoder by name, and what follows from their sizes.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use l1_tensor::{Weight, Work};

use super::{Decoder, OpWeights};

/// Name of a matrix that a step multiplies by. A layer has one of each, but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Matrix {
    /// Projection to queries, keys and values, fused.
    Qkv,
    /// Projection of the attention's output.
    O,
    /// Gate and up projections of the MLP, fused.
    GateUp,
    /// Down projection of the MLP.
    Down,
    /// Output projection.
    LmHead,
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Matrix::Qkv => "qkv",
            Matrix::O => "o",
            Matrix::GateUp => "gate_up",
            Matrix::Down => "down",
            Matrix::LmHead => "lm_head",
        })
    }
}

impl Decoder {
    /// All matrices that a step multiplies by, in the order in which it does.
    pub fn matrices(&self) -> impl Iterator<Item = (Matrix, &Weight)> {
        let layers = self.layers.iter().flat_map(|l| &l.branches).flat_map(|b| match &b.op {
            OpWeights::Attention(a) => [(Matrix::Qkv, &a.qkv), (Matrix::O, &a.o)],
            OpWeights::Mlp(m) => [(Matrix::GateUp, &m.gate_up), (Matrix::Down, &m.down)],
        });
        layers.chain([(Matrix::LmHead, &*self.lm_head)])
    }

    /// Size of all weights in memory, in bytes.
    pub fn weight_bytes(&self) -> usize {
        let tied = Arc::ptr_eq(&self.embedding, &self.lm_head);
        self.bytes_per_step() + if tied { 0 } else { self.embedding.bytes() }
    }

    /// Size of the weights that one decode step reads, in bytes, for any batch: all matrices except the
    /// embedding, of which a step reads one row per token.
    pub fn bytes_per_step(&self) -> usize {
        self.matrices().map(|(_, weight)| weight.bytes()).sum()
    }

    /// Format of the numbers that the matmuls multiply by: bf16, for blocks are dequantized to it. Engines whose formats
    /// differ compute different keys and values from the same checkpoint, so a scheme with other numbers needs a name.
    pub fn weight_format(&self) -> &'static str {
        "bf16"
    }

    /// Formats that the matrices have in memory, such as "Q4_K+Q6_K" or "bf16": the sorted names, joined by `+`.
    pub fn weight_storage(&self) -> String {
        let all = self.matrices().map(|(_, weight)| weight).chain([&*self.embedding]);
        let names: BTreeSet<_> = all.flat_map(Weight::formats).collect();
        names.into_iter().collect::<Vec<_>>().join("+")
    }

    /// Floating point operations of one token's matmuls without the output projection, and of one row of
    /// the output projection.
    pub fn flops(&self) -> (usize, usize) {
        let flops = |w: &Weight| Work::matmul(1, w).flops as usize;
        let layers = self.matrices().filter(|(name, _)| *name != Matrix::LmHead);
        (layers.map(|(_, weight)| flops(weight)).sum(), flops(&self.lm_head))
    }
}
