//! What can go wrong with blocks.

use crate::{BlockId, SeqId};

/// The result of everything fallible in `l3-paged-kv`.
pub type Result<T> = std::result::Result<T, KvError>;

/// Errors of pool, tables, cache, memory and sizing.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// An op of the floors below.
    #[error(transparent)]
    Tensor(#[from] l1_tensor::Error),
    /// The pool is full. Nothing was taken.
    #[error(
        "{needed} blocks are needed and {free} are free: wait for a sequence to end, preempt one, or make the pool larger"
    )]
    NoFreeBlocks {
        /// Blocks that must be free for this to work.
        needed: usize,
        /// Blocks that are.
        free: usize,
    },
    /// A block that no pool of this size has.
    #[error("block {block} does not exist: the pool has blocks 0 to {}", num_blocks - 1)]
    UnknownBlock {
        /// The id.
        block: BlockId,
        /// Blocks of the pool, the null block included.
        num_blocks: usize,
    },
    /// The null block was asked for, or given back.
    #[error(
        "block 0 is the null block: it stands for `no block here`, is never handed out and cannot be {attempt}"
    )]
    NullBlock {
        /// What was tried: freed, shared, hashed.
        attempt: &'static str,
    },
    /// A block that nobody holds was used or freed (again).
    #[error("block {block} is free and cannot be {attempt}: some table outlived its sequence")]
    NotAllocated {
        /// The id.
        block: BlockId,
        /// What was tried: freed, shared, hashed.
        attempt: &'static str,
    },
    /// A handle of a sequence that was freed.
    #[error("{0} is unknown: it was freed, or is another manager's")]
    UnknownSequence(SeqId),
    /// Parameters no pool can be made from.
    #[error("{0}")]
    BadConfig(String),
    /// Fields that contradict each other, or a buffer that is too small.
    #[error("{0}")]
    Malformed(String),
    /// The prefix cache cannot be reset now.
    #[error(
        "the prefix cache cannot be reset while {in_use} blocks are in use: free every sequence first"
    )]
    InUse {
        /// Blocks that somebody holds.
        in_use: usize,
    },
}

impl From<KvError> for l2_model::Error {
    fn from(e: KvError) -> Self {
        match e {
            KvError::Tensor(e) => e.into(),
            e @ KvError::NoFreeBlocks { .. } => l2_model::BatchError::Full(e.to_string()).into(),
            e => l2_model::BatchError::Malformed(e.to_string()).into(),
        }
    }
}
