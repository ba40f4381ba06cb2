//! What a manager is made from, is asked, and answers.

use crate::events::{EventStream, Medium};
use crate::{BlockId, GroupId};

/// What a [`BlockManager`](crate::BlockManager) is made from.
#[derive(Clone)]
pub struct ManagerConfig {
    /// Blocks, the null block included.
    pub num_blocks: usize,
    /// Tokens a block, a power of two.
    pub block_size: usize,
    /// Whether full blocks are found again by what they hold. Without it nothing is hashed, and
    /// every freed block is the next to be handed out.
    pub prefix_caching: bool,
    /// The specialist this pool belongs to: part of every key that leaves this process.
    pub namespace: String,
    /// The most blocks of one sequence: tables are made that long, so that growing allocates
    /// nothing. A longer one works, and allocates.
    pub max_blocks_per_seq: usize,
    /// The group of layers the blocks belong to.
    pub group: GroupId,
    /// Where the blocks are: only said in events.
    pub medium: Medium,
    /// Publish here what is cached and what is not any more. `None`: that costs nothing.
    pub events: Option<EventStream>,
}

impl ManagerConfig {
    /// With prefix caching and no namespace, for sequences that may take the whole pool or 1024
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

/// The cached beginning of a request: full blocks, at most `(len - 1) / block_size` of them, so that
/// at least one token is left to compute. (The last token's logits are what the request is for, and
/// they are not in the cache.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixHit {
    /// The blocks, in the order of the tokens.
    pub blocks: Vec<BlockId>,
    /// Tokens in them.
    pub tokens: usize,
}

/// How much an admission asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admission {
    /// Tokens that must have slots after this step: hit + first chunk (+ lookahead).
    pub up_to_len: usize,
    /// Blocks for this many tokens must be free now, though only those for `up_to_len` are taken
    /// (vLLM's `scheduler_reserve_full_isl`). A test, not a reservation. 0: no such test.
    pub must_fit_len: usize,
    /// This many blocks must stay free beyond either (vLLM's watermark).
    pub keep_free: usize,
    /// A preempted request comes back: counted apart in the statistics.
    pub resumed: bool,
}

/// Copy the first `tokens` tokens of one block to another, before anything else is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyBlock {
    /// From this block.
    pub from: BlockId,
    /// To this one.
    pub to: BlockId,
    /// This many tokens.
    pub tokens: usize,
}

/// Prefix lookups, counted at admission, in tokens. A lookup whose request is not admitted does not
/// count, and requests that come back after a preemption are counted apart: they find their own
/// blocks, which says nothing about how much the workload shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Requests admitted for the first time.
    pub requests: u64,
    /// Their tokens.
    pub queries: u64,
    /// Those that were cached.
    pub hits: u64,
    /// Admissions after a preemption.
    pub preempted_requests: u64,
    /// Their tokens.
    pub preempted_queries: u64,
    /// Those that were cached.
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
