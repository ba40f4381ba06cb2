//! Configuration of a block manager, and the arguments and results of its methods.

use l1_tensor::ops::TILE;

use crate::events::{EventStream, Medium};
use crate::{BlockId, GroupId};

/// Configuration of a [`BlockManager`](crate::BlockManager).
#[derive(Clone)]
pub struct ManagerConfig {
    /// Number of blocks, the null block included.
    pub num_blocks: usize,
    /// Number of tokens per block, a power of two or a multiple of [`TILE`].
    pub block_size: usize,
    /// Whether full blocks can be found again by their hashes. If false, nothing is hashed, and a freed
    /// block is the next to be handed out.
    pub prefix_caching: bool,
    /// Specialist (model) that owns the pool: part of every key that leaves this process.
    pub namespace: String,
    /// Expected maximum number of blocks of one sequence: tables are allocated with this capacity, so that
    /// growing allocates nothing. A longer table works, but allocates.
    pub max_blocks_per_seq: usize,
    /// Group of layers that the blocks belong to.
    pub group: GroupId,
    /// Medium that stores the blocks; only events use it.
    pub medium: Medium,
    /// Stream on which changes of the prefix cache are published. `None` costs nothing.
    pub events: Option<EventStream>,
}

impl ManagerConfig {
    /// Configuration with prefix caching and no namespace, for sequences of at most the whole pool or 1024
    /// blocks, whichever is less.
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        Self {
            num_blocks,
            block_size,
            prefix_caching: true,
            namespace: String::new(),
            max_blocks_per_seq: num_blocks.saturating_sub(1).min(1024),
            group: GroupId::default(),
            medium: Medium::Cpu,
            events: None,
        }
    }
}

/// Cached prefix of a request: full blocks, at most `(len - 1) / block_size` of them, so that at least
/// one token is left to compute. (The request needs the logits of its last token, and logits are not
/// cached.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixHit {
    /// Blocks, in the order of the tokens.
    pub blocks: Vec<BlockId>,
    /// Number of tokens in these blocks.
    pub tokens: usize,
}

/// What an admission requires.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admission {
    /// Number of tokens that must have slots after this step: hit + first chunk (+ lookahead).
    pub up_to_len: usize,
    /// Number of tokens whose blocks must be free now, though only those for `up_to_len` are taken
    /// (vLLM's `scheduler_reserve_full_isl`). A check, not a reservation. 0: no check.
    pub must_fit_len: usize,
    /// Number of blocks that must stay free in addition (vLLM's watermark).
    pub keep_free: usize,
    /// Whether a preempted request is resumed: counted separately in the statistics.
    pub resumed: bool,
}

/// Instruction to copy the first `tokens` tokens of one block to another, before anything else is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyBlock {
    /// Source block.
    pub from: BlockId,
    /// Destination block.
    pub to: BlockId,
    /// Number of tokens to copy.
    pub tokens: usize,
}

/// Statistics of prefix lookups, counted at admission, in tokens. A lookup whose request is not admitted
/// does not count. Resumed requests are counted separately: they hit their own blocks, which says nothing
/// about how much the workload shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Number of requests admitted for the first time.
    pub requests: u64,
    /// Number of their tokens.
    pub queries: u64,
    /// Number of their tokens that were cached.
    pub hits: u64,
    /// Number of admissions after a preemption.
    pub preempted_requests: u64,
    /// Number of their tokens.
    pub preempted_queries: u64,
    /// Number of their tokens that were cached.
    pub preempted_hits: u64,
}

impl PrefixStats {
    pub(super) fn count(&mut self, queries: usize, hits: usize, resumed: bool) {
        let (requests, all, found) = if resumed {
            (&mut self.preempted_requests, &mut self.preempted_queries, &mut self.preempted_hits)
        } else {
            (&mut self.requests, &mut self.queries, &mut self.hits)
        };
        *requests += 1;
        *all += queries as u64;
        *found += hits as u64;
    }
}

/// Whether a block size is valid: a block has whole tiles, or a tile has whole blocks.
pub(crate) fn is_block_size(tokens: usize) -> bool {
    tokens.is_power_of_two() || tokens > 0 && tokens.is_multiple_of(TILE)
}
