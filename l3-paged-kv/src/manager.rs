//! The block manager: pool, block tables and prefix cache behind the interface that a scheduler uses.
//!
//! A *step* is what happens between two [`commit_step`](BlockManager::commit_step)s: sequences are
//! admitted, grown and freed, and the full blocks whose contents this step will compute get their
//! hashes. Those hashes are visible at once (the next request of the same step may share them: both
//! run in the same forward pass, which writes all keys before it attends), but *pending*: if the
//! sequence that was to compute them is freed before the commit, they are withdrawn, and every
//! sequence that was admitted in this step because of them is withdrawn too.
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
//! A device needs not wait for the planning of its next step: while one step runs, the next one can be planned
//! ([`begin_step_ahead`](BlockManager::begin_step_ahead)). The two are committed in their order.
//!
//! No operation scans the pool: its cost depends on the blocks that it handles, not on the size of the pool.

mod ahead;
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

use l1_tensor::ops::TILE;

use crate::trace::{BlockObserver, BlockOp};
use crate::{BlockId, BlockPool, BlockTable, KvError, PrefixCache, Result, SeqId};

use announcements::Announcements;
pub(crate) use config::is_block_size;
pub use config::{Admission, CopyBlock, ManagerConfig, PrefixHit, PrefixStats};
use sequences::Sequences;

/// Blocks of one pool, the sequences that hold them, and the prefix cache over them.
///
/// Two requests with the same first eight tokens share two blocks of four tokens:
///
/// ```
/// use l3_paged_kv::{Admission, BlockHasher, BlockManager, ExtraKeys, ManagerConfig, TokenChain};
///
/// let mut manager = BlockManager::new(ManagerConfig::new(8, 4))?;
/// let hasher = BlockHasher::new(4);
/// let mut admit = |tokens: &[u32]| {
///     let mut chain = TokenChain::new(&hasher, ExtraKeys::default());
///     chain.extend(tokens);
///     let hit = manager.lookup(&chain);
///     let admission = Admission { up_to_len: chain.len(), ..Admission::default() };
///     let seq = manager.admit(&chain, &hit, admission)?;
///     manager.register(seq, &chain, chain.len())?;
///     manager.commit_step(); // after the forward pass
///     Ok::<_, l3_paged_kv::KvError>((hit.tokens, manager.table(seq)?.blocks().to_vec()))
/// };
/// let (cached, first) = admit(&[1, 2, 3, 4, 5, 6, 7, 8, 9])?;
/// assert_eq!((cached, first.len()), (0, 3));
/// let (cached, second) = admit(&[1, 2, 3, 4, 5, 6, 7, 8, 50])?;
/// assert_eq!(cached, 8);
/// assert_eq!(first[..2], second[..2]);
/// # Ok::<(), l3_paged_kv::KvError>(())
/// ```
pub struct BlockManager {
    config: ManagerConfig,
    pool: BlockPool,
    cache: PrefixCache,
    sequences: Sequences,
    /// Whether anything happened since the last step began.
    step_is_open: bool,
    /// Indices of the sequences that this step admitted, grew or computes, in that order.
    step: Vec<u32>,
    /// Whether this step is planned while the one before it runs.
    is_ahead: bool,
    /// The same of the step that runs: whether anything happened in it, and its sequences.
    running_is_open: bool,
    running: Vec<u32>,
    stats: PrefixStats,
    announcements: Option<Announcements>,
    observer: Option<Box<dyn BlockObserver>>,
}

impl BlockManager {
    /// Creates the pool. Everything whose size is known is allocated now.
    ///
    /// # Errors
    /// [`KvError::BadConfig`] for a block size that is neither a power of two nor a multiple of [`TILE`], or an invalid
    /// number of blocks.
    pub fn new(config: ManagerConfig) -> Result<Self> {
        if !is_block_size(config.block_size) {
            return Err(KvError::BadConfig(format!(
                "block_size {} is neither a power of two nor a multiple of {TILE}: use 8, 16 or 32",
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
            is_ahead: false,
            running_is_open: false,
            running: Vec::new(),
            stats: PrefixStats::default(),
            announcements,
            observer: None,
        })
    }

    /// Configuration of the manager.
    pub fn config(&self) -> &ManagerConfig {
        &self.config
    }

    /// The block pool: which blocks are free, and the reference counts of the others.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// The prefix cache: hashes of blocks.
    pub fn cache(&self) -> &PrefixCache {
        &self.cache
    }

    /// Statistics of prefix lookups since the manager was created.
    pub fn stats(&self) -> PrefixStats {
        self.stats
    }

    /// Number of blocks that can be handed out now. Cached blocks that no sequence holds are among them.
    pub fn num_free(&self) -> usize {
        self.pool.num_free()
    }

    /// Fraction of the pool that is in use: `1 - free / (num_blocks - 1)`.
    pub fn usage(&self) -> f64 {
        self.pool.usage()
    }

    /// Number of live sequences, with or without blocks.
    pub fn num_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Block table of a sequence.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`].
    #[inline]
    pub fn table(&self, seq: SeqId) -> Result<&BlockTable> {
        Ok(&self.sequences.get(seq)?.table)
    }

    /// Removes all hashes. The order of the free list does not change.
    ///
    /// # Errors
    /// [`KvError::InUse`] while any sequence holds a block: tables of live sequences depend on hashes.
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

    /// Sets the observer of all further block operations (a recorder, for the block viewer). `None` removes
    /// it; the cost is then one branch per operation.
    ///
    /// # Errors
    /// [`KvError::BadConfig`] if the pool has been used already: a recording must begin with the empty
    /// pool.
    pub fn set_observer(&mut self, observer: Option<Box<dyn BlockObserver>>) -> Result<()> {
        if observer.is_some() && self.sequences.was_used() {
            return Err(KvError::BadConfig(
                "this pool has been used already: set the observer before the first admission"
                    .to_owned(),
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

    /// Whether an observer is set.
    pub fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Removes and returns the observer, to finish its recording.
    pub fn take_observer(&mut self) -> Option<Box<dyn BlockObserver>> {
        self.observer.take()
    }

    /// Reports an operation that the manager does not perform itself to the observer: writes and copies of the memory's
    /// owner.
    pub fn note(&mut self, op: &BlockOp<'_>) {
        if let Some(observer) = &mut self.observer {
            observer.observe(op);
        }
    }

    /// Removes a block's hash, because the block was handed out again or will not be computed.
    fn forget_hash(&mut self, block: BlockId) {
        let Some(forgotten) = self.cache.remove(block) else { return };
        self.note(&BlockOp::Unhashed { block });
        if let Some(announcements) = &mut self.announcements {
            announcements.forgotten(&forgotten);
        }
    }

    /// Without sequences, all blocks must be free; debug builds check.
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
