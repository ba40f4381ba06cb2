//! Tiers: memories behind the pool that keep keys and values in *chunks*.
//!
//! A pool evicts blocks as soon as another sequence needs them. A tier is larger and slower: the host's DRAM
//! ([`DramTier`]), a disk ([`DiskTier`]), which survives a restart, or a Redis server ([`RedisTier`]), which several
//! machines share. It sees neither blocks nor tensors:
//!
//! * [`ChunkLayout`] cuts a sequence into chunks of whole blocks, and [`KeySpace`] gives each a [`ChunkKey`] that covers
//!   all tokens before it, the model, and the layout of its bytes;
//! * [`PagedKv::read_chunk`](crate::PagedKv::read_chunk) and [`write_chunk`](crate::PagedKv::write_chunk) copy a chunk
//!   between blocks and bytes;
//! * a [`KvTier`] keeps bytes by key. No call of it waits: `get` and `put` return a [`Ticket`], and `poll` reports what has
//!   ended. Bytes are moved by threads of the tier;
//! * [`Breaker`] stops to use a tier that fails or is slow, and tries it again later.
//!
//! A chunk that is lost, evicted or damaged is a miss, and a miss is computed again: a tier can make the engine slower,
//! never wrong. The idea of chunks and of tiers is that of LMCache (Liu et al. 2025).

mod breaker;
mod chunk;
mod clock;
mod disk;
mod dram;
mod header;
mod key;
mod lru;
mod queue;
mod redis;
mod stack;
mod worker;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use l1_tensor::HostBuffer;

pub use breaker::{Breaker, BreakerOptions, BreakerState};
pub use chunk::{ChunkLayout, DEFAULT_CHUNK_TOKENS};
pub use clock::{Clock, SystemClock};
pub use disk::{ChunkFiles, DirectoryFiles, DiskError, DiskOptions, DiskTier, ListedFile};
pub use dram::{DRAM_ENTRY_BYTES, DramTier};
pub use key::{ChunkKey, EXCHANGE_LAYOUT_VERSION, KeySpace, Numerics};
pub use redis::{RedisOptions, RedisTier};
pub use stack::TierStack;

/// Bytes of a chunk. A clone shares them.
#[derive(Clone, Debug)]
pub struct ChunkBytes(Arc<HostBuffer>);

impl From<HostBuffer> for ChunkBytes {
    fn from(bytes: HostBuffer) -> Self {
        Self(Arc::new(bytes))
    }
}

impl From<Vec<u8>> for ChunkBytes {
    fn from(bytes: Vec<u8>) -> Self {
        HostBuffer::from(bytes).into()
    }
}

impl PartialEq for ChunkBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for ChunkBytes {}

impl Deref for ChunkBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Number of an operation of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Whether a tier has a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has it. A `get` can still miss: the chunk may be evicted until then, or be damaged.
    Present,
    /// It does not have it.
    Absent,
    /// It is looking. Ask again.
    Unknown,
}

/// End of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierCompletion {
    /// The ticket that `get` or `put` returned.
    pub ticket: Ticket,
    /// Result of the operation.
    pub outcome: TierOutcome,
}

/// Result of an operation of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierOutcome {
    /// `get`: the bytes that were put.
    Hit(ChunkBytes),
    /// `get`: the chunk is not there (any more).
    Miss,
    /// `put`: the chunk is kept, until it is evicted.
    Stored,
    /// The operation was not begun: the chunk is larger than the tier, too much is queued, or a [`Breaker`] is open.
    Refused,
    /// The tier could not do it.
    Failed(TierError),
}

/// Error of an operation of a tier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// Error of the system.
    #[error("{0}")]
    Io(String),
    /// The chunk cannot be written: the disk is full, or may only be read. Chunks that are there can be read.
    #[error("{0}")]
    Write(String),
    /// The tier has not answered in time.
    #[error("the tier has not answered within {0:?}")]
    TimedOut(Duration),
}

/// Counters of a tier since it was opened, and its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Number of chunks.
    pub chunks: usize,
    /// Number of bytes that count against the capacity: see the tier for what it adds to a chunk.
    pub bytes: u64,
    /// Number of `get`s that returned bytes.
    pub hits: u64,
    /// Number of `get`s that did not find their chunk.
    pub misses: u64,
    /// Number of chunks that were stored.
    pub stored: u64,
    /// Number of chunks that were evicted for others.
    pub evicted: u64,
    /// Number of operations that were refused.
    pub refused: u64,
    /// Number of bytes of chunks that were stored.
    pub stored_bytes: u64,
    /// Number of bytes of chunks that `get`s returned.
    pub loaded_bytes: u64,
    /// Number of operations that failed.
    pub failed: u64,
    /// Number of damaged chunks that were found and removed.
    pub corrupt: u64,
    /// Number of times that a [`Breaker`] opened.
    pub opened: u64,
}

