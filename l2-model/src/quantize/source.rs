//! The weights that are quantised, in the order of Hugging Face.
//!
//! Tensors of a Hugging Face directory are taken as they are stored. Those of a GGUF file become what a directory in
//! bf16 would have: each number is rounded to bf16, as when the model is loaded, and the rows of q and k are put back
//! in order.

use half::bf16;

use crate::checkpoint::names::unpermute_rows;
use crate::checkpoint::quant::f32_to_bf16;
use crate::checkpoint::{Checkpoint, StoredTensor};
use crate::{ModelConfig, Result};

/// A checkpoint to be quantised.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
}

impl<'a> Source<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, config: &'a ModelConfig) -> Self {
        Self { checkpoint, config }
    }

    /// The tensor of a Hugging Face name.
    pub(super) fn tensor(&self, name: &str) -> Option<SourceTensor<'a>> {
        let stored = self.checkpoint.get(name)?;
        let permuted = self.checkpoint.rows_are_permuted(name);
        let order = if permuted { self.order(name) } else { Vec::new() };
        let expand = self.checkpoint.gguf().is_some();
        Some(SourceTensor { stored, order, expand })
    }

    /// Rows of a permuted tensor in the order of Hugging Face. The layers of a GGUF file are alike.
    fn order(&self, name: &str) -> Vec<usize> {
        let attention = self.config.attention_layers().next();
        attention.map_or_else(Vec::new, |(_, a)| {
            let heads = if name.contains("q_proj") { a.q_heads } else { a.kv_heads };
            unpermute_rows(a.head_dim, heads)
        })
    }

    /// Releases the mapped pages of a tensor.
    pub(super) fn release(&self, name: &str) {
        self.checkpoint.release(name);
    }
}

/// A tensor of a [`Source`].
pub(super) struct SourceTensor<'a> {
    pub(super) stored: StoredTensor<'a>,
    /// Row `i` (of a vector: element `i`) is stored row `order[i]`; empty if the order is that of the file.
    order: Vec<usize>,
    /// Whether the numbers become bf16.
    expand: bool,
}

impl SourceTensor<'_> {
    /// Name of the numbers' format in safetensors.
    pub(super) fn dtype(&self) -> &'static str {
        if self.expand { "BF16" } else { self.stored.ty.name() }
    }

    /// Size in this format, in bytes.
    pub(super) fn bytes(&self) -> usize {
        if self.expand { self.stored.len() * size_of::<bf16>() } else { self.stored.bytes.len() }
    }

    fn is_vector(&self) -> bool {
        self.stored.shape.len() < 2
    }

    /// Index in the file of row `i`; of a vector, of element `i`.
    fn in_file(&self, i: usize) -> usize {
        self.order.get(i).copied().unwrap_or(i)
    }

    /// Index in the file of row `i` of a matrix, and of the one row of a vector.
    fn stored_row(&self, i: usize) -> usize {
        if self.is_vector() { i } else { self.in_file(i) }
    }

    /// Indices in the file of a number of [`row`](Self::row).
    pub(super) fn stored_index(&self, row: usize, column: usize) -> Vec<usize> {
        if self.is_vector() { vec![column] } else { vec![self.stored_row(row), column] }
    }

    /// Row `i` of a matrix, as f32; of a vector, the one row, in the order of the file.
    pub(super) fn row(&self, i: usize, out: &mut [f32]) -> Result<()> {
        self.stored.dequantize_row(self.stored_row(i), out)?;
        if self.expand {
            out.iter_mut().for_each(|x| *x = f32_to_bf16(*x).to_f32());
        }
        Ok(())
    }

    /// Hands all numbers to `write`, in pieces.
    pub(super) fn write(&self, mut write: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if !self.expand {
            return write(self.stored.bytes);
        }
        let mut row = vec![bf16::ZERO; self.stored.row_len()];
        let mut bytes = Vec::with_capacity(row.len() * size_of::<bf16>());
        for i in 0..self.stored.n_rows() {
            self.stored.dequantize_row_bf16(self.stored_row(i), &mut row)?;
            bytes.clear();
            match self.is_vector() {
                true => bytes.extend(
                    (0..row.len())
                        .filter_map(|i| row.get(self.in_file(i)))
                        .flat_map(|x| x.to_le_bytes()),
                ),
                false => bytes.extend(row.iter().flat_map(|x| x.to_le_bytes())),
            }
            write(&bytes)?;
        }
        Ok(())
    }
}
