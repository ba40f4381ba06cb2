//! The free list: block ids in the order in which they will be handed out.
//!
//! A doubly linked list whose links live in one array, indexed by block id (an *intrusive* list):
//! pop, push at either end and remove from the middle are O(1) and allocate nothing. Removal from
//! the middle is what a prefix hit needs: a cached block that waits to be reused is found by its
//! hash, wherever it stands in the list.

use crate::BlockId;

/// Free blocks, next to be handed out first.
pub struct FreeList {
    // private
}

impl FreeList {
    /// Blocks `1..num_blocks`, in order. Block 0, the null block, is in no list.
    pub fn new(num_blocks: usize) -> Self;
    /// Blocks in the list.
    pub fn len(&self) -> usize;
    /// Whether there are none.
    pub fn is_empty(&self) -> bool;
    /// Whether a block is in the list.
    pub fn contains(&self, block: BlockId) -> bool;
    /// Take the first.
    pub fn pop_front(&mut self) -> Option<BlockId>;
    /// Put a block first: it will be handed out next. The block is not in the list (debug-asserted; the pool checks).
    pub fn push_front(&mut self, block: BlockId);
    /// Put a block last.
    pub fn push_back(&mut self, block: BlockId);
    /// Take a block out, wherever it stands.
    pub fn remove(&mut self, block: BlockId);
    /// The list in order (for viewers and tests: O(n)).
    pub fn iter(&self) -> impl Iterator<Item = BlockId> + '_;
}
