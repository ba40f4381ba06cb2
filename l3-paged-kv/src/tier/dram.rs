//! Chunks in the host's memory.

use std::sync::Arc;
use std::time::Duration;

use super::lru::Lru;
use super::{
    ChunkBytes, ChunkKey, Clock, KvTier, Presence, SystemClock, Ticket, Tickets, TierCompletion,
    TierOutcome, TierStats,
};

/// Bytes that a chunk counts beside its own: its entries in two maps, rounded up.
pub const DRAM_ENTRY_BYTES: u64 = 256;

/// A tier in the host's memory. The chunk that was used longest ago is evicted first.
///
/// A chunk counts its bytes and [`DRAM_ENTRY_BYTES`]; the sum is never above the capacity. Chunks are shared and not copied,
/// so bytes that a `Hit` has handed out live until the receiver drops them, beyond the capacity if the tier has evicted them
/// meanwhile. Every operation ends at the next `poll`.
///
/// A [protected](KvTier::protect) chunk is not evicted: one for which the others leave no room is refused. When it has
/// been read, its contents are in a pool, and it is the first to be evicted.
pub struct DramTier {
    capacity: u64,
    clock: Arc<dyn Clock>,
    chunks: Lru<ChunkBytes>,
    /// Protected chunks, and until when, in the order in which they were protected.
    protected: Lru<(ChunkBytes, Duration)>,
    tickets: Tickets,
    stats: TierStats,
}

impl DramTier {
    /// An empty tier of so many bytes.
    pub fn new(capacity: u64) -> Self {
        Self::with_clock(capacity, Arc::new(SystemClock::default()))
    }

    /// An empty tier of so many bytes, which protects chunks by this clock.
    pub fn with_clock(capacity: u64, clock: Arc<dyn Clock>) -> Self {
        let (chunks, protected) = (Lru::default(), Lru::default());
        let (tickets, stats) = (Tickets::default(), TierStats::default());
        Self { capacity, clock, chunks, protected, tickets, stats }
    }

    /// Maximum number of bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    fn bytes(&self) -> u64 {
        self.chunks.bytes() + self.protected.bytes()
    }

    /// Ends the protection of chunks whose time is over. One that was protected later for a shorter time waits for those
    /// before it.
    fn end_protection(&mut self) {
        let now = self.clock.now();
        while let Some((key, (_, until))) = self.protected.oldest()
            && *until <= now
        {
            let key = *key;
            if let Some(((bytes, _), size)) = self.protected.take(&key) {
                self.chunks.insert(key, bytes, size);
            }
        }
    }
}

impl KvTier for DramTier {
    fn name(&self) -> &'static str {
        "dram"
    }

    fn contains(&mut self, key: &ChunkKey) -> Presence {
        let there = self.chunks.contains(key) || self.protected.contains(key);
        if there { Presence::Present } else { Presence::Absent }
    }

    fn get(&mut self, key: &ChunkKey) -> Ticket {
        if let Some(((bytes, _), size)) = self.protected.take(key) {
            self.stats.hits += 1;
            self.stats.loaded_bytes += bytes.len() as u64;
            self.chunks.insert_oldest(*key, bytes.clone(), size);
            return self.tickets.ended(TierOutcome::Hit(bytes));
        }
        let outcome = match self.chunks.touch(key) {
            Some(bytes) => {
                self.stats.hits += 1;
                self.stats.loaded_bytes += bytes.len() as u64;
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
        if self.chunks.touch(key).is_some() || self.protected.contains(key) {
            return self.tickets.ended(TierOutcome::Stored);
        }
        let len = bytes.len() as u64;
        let size = len + DRAM_ENTRY_BYTES;
        self.end_protection();
        // exercise l3.lru
        if size > self.room() {
            self.stats.refused += 1;
            return self.tickets.ended(TierOutcome::Refused);
        }
        while self.bytes() + size > self.capacity && self.chunks.pop_oldest().is_some() {
            self.stats.evicted += 1;
        }
        self.chunks.insert(*key, bytes, size);
        // end of exercise
        self.stats.stored += 1;
        self.stats.stored_bytes += len;
        self.tickets.ended(TierOutcome::Stored)
    }

    fn protect(&mut self, key: &ChunkKey, time: Duration) {
        let until = self.clock.now().saturating_add(time);
        let chunk = self.chunks.take(key);
        let chunk = chunk.or_else(|| self.protected.take(key).map(|((b, _), size)| (b, size)));
        if let Some((bytes, size)) = chunk {
            self.protected.insert(*key, (bytes, until), size);
        }
    }

    fn room(&self) -> u64 {
        self.capacity - self.protected.bytes()
    }

    fn poll(&mut self, ended: &mut Vec<TierCompletion>) {
        self.end_protection();
        ended.append(&mut self.tickets.ended);
    }

    fn stats(&self) -> TierStats {
        let chunks = self.chunks.len() + self.protected.len();
        TierStats { chunks, bytes: self.bytes(), ..self.stats }
    }
}
