//! A host memory in which blocks of finished requests are stored, and from which later requests load them.
//!
//! Blocks are stored under their hashes, which are those of all tokens up to their ends. When the memory is full, the
//! block that was used longest ago goes (as in LMCache's memory on a CPU). Blocks that were written back can be kept for a
//! time: the others go before them, and when they have been loaded they go first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use l3_paged_kv::{BlockHash, TokenChain};
use serde::Serialize;

use crate::{KvConnector, LeaseId, Matched, RequestId, SecondMemory, Time};

/// Blocks in a memory of limited size.
#[derive(Debug, Default)]
struct Blocks {
    capacity: usize,
    /// For each block that can be evicted, the time of its last use as a number.
    used: HashMap<BlockHash, i64>,
    by_use: BTreeMap<i64, BlockHash>,
    uses: i64,
    /// Number of the block that was put in front of the others last.
    front: i64,
    /// Blocks that are kept, and until when.
    kept: HashMap<BlockHash, Time>,
    by_end: BTreeSet<(Time, BlockHash)>,
    now: Time,
    stored: u64,
    evicted: u64,
}

impl Blocks {
    fn contains(&self, hash: &BlockHash) -> bool {
        self.used.contains_key(hash) || self.kept.contains_key(hash)
    }

    fn len(&self) -> usize {
        self.used.len() + self.kept.len()
    }

    /// Notes that a block is used, if it is there and not kept.
    fn touch(&mut self, hash: &BlockHash) -> bool {
        if !self.forget(hash) {
            return false;
        }
        self.uses += 1;
        self.add(self.uses, *hash);
        true
    }

    fn add(&mut self, number: i64, hash: BlockHash) {
        self.used.insert(hash, number);
        self.by_use.insert(number, hash);
    }

    /// Removes a block that can be evicted.
    fn forget(&mut self, hash: &BlockHash) -> bool {
        let Some(used) = self.used.remove(hash) else { return false };
        self.by_use.remove(&used);
        true
    }

    fn release(&mut self, hash: &BlockHash) -> bool {
        let Some(until) = self.kept.remove(hash) else { return false };
        self.by_end.remove(&(until, *hash));
        true
    }

    /// Ends the claims of blocks that were kept until now. They have been used as long ago as any.
    fn end_claims(&mut self) {
        while let Some((until, hash)) = self.by_end.first().copied()
            && until <= self.now
        {
            self.release(&hash);
            self.evict_next(hash);
        }
    }

    /// Lets a block be the next one to be evicted.
    fn evict_next(&mut self, hash: BlockHash) {
        self.front -= 1;
        self.add(self.front, hash);
    }

