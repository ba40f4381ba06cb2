//! The free list: block ids in the order in which they will be handed out.
//!
//! A doubly linked list whose links live in one array, indexed by block id (an *intrusive* list):
//! pop, push at either end and remove from the middle are O(1) and allocate nothing. Removal from
//! the middle is what a prefix hit needs: a cached block that waits to be reused is found by its
//! hash, wherever it stands in the list.
//!
//! The list is a ring, and the null block closes it: block 0 is never free, so its two links are
//! free to mean *first* and *last*. With it no operation needs to ask whether the list is empty or
//! a block stands at an end.
//!
//! ```text
//!        ┌──────────────────────────────────────────────┐
//!        └─> 0 <──next/prev──> 7 <────> 3 <────> 12 <───┘
//!            ring              first             last
//! ```

use crate::{BlockId, NULL_BLOCK};

/// A block's neighbours in the ring.
#[derive(Clone, Copy, Debug)]
struct Links {
    prev: BlockId,
    next: BlockId,
}

/// The links of a block that is in no list.
const OUTSIDE: Links = Links { prev: BlockId::MAX, next: BlockId::MAX };

/// Free blocks, next to be handed out first.
#[derive(Clone, Debug)]
pub struct FreeList {
    links: Vec<Links>,
    len: usize,
}

impl FreeList {
    /// Creates a list of blocks `1..num_blocks`, in order. Block 0, the null block, is never in it. At
    /// most `i32::MAX` blocks.
    pub fn new(num_blocks: usize) -> Self {
        let count = num_blocks.max(1) as BlockId;
        let neighbours = |block: BlockId| Links {
            prev: if block == NULL_BLOCK { count - 1 } else { block - 1 },
            next: if block + 1 == count { NULL_BLOCK } else { block + 1 },
        };
        Self { links: (0..count).map(neighbours).collect(), len: count as usize - 1 }
    }

    /// Number of blocks in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether a block is in the list.
    pub fn contains(&self, block: BlockId) -> bool {
        let known = self.links.get(block as usize);
        block != NULL_BLOCK && known.is_some_and(|links| links.next != OUTSIDE.next)
    }

    /// Removes and returns the first block, in O(1).
    pub fn pop_front(&mut self) -> Option<BlockId> {
        // exercise l3.free_list
        let first = self.links[NULL_BLOCK as usize].next;
        if first == NULL_BLOCK {
            return None;
        }
        self.unlink(first);
        Some(first)
        // end of exercise
    }

    /// Inserts a block at the front: it will be handed out next. The block must be below `num_blocks`
    /// and not in the list; the pool checks that.
    pub fn push_front(&mut self, block: BlockId) {
        debug_assert!(block != NULL_BLOCK && !self.contains(block), "block {block} is free twice");
        // exercise l3.free_list
        self.link_between(NULL_BLOCK, block, self.links[NULL_BLOCK as usize].next);
        // end of exercise
    }

    /// Appends a block at the back. The block must be below `num_blocks` and not in the list.
    pub fn push_back(&mut self, block: BlockId) {
        debug_assert!(block != NULL_BLOCK && !self.contains(block), "block {block} is free twice");
        // exercise l3.free_list
        self.link_between(self.links[NULL_BLOCK as usize].prev, block, NULL_BLOCK);
        // end of exercise
    }

    /// Removes a block from any position, in O(1). The block must be in the list.
    pub fn remove(&mut self, block: BlockId) {
        debug_assert!(self.contains(block), "block {block} is not in the free list");
        // exercise l3.free_list
        self.unlink(block);
        // end of exercise
    }

    /// Iterates over the list in order (for viewers and tests: O(n)).
    pub fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        let after = |block: BlockId| {
            let next = self.links[block as usize].next;
            (next != NULL_BLOCK).then_some(next)
        };
        let ring = std::iter::successors(after(NULL_BLOCK), move |block| after(*block));
        // A ring that was linked wrongly may never come back to block 0.
        ring.take(self.links.len())
    }

    fn link_between(&mut self, prev: BlockId, block: BlockId, next: BlockId) {
        // exercise l3.free_list
        self.links[block as usize] = Links { prev, next };
        self.links[prev as usize].next = block;
        self.links[next as usize].prev = block;
        self.len += 1;
        // end of exercise
    }

    fn unlink(&mut self, block: BlockId) {
        // exercise l3.free_list
        let Links { prev, next } = std::mem::replace(&mut self.links[block as usize], OUTSIDE);
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.len -= 1;
        // end of exercise
    }
}
