//! A pool of KV blocks, and block tables: paged memory for keys and values (Kwon et al. 2023, "PagedAttention").
//!
//! The slots of a [`KvMemory`](crate::KvMemory) are cut into blocks of the same size. A sequence takes a block when its last
//! one is full, and gives all of them back when it ends. Its blocks may be anywhere; its block table says where.

/// The free blocks of a memory.
#[derive(Clone, Debug)]
pub struct BlockPool {
    block_size: usize,
    /// Free blocks. The last one is the next to be allocated.
    free: Vec<usize>,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks of `block_size` slots. Block 0 is the first to be allocated, then block 1.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        Self { block_size, free: (0..num_blocks).rev().collect() }
    }

    /// Number of slots of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Number of free blocks.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }
}

/// The blocks of one sequence: token `p` is in block `p / block_size` of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTable {
    blocks: Vec<usize>,
}

impl BlockTable {
    /// The blocks, in the order of the tokens.
    pub fn blocks(&self) -> &[usize] {
        &self.blocks
    }

    /// Takes as many blocks as `tokens` tokens need and the table does not have yet. Returns whether there were enough; if
    /// not, nothing was taken.
    pub fn reserve(&mut self, tokens: usize, pool: &mut BlockPool) -> bool {
        // exercise nano.blocks
        let needed = tokens.div_ceil(pool.block_size).saturating_sub(self.blocks.len());
        if needed > pool.free.len() {
            return false;
        }
        for _ in 0..needed {
            self.blocks.extend(pool.free.pop());
        }
        true
        // end of exercise
    }

    /// The slots of the first `tokens` tokens.
    pub fn slots(&self, tokens: usize, pool: &BlockPool) -> Vec<usize> {
        // exercise nano.blocks
        let slot =
            |p: usize| self.blocks[p / pool.block_size] * pool.block_size + p % pool.block_size;
        (0..tokens).map(slot).collect()
        // end of exercise
    }

    /// Gives all blocks back.
    pub fn release(&mut self, pool: &mut BlockPool) {
        // exercise nano.blocks
        pool.free.extend(self.blocks.drain(..).rev());
        // end of exercise
    }
}