/// What one memory has done, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierReport {
    /// Name of the tier.
    pub name: &'static str,
    /// Counters and size.
    pub stats: TierStats,
    /// State of its breaker, if it has one.
    pub breaker: Option<BreakerState>,
}

/// A memory that keeps chunks by key. No method waits for a disk or a network.
///
/// Chunks are immutable: two puts of one key have the same bytes, so the second one may be ignored.
pub trait KvTier: Send {
    /// Name for logs and metrics: "dram", "disk".
    fn name(&self) -> &'static str;

    /// Whether the tier has a chunk. Does not count as a use.
    fn contains(&mut self, key: &ChunkKey) -> Presence;

    /// Whether a chunk is worth a put. A tier that must ask elsewhere what it has may say no of chunks that it was given
    /// before.
    fn needs(&mut self, key: &ChunkKey) -> bool {
        self.contains(key) != Presence::Present
    }

    /// Number of calls of [`KvTier::contains`] whose answer could not be found out.
    fn failed_lookups(&self) -> u64 {
        0
    }

    /// Begins to read a chunk. Ends in `Hit`, `Miss`, `Refused` or `Failed`.
    fn get(&mut self, key: &ChunkKey) -> Ticket;

    /// Begins to store a chunk. Ends in `Stored`, `Refused` or `Failed`.
    fn put(&mut self, key: &ChunkKey, bytes: ChunkBytes) -> Ticket;

    /// Protects a chunk that was put just now: for so long, or until it is read, no other chunk evicts it. A tier whose
    /// chunks are not evicted for each other's sake, or that is shared, need not do anything.
    fn protect(&mut self, key: &ChunkKey, time: Duration) {
        let _ = (key, time);
    }

    /// Number of bytes that can be put without evicting a protected chunk. 0 for a tier that protects none.
    fn room(&self) -> u64 {
        0
    }

    /// Appends the operations that have ended since the last call, each exactly once.
    fn poll(&mut self, ended: &mut Vec<TierCompletion>);

    /// Counters and size.
    fn stats(&self) -> TierStats;

    /// Appends name, counters and breaker of each memory behind this tier: of itself, unless it is made of others.
    fn report(&self, reports: &mut Vec<TierReport>) {
        reports.push(TierReport { name: self.name(), stats: self.stats(), breaker: None });
    }

    /// Name of the memory that had the bytes of a `get` whose hit the last `poll` has reported.
    fn source(&self, ticket: Ticket) -> &'static str {
        let _ = ticket;
        self.name()
    }

    /// Number of chunks that were put and are not written yet. They are lost if the tier is dropped. It falls at a
    /// [`KvTier::poll`].
    fn num_unwritten(&self) -> usize {
        0
    }
}

impl KvTier for Box<dyn KvTier> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn contains(&mut self, key: &ChunkKey) -> Presence {
        (**self).contains(key)
    }

    fn needs(&mut self, key: &ChunkKey) -> bool {
        (**self).needs(key)
    }

    fn failed_lookups(&self) -> u64 {
        (**self).failed_lookups()
    }

    fn get(&mut self, key: &ChunkKey) -> Ticket {
        (**self).get(key)
    }

    fn put(&mut self, key: &ChunkKey, bytes: ChunkBytes) -> Ticket {
        (**self).put(key, bytes)
    }

    fn protect(&mut self, key: &ChunkKey, time: Duration) {
        (**self).protect(key, time);
    }

    fn room(&self) -> u64 {
        (**self).room()
    }

    fn poll(&mut self, ended: &mut Vec<TierCompletion>) {
        (**self).poll(ended);
    }

    fn stats(&self) -> TierStats {
        (**self).stats()
    }

    fn report(&self, reports: &mut Vec<TierReport>) {
        (**self).report(reports);
    }

    fn source(&self, ticket: Ticket) -> &'static str {
        (**self).source(ticket)
    }

    fn num_unwritten(&self) -> usize {
        (**self).num_unwritten()
    }
}

/// Tickets of a tier, and the operations that ended without waiting for anything.
#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    ended: Vec<TierCompletion>,
}

impl Tickets {
    fn issue(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    /// A ticket of an operation that has ended already.
    fn ended(&mut self, outcome: TierOutcome) -> Ticket {
        let ticket = self.issue();
        self.end(ticket, outcome);
        ticket
    }

    fn end(&mut self, ticket: Ticket, outcome: TierOutcome) {
        self.ended.push(TierCompletion { ticket, outcome });
    }
}
