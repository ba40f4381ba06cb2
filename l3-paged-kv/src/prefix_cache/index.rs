//! The hash table under the prefix cache: from a tag of 32 bits to the blocks with this tag.
//!
//! Open addressing with linear probing: an entry is in the bucket of its tag, or in the run of occupied buckets that
//! begins there. The standard library's map is unsuitable: its removals leave tombstones, so that it now and then
//! rehashes or grows in the middle of a step. This table has a fixed size and is at most half full, and a removal
//! closes its gap at once by moving up the entries behind it. An entry is a tag and a block id, eight bytes, so that
//! even in a table of a million blocks an operation costs about one cache miss.

use crate::{BlockId, NULL_BLOCK};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    tag: u32,
    /// Block id; [`NULL_BLOCK`] if the bucket is empty.
    block: BlockId,
}

const EMPTY: Slot = Slot { tag: 0, block: NULL_BLOCK };

/// Blocks by tag. Several blocks can have the same tag.
#[derive(Clone, Debug)]
pub(super) struct Index {
    slots: Vec<Slot>,
    mask: usize,
}

impl Index {
    /// Creates an index for at most `capacity` blocks.
    pub(super) fn new(capacity: usize) -> Self {
        let size = (2 * capacity).next_power_of_two().max(2);
        Self { slots: vec![EMPTY; size], mask: size - 1 }
    }

    /// Block with this tag for which `is_it` is true.
    pub(super) fn find(&self, tag: u32, is_it: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let bucket = self.bucket(tag, is_it)?;
        Some(self.slots[bucket].block)
    }

    pub(super) fn insert(&mut self, tag: u32, block: BlockId) {
        let mut bucket = tag as usize & self.mask;
        while self.slots[bucket] != EMPTY {
            bucket = (bucket + 1) & self.mask;
        }
        self.slots[bucket] = Slot { tag, block };
    }

    /// Replaces a block by another. Returns whether the old one was in the index.
    pub(super) fn replace(&mut self, tag: u32, old: BlockId, new: BlockId) -> bool {
        let bucket = self.bucket(tag, |block| block == old);
        if let Some(bucket) = bucket {
            self.slots[bucket].block = new;
        }
        bucket.is_some()
    }

    pub(super) fn remove(&mut self, tag: u32, block: BlockId) {
        let Some(mut gap) = self.bucket(tag, |candidate| candidate == block) else { return };
        let mut bucket = gap;
        loop {
            bucket = (bucket + 1) & self.mask;
            let slot = self.slots[bucket];
            if slot == EMPTY {
                break;
            }
            // An entry moves into the gap unless the gap is before the bucket of its tag, where no probe would find it.
            let home = slot.tag as usize & self.mask;
            if bucket.wrapping_sub(home) & self.mask >= bucket.wrapping_sub(gap) & self.mask {
                self.slots[gap] = slot;
                gap = bucket;
            }
        }
        self.slots[gap] = EMPTY;
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(EMPTY);
    }

    fn bucket(&self, tag: u32, is_it: impl Fn(BlockId) -> bool) -> Option<usize> {
        let mut bucket = tag as usize & self.mask;
        while self.slots[bucket] != EMPTY {
            if self.slots[bucket].tag == tag && is_it(self.slots[bucket].block) {
                return Some(bucket);
            }
            bucket = (bucket + 1) & self.mask;
        }
        None
    }
}
