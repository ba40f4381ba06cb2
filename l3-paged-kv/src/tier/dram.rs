//! Chunks in the host's memory.

use super::lru::Lru;
use super::{
    ChunkBytes, ChunkKey, KvTier, Presence, Ticket, Tickets, TierCompletion, TierOutcome, TierStats,
};

/// Bytes that a chunk counts beside its own: its entries in two maps, rounded up.
pub const DRAM_ENTRY_BYTES: u64 = 256;

/// A tier in the host's memory. The chunk that was used longest ago is evicted first.
///
/// A chunk counts its bytes and [`DRAM_ENTRY_BYTES`]; the sum is never above the capacity. Chunks are shared and not copied,
/// so bytes that a `Hit` has handed out live until the receiver drops them, beyond the capacity if the tier has evicted them
/// meanwhile. Every operation ends at the next `poll`.
pub struct DramTier {
    capacity: u64,
    chunks: Lru<ChunkBytes>,
    tickets: Tickets,
    stats: TierStats,
}

impl DramTier {
    /// An empty tier of so many bytes.
    pub fn new(capacity: u64) -> Self {
        let (chunks, tickets, stats) = (Lru::default(), Tickets::default(), TierStats::default());
        Self { capacity, chunks, tickets, stats }
    }

    /// Maximum number of bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
}

impl KvTier for DramTier {
    fn name(&self) -> &'static str {
        "dram"
    }

    fn contains(&mut self, key: &ChunkKey) -> Presence {
        if self.chunks.contains(key) { Presence::Present } else { Presence::Absent }
    }

    fn get(&mut self, key: &ChunkKey) -> Ticket {
        let outcome = match self.chunks.touch(key) {
            Some(bytes) => {
                self.stats.hits += 1;
                TierOutcome::Hit(bytes.clone())
            }
            None => {
                self.stats.misses += 1;
                TierOutcome::Miss
            }
        };
        self.tickets.ended(outcome)
    }

    fn put(&mut self, key: &ChunkKey, bytes: ChunkBytes) -> Ticket {
        if self.chunks.touch(key).is_some() {
            return self.tickets.ended(TierOutcome::Stored);
        }
        let size = bytes.len() as u64 + DRAM_ENTRY_BYTES;
        if size > self.capacity {
            self.stats.refused += 1;
            return self.tickets.ended(TierOutcome::Refused);
        }
        while self.chunks.bytes() + size > self.capacity && self.chunks.pop_oldest().is_some() {
            self.stats.evicted += 1;
        }
        self.chunks.insert(*key, bytes, size);
        self.stats.stored += 1;
        self.tickets.ended(TierOutcome::Stored)
    }

    fn poll(&mut self, ended: &mut Vec<TierCompletion>) {
        ended.append(&mut self.tickets.ended);
    }

    fn stats(&self) -> TierStats {
        TierStats { chunks: self.chunks.len(), bytes: self.chunks.bytes(), ..self.stats }
    }
}
