//! Block tables: the blocks that hold a sequence's tokens.

use crate::BlockId;

/// Blocks of a sequence, in the order of its tokens. A table grows at its end, and shrinks there when
/// tokens are rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    block_size: usize,
}

impl BlockTable {
    /// Creates an empty table with capacity for `max_blocks` blocks. `block_size` (tokens per block) must be
    /// at least 1.
    pub fn with_capacity(block_size: usize, max_blocks: usize) -> Self {
        Self { blocks: Vec::with_capacity(max_blocks), block_size: block_size.max(1) }
    }

    /// Creates a table of these blocks, for callers that lay out memory without a
    /// [`BlockManager`](crate::BlockManager).
    pub fn from_blocks(block_size: usize, blocks: &[BlockId]) -> Self {
        Self { blocks: blocks.to_vec(), block_size: block_size.max(1) }
    }

    /// Number of tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks: tokens `i * block_size..(i + 1) * block_size` are in the `i`-th.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Number of tokens that fit the blocks of the table.
    pub fn capacity(&self) -> usize {
        // exercise l3.table
        self.blocks.len() * self.block_size
        // end of exercise
    }

    /// Number of blocks that must be appended before `len` tokens fit.
    pub fn missing(&self, len: usize) -> usize {
        // exercise l3.table
        len.div_ceil(self.block_size).saturating_sub(self.blocks.len())
        // end of exercise
    }

    /// Slot of the token at `position`: `block * block_size + offset`, an index into the memory of the pool
    /// in tokens. `None` beyond the table.
    pub fn slot(&self, position: usize) -> Option<i64> {
        // exercise l3.table
        let block = *self.blocks.get(position / self.block_size)?;
        Some(i64::from(block) * self.block_size as i64 + (position % self.block_size) as i64)
        // end of exercise
    }

    pub(crate) fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    pub(crate) fn truncate(&mut self, blocks: usize) {
        self.blocks.truncate(blocks);
    }
}
