//! A host memory in which blocks of finished requests are stored, and from which later requests load them.
//!
//! Blocks are stored under their hashes, which are those of all tokens up to their ends. When the memory is full, the
//! block that was used longest ago goes (as in LMCache's memory on a CPU).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use l3_paged_kv::{BlockHash, TokenChain};
use serde::Serialize;

use crate::{KvConnector, LeaseId, Matched, RequestId};

/// Blocks in a memory of limited size.
#[derive(Debug, Default)]
struct Blocks {
    capacity: usize,
    /// For each block, the time of its last use as a number.
    used: HashMap<BlockHash, u64>,
    by_use: BTreeMap<u64, BlockHash>,
    uses: u64,
    stored: u64,
    evicted: u64,
}

impl Blocks {
    /// Notes that a block is used, if it is there.
    fn touch(&mut self, hash: &BlockHash) -> bool {
        let Some(used) = self.used.get_mut(hash) else { return false };
        self.by_use.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.by_use.insert(self.uses, *hash);
        true
    }

    fn store(&mut self, hash: BlockHash) {
        if self.capacity == 0 || self.touch(&hash) {
            return;
        }
        if self.used.len() >= self.capacity
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.used.remove(&oldest);
            self.evicted += 1;
        }
        self.uses += 1;
        self.stored += 1;
        self.used.insert(hash, self.uses);
        self.by_use.insert(self.uses, hash);
    }
}

/// A host memory; clones share it.
#[derive(Clone, Debug)]
pub(super) struct HostMemory(Arc<Mutex<Blocks>>);

impl HostMemory {
    /// Creates an empty memory for so many blocks.
    pub(super) fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(Blocks { capacity, ..Blocks::default() })))
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of these blocks that are not there and can be stored.
    pub(super) fn missing(&self, hashes: &[BlockHash]) -> usize {
        let blocks = self.blocks();
        if blocks.capacity == 0 {
            return 0;
        }
        hashes.iter().filter(|hash| !blocks.used.contains_key(hash)).count()
    }

    /// Stores blocks of a request, in the order of its tokens. Of one request the last block goes first, because
    /// without the blocks before it a block is of no use.
    pub(super) fn store(&self, hashes: &[BlockHash]) {
        let mut blocks = self.blocks();
        hashes.iter().rev().for_each(|hash| blocks.store(*hash));
    }

    pub(super) fn report(&self, loaded_bytes: f64, stored_bytes: f64) -> HostMemoryReport {
        let blocks = self.blocks();
        HostMemoryReport {
            capacity_blocks: blocks.capacity,
            used_blocks: blocks.used.len(),
            stored_blocks: blocks.stored,
            evicted_blocks: blocks.evicted,
            loaded_bytes,
            stored_bytes,
        }
    }
}

impl KvConnector for HostMemory {
    fn matched_tokens(&mut self, _: RequestId, chain: &TokenChain, from: usize) -> Matched {
        Matched::Tokens(self.available(chain, from))
    }
}

impl HostMemory {
    /// Number of tokens behind token `from` that are there, in whole blocks.
    fn available(&mut self, chain: &TokenChain, from: usize) -> usize {
        let size = chain.block_size();
        let hashes = chain.hashes().get(from / size..).unwrap_or_default();
        let mut blocks = self.blocks();
        let there = hashes.iter().take_while(|hash| blocks.used.contains_key(hash)).count();
        for hash in hashes[..there].iter().rev() {
            blocks.touch(hash);
        }
        there * size
    }
}

/// What a host memory held.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HostMemoryReport {
    /// Maximum number of blocks.
    pub capacity_blocks: usize,
    /// Number of blocks at the end.
    pub used_blocks: usize,
    /// Number of blocks that were stored.
    pub stored_blocks: u64,
    /// Number of blocks that were evicted.
    pub evicted_blocks: u64,
    /// Bytes copied from the host memory to the pool.
    pub loaded_bytes: f64,
    /// Bytes copied from the pool to the host memory.
    pub stored_bytes: f64,
}

/// A store under way: the lease that holds the blocks, and their hashes.
pub(super) type Store = (LeaseId, Vec<BlockHash>);

#[cfg(test)]
mod tests {
    use l3_paged_kv::{BlockHasher, ExtraKeys};

    use super::*;

    fn chain(tokens: &[u32]) -> TokenChain {
        let mut chain = TokenChain::new(&BlockHasher::new(2), ExtraKeys::default());
        chain.extend(tokens);
        chain
    }

    #[test]
    fn a_prefix_is_found_behind_what_the_pool_has() {
        let mut memory = HostMemory::new(9);
        let stored = chain(&[1, 2, 3, 4, 5, 6, 7]);
        memory.store(stored.hashes());
        assert_eq!(memory.available(&stored, 0), 6, "three full blocks");
        assert_eq!(memory.available(&stored, 2), 4);
        assert_eq!(memory.available(&chain(&[1, 2, 3, 4, 9, 9]), 0), 4);
        assert_eq!(memory.available(&chain(&[9, 2, 3, 4]), 0), 0);
        assert_eq!(memory.available(&chain(&[1, 2]), 2), 0, "behind the end");
        assert_eq!(memory.missing(chain(&[1, 2, 3, 4, 9, 9]).hashes()), 1);
    }

    #[test]
    fn the_block_used_longest_ago_is_evicted() {
        let mut memory = HostMemory::new(3);
        let (old, new) = (chain(&[1, 2, 3, 4]), chain(&[5, 6]));
        memory.store(old.hashes());
        memory.store(new.hashes());
        assert_eq!(memory.available(&chain(&[1, 2]), 0), 2, "used again");
        memory.store(chain(&[7, 8]).hashes());
        assert_eq!(memory.available(&old, 0), 2, "the second block of the oldest request has gone");
        memory.store(chain(&[9, 9]).hashes());
        assert_eq!([memory.available(&new, 0), memory.available(&old, 0)], [0, 2]);
        let report = memory.report(0.0, 0.0);
        assert_eq!((report.used_blocks, report.stored_blocks, report.evicted_blocks), (3, 5, 2));
    }

    #[test]
    fn a_memory_of_no_blocks_holds_none() {
        let mut memory = HostMemory::new(0);
        memory.store(chain(&[1, 2]).hashes());
        assert_eq!(memory.available(&chain(&[1, 2]), 0), 0);
    }
}
