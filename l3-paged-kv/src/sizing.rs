//! Sizing: how many blocks fit in memory, as printed arithmetic.
//!
//! ```text
//! a token and layer   2 (keys, values) x KV heads x head dim x bytes of an element
//! a block             x layers x tokens in a block
//! blocks              memory for keys and values / a block
//! ```
//!
//! [`KvSpec`] knows the first two lines, in bytes as they are really taken, padding and scales
//! included. Where the memory comes from is a [`Room`]: what is left of a device when the model is in
//! it ([`Memory`]), or a given size (`--kv-memory`, a [`Budget`]). A [`Plan`] is the quotient: it
//! prints how it came about, and it is not made when the model, or one sequence as long as was promised,
//! does not fit.

mod bytes;
mod machine;
mod plan;
mod profile;

use l1_tensor::DType;
use l1_tensor::ops::TILE;
use l2_model::ModelConfig;

use crate::manager::is_block_size;

pub use bytes::{Budget, Bytes, ParseBytesError, parse_bytes};
pub use machine::device_memory;
pub use plan::{Memory, Plan, Room};
pub use profile::peak_activation;

/// Error of planning the number of blocks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SizingError {
    /// The block size is neither a power of two nor a multiple of [`TILE`].
    #[error(
        "a block of {0} tokens is not possible: take a power of two, such as 8, 16 or 32, or a multiple of {TILE}"
    )]
    BadBlockSize(usize),
    /// The dtype is not one of the KV cache.
    #[error("keys and values are kept as F32, BF16 or F8E4M3, not as {0}")]
    BadDType(DType),
    /// The model has no attention layers.
    #[error("no layer of this model keeps keys and values: it needs no blocks")]
    NoAttention,
    /// The utilisation is not above 0 and at most 1.
    #[error(
        "a utilisation of {0} is not possible: it is a share of the memory, above 0 and at most 1"
    )]
    BadUtilisation(f64),
    /// `max_model_len` is 0.
    #[error("max_model_len is 0: a sequence has at least one token")]
    NoContext,
    /// No memory is left for keys and values.
    #[error(
        "the model does not fit: {requested} may be used, and weights ({weights}), activations ({peak_activation}) \
         and margin ({margin}) take {missing} more than that; \
         free memory, raise the utilisation, make steps smaller, or take a smaller model"
    )]
    ModelDoesNotFit {
        /// Memory that may be used, in bytes.
        requested: Bytes,
        /// Size of the weights.
        weights: Bytes,
        /// Peak size of the activations.
        peak_activation: Bytes,
        /// Memory that stays free.
        margin: Bytes,
        /// Missing memory.
        missing: Bytes,
    },
    /// Not even the smallest pool fits.
    #[error(
        "a pool has at least two blocks, as block 0 is never handed out: {needed}, of which {missing} are missing; \
         give keys and values more memory, or make blocks smaller"
    )]
    TooFewBlocks {
        /// Size of the smallest pool.
        needed: Bytes,
        /// Missing memory.
        missing: Bytes,
    },
    /// One sequence of `max_model_len` tokens does not fit.
    #[error(
        "a sequence of max_model_len = {max_model_len} tokens does not fit: keys and values of one take {needed}, \
         there is room for {have}, so {missing} are missing; \
         lower max_model_len to {longest} or less, or give keys and values more memory"
    )]
    ContextDoesNotFit {
        /// Maximum length of a sequence, in tokens.
        max_model_len: usize,
        /// Size of a pool for one such sequence.
        needed: Bytes,
        /// Available memory.
        have: Bytes,
        /// Missing memory.
        missing: Bytes,
        /// Length of the longest sequence that would fit, in tokens.
        longest: usize,
    },
}

/// Memory that the keys and values of a model need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSpec {
    dtype: DType,
    block_size: usize,
    /// One entry for each layer of the model.
    layers: Vec<Option<KvHeads>>,
}

/// KV heads of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KvHeads {
    heads: usize,
    head_dim: usize,
}

impl KvSpec {
    /// Computes the specification for a model, with blocks of `block_size` tokens, stored as `dtype`.
    ///
    /// # Errors
    /// [`SizingError::BadBlockSize`], [`SizingError::BadDType`], [`SizingError::NoAttention`].
    pub fn from_config(
        config: &ModelConfig,
        dtype: DType,
        block_size: usize,
    ) -> Result<Self, SizingError> {
        if !is_block_size(block_size) {
            return Err(SizingError::BadBlockSize(block_size));
        }
        if !matches!(dtype, DType::F32 | DType::BF16 | DType::F8E4M3) {
            return Err(SizingError::BadDType(dtype));
        }
        let mut layers = vec![None; config.layers.len()];
        for (i, a) in config.attention_layers() {
            layers[i] = Some(KvHeads { heads: a.kv_heads, head_dim: a.head_dim });
        }
        if layers.iter().all(Option::is_none) {
            return Err(SizingError::NoAttention);
        }
        Ok(Self { dtype, block_size, layers })
    }

    /// Number of tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Dtype of the stored keys and values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of layers that store keys and values.
    pub fn attention_layers(&self) -> usize {
        self.layers.iter().flatten().count()
    }

    /// Size of one token in one layer, in bytes; 0 in a layer without attention.
    ///
    /// Heads are padded to a multiple of 16 elements. With an 8-bit dtype each head has one byte of scale for
    /// its key and one for its value.
    pub fn bytes_per_token_layer(&self, layer: usize) -> u64 {
        let Some(Some(kv)) = self.layers.get(layer) else { return 0 };
        // exercise l3.sizing
        let elements = kv.head_dim.next_multiple_of(16) * self.dtype.size();
        let scale = if self.dtype == DType::F8E4M3 { 1 } else { 0 };
        2 * kv.heads as u64 * (elements + scale) as u64
        // end of exercise
    }

    /// Size of one token in all layers, in bytes.
    pub fn bytes_per_token(&self) -> u64 {
        // exercise l3.sizing
        (0..self.layers.len()).map(|layer| self.bytes_per_token_layer(layer)).sum()
        // end of exercise
    }

    /// Size of one block in all layers, in bytes.
    pub fn bytes_per_block(&self) -> u64 {
        // exercise l3.sizing
        self.bytes_per_token().saturating_mul(self.block_size as u64)
        // end of exercise
    }

    /// Size of a pool, in bytes: its blocks, rounded up to whole tiles of 16 tokens.
    pub fn pool_bytes(&self, num_blocks: usize) -> u64 {
        let tokens = (num_blocks as u64).saturating_mul(self.block_size as u64);
        self.bytes_per_token().saturating_mul(tokens.div_ceil(TILE as u64) * TILE as u64)
    }

    /// Blocks that are allocated together: those that share a tile.
    fn blocks_at_once(&self) -> u64 {
        (TILE / self.block_size).max(1) as u64
    }

    /// Maximum number of blocks that fit a budget, limited by the `i32` entries of block tables.
    pub fn blocks_in(&self, budget: Budget) -> usize {
        let together = self.blocks_at_once();
        // exercise l3.sizing
        let bytes = self.bytes_per_block().saturating_mul(together);
        let blocks = budget.pieces_of(bytes).saturating_mul(together);
        blocks.min(i32::MAX as u64) as usize
        // end of exercise
    }
}