    /// Stores a block. If all others are kept, it is not stored.
    fn store(&mut self, hash: BlockHash, keep_until: Time) {
        if self.capacity == 0 || self.kept.contains_key(&hash) {
            return;
        }
        let keep = keep_until > self.now;
        let new = !self.forget(&hash);
        if new && self.len() >= self.capacity {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.used.remove(&oldest);
            self.evicted += 1;
        }
        self.stored += u64::from(new);
        if keep {
            self.kept.insert(hash, keep_until);
            self.by_end.insert((keep_until, hash));
        } else {
            self.uses += 1;
            self.add(self.uses, hash);
        }
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

    /// Sets the time, at which claims end.
    pub(super) fn set_time(&self, now: Time) {
        let mut blocks = self.blocks();
        blocks.now = now;
        blocks.end_claims();
    }

    /// Number of these blocks that are not there and can be stored.
    pub(super) fn missing(&self, hashes: &[BlockHash]) -> usize {
        let blocks = self.blocks();
        if blocks.capacity == 0 {
            return 0;
        }
        hashes.iter().filter(|hash| !blocks.contains(hash)).count()
    }

    /// Stores blocks of a request, in the order of its tokens, and keeps them for a time. Of one request the last block
    /// goes first, because without the blocks before it a block is of no use.
    pub(super) fn store(&self, hashes: &[BlockHash], keep_until: Time) {
        let mut blocks = self.blocks();
        match keep_until > blocks.now {
            // The first ones, if there is no room for all.
            true => hashes.iter().for_each(|hash| blocks.store(*hash, keep_until)),
            false => hashes.iter().rev().for_each(|hash| blocks.store(*hash, keep_until)),
        }
    }

    /// Notes that blocks were loaded: those that were kept for that are of no further use.
    pub(super) fn loaded(&self, hashes: &[BlockHash]) {
        let mut blocks = self.blocks();
        for hash in hashes {
            if blocks.release(hash) {
                blocks.evict_next(*hash);
            }
        }
    }

    pub(super) fn report(&self, loaded_bytes: f64, stored_bytes: f64) -> HostMemoryReport {
        let blocks = self.blocks();
        HostMemoryReport {
            capacity_blocks: blocks.capacity,
            used_blocks: blocks.len(),
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

    fn second_memory(&mut self) -> SecondMemory {
        let blocks = self.blocks();
        let room = blocks.capacity - blocks.kept.len();
        SecondMemory { room, load_seconds_per_block: None }
    }
}

impl HostMemory {
    /// Number of tokens behind token `from` that are there, in whole blocks.
    fn available(&mut self, chain: &TokenChain, from: usize) -> usize {
        let size = chain.block_size();
        let hashes = chain.hashes().get(from / size..).unwrap_or_default();
        let mut blocks = self.blocks();
        let there = hashes.iter().take_while(|hash| blocks.contains(hash)).count();
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

/// A store under way.
#[derive(Clone, Debug)]
pub(super) struct Store {
    /// Lease that holds the blocks; `None` for a write-back.
    pub lease: Option<LeaseId>,
    /// Hashes of the blocks.
    pub hashes: Vec<BlockHash>,
    /// Until when the copy is kept.
    pub keep_until: Time,
}

impl Store {
    pub(super) fn of_lease(lease: LeaseId, hashes: &[BlockHash]) -> Self {
        Self { lease: Some(lease), hashes: hashes.to_vec(), keep_until: Time::ZERO }
    }

    pub(super) fn write_back(hashes: &[BlockHash], keep_until: Time) -> Self {
        Self { lease: None, hashes: hashes.to_vec(), keep_until }
    }
}

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
        memory.store(stored.hashes(), Time::ZERO);
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
        memory.store(old.hashes(), Time::ZERO);
        memory.store(new.hashes(), Time::ZERO);
        assert_eq!(memory.available(&chain(&[1, 2]), 0), 2, "used again");
        memory.store(chain(&[7, 8]).hashes(), Time::ZERO);
        assert_eq!(memory.available(&old, 0), 2, "the second block of the oldest request has gone");
        memory.store(chain(&[9, 9]).hashes(), Time::ZERO);
        assert_eq!([memory.available(&new, 0), memory.available(&old, 0)], [0, 2]);
        let report = memory.report(0.0, 0.0);
        assert_eq!((report.used_blocks, report.stored_blocks, report.evicted_blocks), (3, 5, 2));
    }

    #[test]
    fn a_memory_of_no_blocks_holds_none() {
        let mut memory = HostMemory::new(0);
        memory.store(chain(&[1, 2]).hashes(), Time::ZERO);
        assert_eq!(memory.available(&chain(&[1, 2]), 0), 0);
    }

    #[test]
    fn a_kept_block_stays_until_it_is_loaded_or_its_time_is_over() {
        let mut memory = HostMemory::new(3);
        let (job, other, last) = (chain(&[1, 2, 3, 4]), chain(&[5, 6, 7, 8]), chain(&[9, 9]));
        memory.store(job.hashes(), Time(5.0));
        memory.store(other.hashes(), Time::ZERO);
        assert_eq!([memory.available(&job, 0), memory.available(&other, 0)], [4, 2]);
        assert_eq!(memory.second_memory().room, 1);
        memory.store(last.hashes(), Time(9.0));
        memory.store(other.hashes(), Time(9.0));
        assert_eq!([memory.available(&last, 0), memory.available(&other, 0)], [2, 0], "no room");
        memory.loaded(&job.hashes()[..1]);
        memory.store(&other.hashes()[..1], Time::ZERO);
        assert_eq!([memory.available(&job, 0), memory.available(&other, 0)], [0, 2]);
        assert_eq!(memory.missing(job.hashes()), 1, "the block that was not loaded");
        memory.set_time(Time(5.0));
        assert_eq!(memory.second_memory().room, 2);
        memory.store(job.hashes(), Time::ZERO);
        assert_eq!([memory.available(&job, 0), memory.available(&last, 0)], [4, 2]);
    }
}
