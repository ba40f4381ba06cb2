//! Memories behind the pool for the real model: chunks of keys and values in the tiers of layer 3.
//!
//! ```text
//! scheduler   TierConnector   "tokens 512..1024 of this request are in a tier"       matched_tokens
//! runner      TierMover       gets chunks and writes them into blocks,               StepOp::Load, poll
//!                             reads the blocks of a lease and puts chunks            StepOp::Store, poll
//!                             the same at once, for blocks that are about to go      StepOp::WriteBack
//! ```
//!
//! Both halves run on the engine's thread. The tiers have threads of their own, which move bytes between memories and
//! never touch the pool: only the mover does, between two steps, and at most [`MAX_BYTES_PER_POLL`] each time. So a long
//! load delays no step by more than the copy of a chunk, and a tier that is slow or dead delays only the request that
//! waits for it, until its [`Breaker`](l3_paged_kv::tier::Breaker) gives up.

mod connector;
mod mover;
mod options;
mod sources;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use l3_paged_kv::GroupId;
pub use l3_paged_kv::tier::{BreakerState, TierReport, TierStats};
use l3_paged_kv::tier::{ChunkKey, ChunkLayout, KeySpace, KvTier};

use crate::RequestId;
pub use connector::TierConnector;
pub(crate) use mover::TierMover;
pub use options::{TierOptions, TierOptionsError};
pub use sources::LoadedTokens;

/// Maximum number of bytes that are copied into or out of the pool between two steps; a larger chunk is copied whole.
/// At the memory bandwidth of two CPU cores it takes a few milliseconds.
pub const MAX_BYTES_PER_POLL: usize = 8 << 20;

/// Maximum number of bytes that are copied out of the pool at the head of a step, before it overwrites them
/// ([`StepOp::WriteBack`](crate::StepOp)). It takes some milliseconds on a CPU; to compute as many tokens again takes
/// seconds. Chunks beyond that, the last ones of their requests, are not copied.
pub const MAX_WRITE_BACK_BYTES: usize = 64 << 20;

/// The group of blocks of the requests: an engine has one.
const GROUP: GroupId = GroupId(0);

/// A tier, and how sequences of one engine are cut into its chunks. A clone is the same memory.
#[derive(Clone)]
pub struct Tiers(Arc<Mutex<State>>);

pub(crate) struct State {
    tier: Box<dyn KvTier>,
    layout: ChunkLayout,
    space: KeySpace,
    /// Keys of the chunks of requests that were looked up, until they end.
    keys: HashMap<RequestId, Vec<ChunkKey>>,
    /// Tokens that were loaded for requests that have not ended.
    loaded: HashMap<RequestId, LoadedTokens>,
    stats: TokenCounts,
    /// Bytes of a chunk; 0 until the mover has seen the pool.
    chunk_bytes: usize,
    /// Seconds to load a block, as measured.
    load_seconds_per_block: Option<f64>,
}

/// Numbers of tokens that were looked up in the tiers, found, loaded and stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Tokens of which keys and values were not in the pool when their request was looked up.
    pub queried: u64,
    /// Tokens of those that a tier had.
    pub matched: u64,
    /// Tokens that were loaded.
    pub loaded: u64,
    /// Tokens that were given to a tier. It may evict them, or fail to keep them.
    pub stored: u64,
    /// Tokens of those that were written back: of a lease that ended early, or of a preempted request.
    pub written_back: u64,
}

impl std::fmt::Debug for Tiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tiers").field("tokens", &self.token_counts()).finish_non_exhaustive()
    }
}

impl Tiers {
    /// Cuts sequences by `layout` into chunks of `tier`, under the keys of `space`.
    pub fn new(tier: Box<dyn KvTier>, layout: ChunkLayout, space: KeySpace) -> Self {
        let state = State {
            tier,
            layout,
            space,
            keys: HashMap::new(),
            loaded: HashMap::new(),
            stats: TokenCounts::default(),
            chunk_bytes: 0,
            load_seconds_per_block: None,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The scheduler's half.
    pub fn connector(&self) -> TierConnector {
        TierConnector::new(self.clone())
    }

    /// Counts since the engine started.
    pub fn token_counts(&self) -> TokenCounts {
        self.lock().stats
    }

    /// Counters of the tier.
    pub fn tier_stats(&self) -> TierStats {
        self.lock().tier.stats()
    }

    /// Name, counters and breaker of each memory, the fastest first.
    pub fn reports(&self) -> Vec<TierReport> {
        let mut reports = Vec::new();
        self.lock().tier.report(&mut reports);
        reports
    }

    /// Tokens that were loaded for a request, by the memory that had them. Zeros once the request has ended.
    pub fn loaded_tokens(&self, id: RequestId) -> LoadedTokens {
        self.lock().loaded.get(&id).copied().unwrap_or_default()
    }

    /// Number of chunks that were given to the tier and are not written yet.
    pub fn num_unwritten(&self) -> usize {
        self.lock().tier.num_unwritten()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
