//! The prefix cache: a map from block hashes to blocks.

mod index;

use crate::{BlockHash, BlockId, GroupId, NULL_BLOCK};
use index::Index;

/// Entry of one block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: BlockHash,
    group: GroupId,
    /// The next block with this hash, in the order of registration; after the last comes the first.
    /// [`NULL_BLOCK`]: this block has no hash.
    next: BlockId,
    /// The block before it; before the first comes the last.
    prev: BlockId,
    /// Whether the hash was published. Only valid in the first block with the hash.
    announced: bool,
}

const NOTHING: Entry = Entry {
    hash: BlockHash([0; 32]),
    group: GroupId(0),
    next: NULL_BLOCK,
    prev: NULL_BLOCK,
    announced: false,
};

/// A hash that was removed from a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// Removed hash.
    pub hash: BlockHash,
    /// Group of layers of the block.
    pub group: GroupId,
    /// Whether no other block has the hash, so that lookups of it now miss.
    pub last: bool,
    /// Whether the hash was published ([`PrefixCache::announce`]), so that its removal must be too.
    /// `false` if another block has the hash.
    pub announced: bool,
}

/// Map from (hash, group) to the blocks that hold these contents.
///
/// Several blocks may hold the same contents: two sequences computed them in parallel, or one computed
/// its last block again. Nothing is merged, since tables are never rewritten; a lookup returns the
/// block that was registered first. The blocks of one hash form a ring through the entries, so
/// registering and removing are O(1). All memory is allocated at the start.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    entries: Vec<Entry>,
    /// The first block of each hash.
    firsts: Index,
    len: usize,
}

impl PrefixCache {
    /// Creates an empty cache for blocks `1..num_blocks`.
    pub fn new(num_blocks: usize) -> Self {
        let index = Index::new(num_blocks);
        Self { entries: vec![NOTHING; num_blocks], firsts: index, len: 0 }
    }

    /// Block that was registered first of those with this hash.
    pub fn get(&self, group: GroupId, hash: &BlockHash) -> Option<BlockId> {
        // exercise l3.prefix_cache
        self.firsts.find(tag(hash), |block| {
            let entry = &self.entries[block as usize];
            entry.hash == *hash && entry.group == group
        })
        // end of exercise
    }

    /// Registers a block under a hash. The block must be one of `1..num_blocks` and have no hash. Returns whether no
    /// other block has this hash.
    pub fn insert(&mut self, group: GroupId, hash: BlockHash, block: BlockId) -> bool {
        debug_assert!(block != NULL_BLOCK && !self.is_cached(block), "block {block} has a hash");
        // exercise l3.prefix_cache
        let first = self.get(group, &hash);
        let (prev, next) = match first {
            // A ring of one.
            None => (block, block),
            Some(first) => (self.entries[first as usize].prev, first),
        };
        self.entries[block as usize] = Entry { hash, group, prev, next, announced: false };
        if first.is_none() {
            self.firsts.insert(tag(&hash), block);
        } else {
            self.entries[prev as usize].next = block;
            self.entries[next as usize].prev = block;
        }
        self.len += 1;
        first.is_none()
        // end of exercise
    }

    /// Removes a block's hash; `None` if it has none.
    pub fn remove(&mut self, block: BlockId) -> Option<Forgotten> {
        if !self.is_cached(block) {
            return None;
        }
        // exercise l3.prefix_cache
        let Entry { hash, group, next, prev, announced } = self.entries[block as usize];
        self.entries[block as usize] = NOTHING;
        self.len -= 1;
        let last = next == block;
        if last {
            self.firsts.remove(tag(&hash), block);
        } else {
            self.entries[prev as usize].next = next;
            self.entries[next as usize].prev = prev;
            if self.firsts.replace(tag(&hash), block, next) {
                self.entries[next as usize].announced = announced;
            }
        }
        Some(Forgotten { hash, group, last, announced: last && announced })
        // end of exercise
    }

    /// A block's hash.
    pub fn hash_of(&self, block: BlockId) -> Option<&BlockHash> {
        self.is_cached(block).then(|| &self.entries[block as usize].hash)
    }

    /// Whether a block has a hash.
    pub fn is_cached(&self, block: BlockId) -> bool {
        self.entries.get(block as usize).is_some_and(|entry| entry.next != NULL_BLOCK)
    }

    /// Blocks with a hash.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no block has a hash.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all hashes: O(num_blocks).
    pub fn clear(&mut self) {
        self.entries.fill(NOTHING);
        self.firsts.clear();
        self.len = 0;
    }

    /// Marks this block's hash as published. Returns whether it was not published before, for this block or another
    /// with the same hash; `false` for a block without a hash.
    pub fn announce(&mut self, block: BlockId) -> bool {
        let Some(entry) = self.entries.get(block as usize).filter(|_| self.is_cached(block)) else {
            return false;
        };
        let first = self.get(entry.group, &entry.hash).unwrap_or(block);
        !std::mem::replace(&mut self.entries[first as usize].announced, true)
    }

    /// Checks that every block with a hash is in the ring that a lookup of the hash finds.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let mut cached = 0;
        for (block, entry) in (0..).zip(&self.entries).filter(|(_, e)| e.next != NULL_BLOCK) {
            cached += 1;
            let Some(first) = self.get(entry.group, &entry.hash) else {
                return Err(format!("block {block} has a hash under which nothing is found"));
            };
            let ring = std::iter::successors(Some(first), |at| {
                let next = self.entries[*at as usize].next;
                (next != first && next != NULL_BLOCK).then_some(next)
            });
            if !ring.take(self.entries.len()).any(|at| at == block) {
                return Err(format!("block {block} is not among those with the hash of {first}"));
            }
            if self.entries[entry.next as usize].prev != block {
                return Err(format!("block {block} and {} disagree on who is next", entry.next));
            }
        }
        if cached != self.len {
            return Err(format!("the cache says {} and has {cached} blocks", self.len));
        }
        Ok(())
    }
}

/// First bucket that the index probes: four bytes of a sha256 are as good as any hash of it.
fn tag(hash: &BlockHash) -> u32 {
    u32::from_le_bytes([hash.0[0], hash.0[1], hash.0[2], hash.0[3]])
}
