//! Pool, tables and cache together: what a scheduler asks. (split into a manager/ dir as it grows: step.rs, admit.rs, ...)
//!
//! A *step* is what happens between two `commit_step`s: sequences are admitted, grown and freed, and the full blocks whose
//! contents this step will compute get their hashes. Those hashes are visible at once (the next request in the same step may
//! share them: both run in the same forward, which writes all keys before it attends), but *pending*: if the sequence that was to
//! compute them is freed before the commit, they are unregistered, and every sequence that was admitted in this step on the
//! strength of them goes with it (`free` returns those: they must be planned again). So a hash never outlives
//! the certainty that its block is computed. vLLM 0.32 leaves such hashes behind; see the chapter.

/// A sequence's handle. Slab index + generation: a stale handle is an error, never another sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId { index: u32, generation: u32 }   // Display "sequence 3"

#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// Null block included.
    pub num_blocks: usize,
    /// Tokens per block, a power of two.
    pub block_size: usize,
    pub prefix_caching: bool,
    /// The specialist this pool belongs to: part of every key that leaves this process.
    pub namespace: String,
    /// The most blocks of one sequence: tables are made that long, so that growing allocates nothing.
    pub max_blocks_per_seq: usize,
    pub group: GroupId,
    /// Publish KV events; None: they cost nothing.
    pub events: Option<EventStream>,
}   // + Default / new(num_blocks, block_size)

/// The cached beginning of a request: full blocks, at most `(len - 1) / block_size`, so that one token is left to compute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixHit { pub blocks: Vec<BlockId>, pub tokens: usize }

/// How much an admission asks for.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Tokens that must have slots after this step: hit + first chunk (+ lookahead).
    pub up_to_len: usize,
    /// Blocks for this many tokens must be free now, though only `up_to_len` is taken (vLLM's reserve_full_isl). 0: no such test.
    pub must_fit_len: usize,
    /// This many blocks must stay free beyond it (watermark).
    pub keep_free: usize,
    /// A preempted request comes back: counted apart in the statistics.
    pub resumed: bool,
}

/// Copy the first `tokens` of one block to another before anything else is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyBlock { pub from: BlockId, pub to: BlockId, pub tokens: usize }

/// Lookups at admission, in tokens; those of preempted requests apart (vLLM's prefix_cache_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats { pub requests: u64, pub queries: u64, pub hits: u64, pub preempted_requests: u64, pub preempted_queries: u64, pub preempted_hits: u64 }

pub struct BlockManager { }

impl BlockManager {
    pub fn new(config: ManagerConfig) -> Result<Self>;
    pub fn config(&self) -> &ManagerConfig; pub fn pool(&self) -> &BlockPool; pub fn cache(&self) -> &PrefixCache; pub fn stats(&self) -> PrefixStats;
    pub fn num_free(&self) -> usize; pub fn usage(&self) -> f64;

    /// The longest run of cached full blocks. Takes nothing; only valid until the next change.
    pub fn lookup(&self, chain: &TokenChain) -> PrefixHit;
    /// Blocks that must be free to admit: new ones, and those of the hit that wait in the free list.
    pub fn blocks_to_admit(&self, hit: &PrefixHit, up_to_len: usize) -> usize;
    /// A new sequence: touch the hit, then take new blocks. All or nothing. (order as in vLLM: full-length test, test, touch, take)
    pub fn admit(&mut self, chain: &TokenChain, hit: &PrefixHit, want: Admission) -> Result<SeqId>;
    /// Make room for a sequence's tokens up to `up_to_len`. All or nothing; the blocks that were appended.
    pub fn reserve(&mut self, seq: SeqId, up_to_len: usize) -> Result<&[BlockId]>;
    /// This step computes the sequence's tokens up to `computed_len`: full blocks among them get their hashes (pending until the commit).
    pub fn register(&mut self, seq: SeqId, chain: &TokenChain, computed_len: usize) -> Result<()>;
    pub fn table(&self, seq: SeqId) -> Result<&BlockTable>;
    /// The sequence ends or is preempted: its blocks go back, tail first. What it had pending is unregistered. Returns the sequences
    /// admitted in this step that had hit such blocks: they are freed too (and theirs in turn).
    pub fn free(&mut self, seq: SeqId) -> Result<Vec<SeqId>>;
    /// Forget tokens from `len` on. Where `len` falls inside of a block that is hashed or shared, the table gets a private block instead and the caller copies.
    pub fn rollback(&mut self, seq: SeqId, len: usize) -> Result<Option<CopyBlock>>;
    /// The step ran: what it computed is certain; events go out.
    pub fn commit_step(&mut self);
    /// The step will not run: appended blocks go back, hashes are unregistered, sequences admitted in it are gone (returned).
    pub fn abandon_step(&mut self) -> Vec<SeqId>;
    /// Forget all hashes; refuses while any block is in use.
    pub fn reset_prefix_cache(&mut self) -> Result<()>;
    /// Every invariant of pool, tables and cache; O(n). Debug builds check it whenever the manager is idle.
    pub fn check_invariants(&self) -> std::result::Result<(), String>;
    pub fn set_recorder(&mut self, recorder: Option<trace::Recorder>);
}
