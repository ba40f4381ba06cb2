//! Errors of block management.

use crate::{BlockId, SeqId};

/// The result of everything fallible in `l3-paged-kv`.
pub type Result<T> = std::result::Result<T, KvError>;

/// Errors of pool, tables, cache, memory and sizing.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// An error of a tensor operation.
    #[error(transparent)]
    Tensor(#[from] l1_tensor::Error),
    /// The pool is full. Nothing was taken.
    #[error(
        "{needed} blocks are needed and {free} are free: wait for a sequence to end, preempt one, or make the pool \
         larger"
    )]
    NoFreeBlocks {
        /// Number of free blocks that the operation needs.
        needed: usize,
        /// Number of blocks that are free.
        free: usize,
    },
    /// The block id is not below the number of blocks of the pool.
    #[error("block {block} does not exist: the pool has blocks 0 to {}", num_blocks - 1)]
    UnknownBlock {
        /// Block id.
        block: BlockId,
        /// Number of blocks of the pool, the null block included.
        num_blocks: usize,
    },
    /// The null block was shared, hashed or freed.
    #[error(
        "block 0 is the null block: it stands for `no block here`, is never handed out and cannot be {attempt}"
    )]
    NullBlock {
        /// The operation that was tried: "freed", "shared" or "hashed".
        attempt: &'static str,
    },
    /// A free block was shared, hashed or freed again.
    #[error(
        "block {block} is free and cannot be {attempt}: a block table still refers to it after its sequence ended"
    )]
    NotAllocated {
        /// Block id.
        block: BlockId,
        /// The operation that was tried: "freed", "shared" or "hashed".
        attempt: &'static str,
    },
    /// The sequence was freed, or belongs to another manager.
    #[error("{0} is unknown: it was freed, or is another manager's")]
    UnknownSequence(SeqId),
    /// Invalid parameters of a pool.
    #[error("{0}")]
    BadConfig(String),
    /// Fields that contradict each other, or a buffer that is too small.
    #[error("{0}")]
    Malformed(String),
    /// The prefix cache cannot be reset while sequences hold blocks.
    #[error(
        "the prefix cache cannot be reset while {in_use} blocks are in use: free every sequence first"
    )]
    InUse {
        /// Number of blocks in use.
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
