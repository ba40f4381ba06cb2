//! A block table: which blocks hold a sequence's tokens.

use crate::BlockId;

/// A sequence's blocks, in the order of its tokens. It only grows at its end, and shrinks there
/// when tokens are taken back: an entry, once written, is never exchanged for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    block_size: usize,
}

impl BlockTable {
    /// An empty table with room for `max_blocks` without allocating again. `block_size` (tokens a
    /// block) is at least 1.
    pub fn with_capacity(block_size: usize, max_blocks: usize) -> Self {
        Self { blocks: Vec::with_capacity(max_blocks), block_size: block_size.max(1) }
    }

    /// The table of these blocks, in this order. Tables of sequences are the manager's; this one
    /// serves whoever lays out memory without one.
    pub fn from_blocks(block_size: usize, blocks: &[BlockId]) -> Self {
        Self { blocks: blocks.to_vec(), block_size: block_size.max(1) }
    }

    /// Tokens a block holds.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The blocks: tokens `i * block_size..(i + 1) * block_size` are in the `i`-th.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Tokens that fit the blocks there are.
    pub fn capacity(&self) -> usize {
        // exercise l3.table
        self.blocks.len() * self.block_size
        // end of exercise
    }

    /// Blocks that must be appended before `len` tokens fit.
    pub fn missing(&self, len: usize) -> usize {
        // exercise l3.table
        len.div_ceil(self.block_size).saturating_sub(self.blocks.len())
        // end of exercise
    }

    /// Where the token at `position` is stored: `block * block_size + offset`, an index into the
    /// pool's memory in tokens. `None` beyond the table.
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
