//! A hash table of positions in a text, whose keys are the text itself.
//!
//! A map from n-grams to positions would store every token of a text n times. Here a slot has a position only, four
//! bytes, and the caller compares what the text says there. So two n-grams with the same hash never mix, and a table of
//! twice as many slots as positions costs eight bytes a position.

use std::hash::{BuildHasher, RandomState};

/// Open-addressed table of positions from 1 on. Slot value 0 is free.
///
/// The caller makes sure that at most half of the slots are taken, so that a search ends after a few of them.
#[derive(Clone, Debug, Default)]
pub(super) struct PositionTable {
    slots: Vec<u32>,
}

impl PositionTable {
    /// Creates a table for so many positions.
    pub(super) fn with_room(positions: usize) -> Self {
        Self { slots: vec![0; 2 * positions.max(1)] }
    }

    /// Slot of the key with this hash: the one whose position `is_same`, or the free slot where that belongs.
    pub(super) fn slot(&mut self, hash: u64, is_same: impl Fn(u32) -> bool) -> &mut u32 {
        let at = self.search(hash, is_same);
        &mut self.slots[at]
    }

    /// Position of the key with this hash, if it is there.
    pub(super) fn find(&self, hash: u64, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        Some(self.slots[self.search(hash, is_same)]).filter(|position| *position != 0)
    }

    /// Removes the key with this hash. `hash_of` returns the hash of the key at a position.
    ///
    /// A search ends at a free slot, so the positions behind the removed one move up, as far as their searches begin
    /// before the gap (Knuth, *The Art of Computer Programming*, volume 3, section 6.4, algorithm R).
    pub(super) fn remove(
        &mut self,
        hash: u64,
        is_same: impl Fn(u32) -> bool,
        hash_of: impl Fn(u32) -> u64,
    ) {
        let mut gap = self.search(hash, is_same);
        let slots = self.slots.len();
        let steps = |from: usize, to: usize| (to + slots - from) % slots;
        let mut at = gap;
        while self.slots[at] != 0 {
            at = self.next(at);
            let position = self.slots[at];
            if position != 0 && steps(self.home(hash_of(position)), at) >= steps(gap, at) {
                self.slots[gap] = position;
                gap = at;
            }
        }
        self.slots[gap] = 0;
    }

    /// Makes room for more positions. `hash_of` returns the hash of the key at a position.
    pub(super) fn grow(&mut self, positions: usize, hash_of: impl Fn(u32) -> u64) {
        let old = std::mem::replace(self, Self::with_room(positions));
        for position in old.slots.into_iter().filter(|position| *position != 0) {
            *self.slot(hash_of(position), |_| false) = position;
        }
    }

    /// Bytes of the slots.
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
    }

    fn search(&self, hash: u64, is_same: impl Fn(u32) -> bool) -> usize {
        let mut at = self.home(hash);
        while self.slots[at] != 0 && !is_same(self.slots[at]) {
            at = self.next(at);
        }
        at
    }

    /// Slot where the search for a hash begins: the hash, scaled from 2^64 to the number of slots.
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }
}

/// A random hash of no tokens, to begin with. Clients choose the tokens, so they must not know which of them collide.
pub(super) fn seed() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// Hash of one token more. Both halves of a 128-bit product are used, so each bit of the token reaches all of the hash.
pub(super) fn fold(hash: u64, token: u32) -> u64 {
    // An odd number with no pattern in its bits: the fraction of the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let product = u128::from(hash ^ u64::from(token)) * u128::from(FACTOR);
    (product >> 64) as u64 ^ product as u64
}
