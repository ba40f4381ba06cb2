//! Pool, tables and cache together: what a scheduler asks.
//!
//! A *step* is what happens between two [`commit_step`](BlockManager::commit_step)s: sequences are
//! admitted, grown and freed, and the full blocks whose contents this step will compute get their
//! hashes. Those hashes are visible at once (the next request of the same step may share them: both
//! run in the same forward pass, which writes all keys before it attends), but *pending*: if the
//! sequence that was to compute them is freed before the commit, they are withdrawn, and every
//! sequence that was admitted in this step on the strength of them goes with it.
//! [`free`](BlockManager::free) returns those: they must be planned again. So a hash never outlives
//! the certainty that its block is computed. (vLLM 0.32 leaves such hashes behind: a request that is
//! preempted by priority after it was scheduled keeps the hashes of a chunk that never ran.)
//!
//! ```text
//!        lookup ──> admit ──> register ─┐
//!                   reserve ─> register ┼─> forward pass ──> commit_step ──> free what has ended
//!        free (preempted) ──────────────┘ └> abandon_step
//! ```
//!
//! Nothing here scans: an operation costs what it is asked for, however large the pool.

mod announcements;
mod config;
mod invariants;
mod lookup;
mod reserve;
mod rollback;
mod sequences;
mod step;
#[cfg(test)]
mod testing;

use std::fmt;

use crate::trace::{BlockObserver, BlockOp};
use crate::{BlockId, BlockPool, BlockTable, KvError, PrefixCache, Result, SeqId};

use announcements::Announcements;
pub use config::{Admission, CopyBlock, ManagerConfig, PrefixHit, PrefixStats};
use sequences::Sequences;

/// The blocks of one pool, and who uses them.
pub struct BlockManager {
    config: ManagerConfig,
    pool: BlockPool,
    cache: PrefixCache,
    sequences: Sequences,
    /// Whether anything happened since the last step ended.
    step_is_open: bool,
    /// Places of the sequences that this step admitted, grew or computes, in that order.
    step: Vec<u32>,
    stats: PrefixStats,
    announcements: Option<Announcements>,
    observer: Option<Box<dyn BlockObserver>>,
}

impl BlockManager {
    /// Makes the pool: everything whose size is known is allocated now.
    ///
    /// # Errors
    /// [`KvError::BadConfig`] for a block size that is no power of two, and for pools that cannot be.
    pub fn new(config: ManagerConfig) -> Result<Self> {
        if !config.block_size.is_power_of_two() {
            return Err(KvError::BadConfig(format!(
                "block_size {} is not a power of two: take 8, 16 or 32",
                config.block_size
            )));
        }
        let pool = BlockPool::new(config.num_blocks)?;
        let cache = PrefixCache::new(if config.prefix_caching { config.num_blocks } else { 0 });
        let sequences = Sequences::new(config.block_size, config.max_blocks_per_seq);
        let announcements = config.events.clone().map(|stream| {
            Announcements::new(stream, config.medium, config.group, config.block_size)
        });
        Ok(Self {
            config,
            pool,
            cache,
            sequences,
            step_is_open: false,
            step: Vec::new(),
            stats: PrefixStats::default(),
            announcements,
            observer: None,
        })
    }

    /// What it was made from.
    pub fn config(&self) -> &ManagerConfig {
        &self.config
    }

    /// Which blocks are free, and how often the others are used.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Which blocks hold what.
    pub fn cache(&self) -> &PrefixCache {
        &self.cache
    }

    /// Prefix lookups since the beginning.
    pub fn stats(&self) -> PrefixStats {
        self.stats
    }

    /// Blocks that can be handed out now: those that hold something cached are among them.
    pub fn num_free(&self) -> usize {
        self.pool.num_free()
    }

    /// The part of the pool that is in use: `1 - free / (num_blocks - 1)`.
    pub fn usage(&self) -> f64 {
        self.pool.usage()
    }

    /// Sequences that hold blocks, or may.
    pub fn num_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// A sequence's blocks.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`].
    pub fn table(&self, seq: SeqId) -> Result<&BlockTable> {
        Ok(&self.sequences.get(seq)?.table)
    }

    /// Forget all hashes. The order of the free list stays.
    ///
    /// # Errors
    /// [`KvError::InUse`] while anybody holds a block: tables of living sequences rest on hashes.
    pub fn reset_prefix_cache(&mut self) -> Result<()> {
        let in_use = self.pool.num_blocks() - 1 - self.pool.num_free();
        if in_use > 0 {
            return Err(KvError::InUse { in_use });
        }
        self.cache.clear();
        self.note(&BlockOp::CacheCleared);
        if let Some(announcements) = &mut self.announcements {
            announcements.cleared();
        }
        Ok(())
    }

    /// Tell somebody of everything that happens from now on: a recorder, for the block viewer.
    /// `None`: nobody, at the cost of one branch an operation.
    ///
    /// # Errors
    /// [`KvError::BadConfig`] if something has happened already: a recording that begins in the
    /// middle cannot be followed.
    pub fn set_observer(&mut self, observer: Option<Box<dyn BlockObserver>>) -> Result<()> {
        if observer.is_some() && self.sequences.was_used() {
            return Err(KvError::BadConfig(
                "this pool has been used already: watch it from the beginning".to_owned(),
            ));
        }
        self.observer = observer;
        if let Some(observer) = &mut self.observer {
            observer.observe(&BlockOp::PoolMade {
                num_blocks: self.config.num_blocks,
                block_size: self.config.block_size,
                namespace: self.config.namespace.as_str().into(),
            });
        }
        Ok(())
    }

    /// Take the observer back, to finish what it writes.
    pub fn take_observer(&mut self) -> Option<Box<dyn BlockObserver>> {
        self.observer.take()
    }

    /// Tell the observer of something that others did with the blocks: the memory's owner writes and
    /// copies.
    pub fn note(&mut self, op: &BlockOp<'_>) {
        if let Some(observer) = &mut self.observer {
            observer.observe(op);
        }
    }

    /// A block's contents cannot be found any more: it was handed out again, or will not be computed.
    fn forget_hash(&mut self, block: BlockId) {
        let Some(forgotten) = self.cache.remove(block) else { return };
        self.note(&BlockOp::Unhashed { block });
        if let Some(announcements) = &mut self.announcements {
            announcements.forgotten(&forgotten);
        }
    }

    /// With nobody there, everything must be back; debug builds look.
    fn check_when_idle(&self) {
        if cfg!(debug_assertions)
            && self.sequences.len() == 0
            && let Err(what) = self.check_invariants()
        {
            panic!("the pool is idle and not in order: {what}");
        }
    }
}

impl fmt::Debug for BlockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockManager")
            .field("num_blocks", &self.config.num_blocks)
            .field("block_size", &self.config.block_size)
            .field("free", &self.num_free())
            .field("cached", &self.cache.len())
            .field("sequences", &self.sequences.len())
            .finish_non_exhaustive()
    }
}
