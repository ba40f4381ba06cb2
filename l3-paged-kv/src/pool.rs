//! Blocks: how often each is used, and which are free.

use crate::Result;

/// A block's number: an index into the pool's memory.
pub type BlockId = u32;

/// Block 0 stands for "no block here" (behind a sliding window, in padding). It is never handed out.
pub const NULL_BLOCK: BlockId = 0;

/// `num_blocks` blocks (the null block included), made once; the number never changes.
pub struct BlockPool { /* refcounts, FreeList */ }

impl BlockPool {
    pub fn new(num_blocks: usize) -> Result<Self>;   // at least 2, at most i32::MAX
    pub fn num_blocks(&self) -> usize;
    pub fn num_free(&self) -> usize;
    /// `1 - free / (num_blocks - 1)`: cached but unused blocks count as free.
    pub fn usage(&self) -> f64;
    pub fn ref_count(&self, block: BlockId) -> Result<u32>;
    /// Take the front of the free list, ref count 1. The caller must forget any hash of it.
    pub fn pop(&mut self) -> Option<BlockId>;
    /// One more user: `touch` of a prefix hit. A free block leaves the free list.
    pub fn touch(&mut self, block: BlockId) -> Result<()>;
    /// One user less. At zero users the block becomes free: at the back if its contents are worth keeping (hashed), else at the front.
    /// Returns whether it became free.
    pub fn release(&mut self, block: BlockId, keep_contents: bool) -> Result<bool>;
    pub fn free_list(&self) -> &FreeList;
}
