//! The hash table under the prefix cache: from a tag of 32 bits to blocks that may be meant.
//!
//! Open addressing with linear probing: an entry stands at the place its tag names, or in the run of
//! occupied places that begins there. Why not the standard library's map: its removals leave marks
//! behind, and now and then it sweeps all of them up or grows, in the middle of a step that asked
//! for one block. This table is made once, at most half full, and a removal closes its gap at once:
//! the entries behind it move up. An entry is a tag and a number, eight bytes, so that even the
//! table of a million blocks costs one cache miss an operation.

use crate::{BlockId, NULL_BLOCK};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    tag: u32,
    /// [`NULL_BLOCK`]: the place is empty.
    block: BlockId,
}

const EMPTY: Slot = Slot { tag: 0, block: NULL_BLOCK };

/// Blocks by tag. Several may have the same tag.
#[derive(Clone, Debug)]
pub(super) struct Index {
    slots: Vec<Slot>,
    mask: usize,
}

impl Index {
    /// Room for `capacity` blocks.
    pub(super) fn new(capacity: usize) -> Self {
        let size = (2 * capacity).next_power_of_two().max(2);
        Self { slots: vec![EMPTY; size], mask: size - 1 }
    }

    /// The block with this tag that is the one.
    pub(super) fn find(&self, tag: u32, is_it: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let place = self.place(tag, is_it)?;
        Some(self.slots[place].block)
    }

    pub(super) fn insert(&mut self, tag: u32, block: BlockId) {
        let mut place = tag as usize & self.mask;
        while self.slots[place] != EMPTY {
            place = (place + 1) & self.mask;
        }
        self.slots[place] = Slot { tag, block };
    }

    /// Let a block stand for another. Returns whether the other was there.
    pub(super) fn replace(&mut self, tag: u32, old: BlockId, new: BlockId) -> bool {
        let place = self.place(tag, |block| block == old);
        if let Some(place) = place {
            self.slots[place].block = new;
        }
        place.is_some()
    }

    pub(super) fn remove(&mut self, tag: u32, block: BlockId) {
        let Some(mut gap) = self.place(tag, |candidate| candidate == block) else { return };
        let mut place = gap;
        loop {
            place = (place + 1) & self.mask;
            let slot = self.slots[place];
            if slot == EMPTY {
                break;
            }
            // An entry moves into the gap unless that lies before the place its tag names, where
            // nobody would look for it.
            let home = slot.tag as usize & self.mask;
            if place.wrapping_sub(home) & self.mask >= place.wrapping_sub(gap) & self.mask {
                self.slots[gap] = slot;
                gap = place;
            }
        }
        self.slots[gap] = EMPTY;
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(EMPTY);
    }

    fn place(&self, tag: u32, is_it: impl Fn(BlockId) -> bool) -> Option<usize> {
        let mut place = tag as usize & self.mask;
        while self.slots[place] != EMPTY {
            if self.slots[place].tag == tag && is_it(self.slots[place].block) {
                return Some(place);
            }
            place = (place + 1) & self.mask;
        }
        None
    }
}
