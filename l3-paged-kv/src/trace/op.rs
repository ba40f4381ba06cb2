//! Operations of a recording.
//!
//! There are two kinds. An *act* is an operation that a caller requested ("the sequence ends"), and begins a frame of
//! the viewer. A *change* is what an act did to one block or one table. Changes are exact (`push_front`, never "was
//! freed"), so that a reader needs no rule of the pool. All changes up to the next act belong to the act before them.

use std::borrow::Cow;
use std::io;

use serde::{Deserialize, Serialize};

use crate::{BlockHash, BlockId, SeqId};

/// Receives every operation on blocks.
pub trait BlockObserver: Send {
    /// Called for each operation, in order.
    fn observe(&mut self, op: &BlockOp<'_>);

    /// Called once, after the last operation.
    ///
    /// # Errors
    /// The first error of the observer. [`observe`](Self::observe) returns none, so that an observer never disturbs the
    /// run.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An operation on blocks. In a recording: one line of JSON, its kind under `op`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum BlockOp<'a> {
    /// Act: a pool was created. Blocks `1..num_blocks` are free, in this order; there are no hashes and no tables. This
    /// is the first op, and occurs once.
    PoolMade {
        /// Number of blocks, the null block included.
        num_blocks: usize,
        /// Number of tokens per block.
        block_size: usize,
        /// Namespace of the pool.
        namespace: Cow<'a, str>,
    },

    /// Act: the next step begins. What is recorded up to its end is undone if it is abandoned
    /// (the undoing is recorded too, as changes).
    StepBegins,
    /// Act: the step ran. All pending hashes become final.
    StepCommitted,
    /// Act: the step will not run. The changes that undo it follow.
    StepAbandoned,

    /// Act: a sequence begins, with an empty table.
    SequenceBegins {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Name of the sequence, for a reader.
        label: Cow<'a, str>,
    },
    /// Act: a sequence needs slots for its tokens `..up_to_len`. Recorded only if that takes blocks.
    Grows {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Tokens that must have slots.
        up_to_len: usize,
    },
    /// Act: the step computes a sequence's tokens `..computed_len`. The hashes of the blocks that these fill follow.
    /// Recorded only if they fill a block.
    Registers {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Tokens that are computed when the step has run.
        computed_len: usize,
    },
    /// Act: a sequence's tokens from `len` on are rolled back.
    RollsBack {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Tokens that stay.
        len: usize,
    },
    /// Act: a sequence ended. The changes of its blocks follow, and its table may be truncated among them.
    SequenceEnds {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Reason of the end.
        why: Ending,
    },
    /// Act: blocks were requested and too few are free; none was taken.
    Refused {
        /// Number of free blocks that the request needs.
        needed: usize,
        /// Number of free blocks.
        free: usize,
    },
    /// Act: all hashes are removed. The free list does not change.
    CacheCleared,

    /// A sequence hit these blocks in the prefix cache. The changes that share them follow.
    PrefixHit {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// The blocks, in the order of the tokens.
        blocks: Cow<'a, [BlockId]>,
    },
    /// Act: keys and values of a sequence's tokens `from..to` went to their slots.
    Wrote {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// The first position.
        from: usize,
        /// The one after the last.
        to: usize,
    },
    /// The first `tokens` tokens of one block were copied to another.
    Copied {
        /// Source block.
        from: BlockId,
        /// Destination block.
        to: BlockId,
        /// Number of tokens.
        tokens: usize,
    },

    /// Change: the block at the front of the free list was taken.
    Pop {
        /// The block.
        block: BlockId,
    },
    /// Change: a block became the first of the free list.
    PushFront {
        /// The block.
        block: BlockId,
    },
    /// Change: a block became the last of the free list.
    PushBack {
        /// The block.
        block: BlockId,
    },
    /// Change: a block left the free list from wherever it stood.
    Unlink {
        /// The block.
        block: BlockId,
    },
    /// Change: the reference count of a block is now `users`.
    RefCount {
        /// The block.
        block: BlockId,
        /// Reference count.
        count: u32,
    },
    /// Change: a block can be found by this hash.
    Hashed {
        /// The block.
        block: BlockId,
        /// The hash of what it holds.
        hash: BlockHash,
        /// The hash of the block before it; `None` for the first of a sequence.
        parent: Option<BlockHash>,
        /// Whether the open step has yet to compute the contents.
        pending: bool,
    },
    /// Change: a block cannot be found by its hash any more.
    Unhashed {
        /// The block.
        block: BlockId,
    },
    /// Change: a table is one block longer.
    Append {
        /// Sequence that owns the table.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// The block.
        block: BlockId,
    },
    /// Change: a table keeps its first `blocks` blocks.
    Truncate {
        /// Sequence that owns the table.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Blocks that stay.
        blocks: usize,
    },
}

impl BlockOp<'_> {
    /// Returns whether this op opens a frame.
    pub fn is_act(&self) -> bool {
        !matches!(
            self,
            Self::PrefixHit { .. }
                | Self::Copied { .. }
                | Self::Pop { .. }
                | Self::PushFront { .. }
                | Self::PushBack { .. }
                | Self::Unlink { .. }
                | Self::RefCount { .. }
                | Self::Hashed { .. }
                | Self::Unhashed { .. }
                | Self::Append { .. }
                | Self::Truncate { .. }
        )
    }
}

/// Reason why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It was freed: finished, aborted or preempted. The pool does not know which.
    Freed,
    /// It had hit blocks that will not be computed.
    Unfounded,
    /// It was admitted by a step that was abandoned.
    Abandoned,
}

/// A handle as `"index.generation"`.
mod seq_id {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::SeqId;

    pub fn serialize<S: Serializer>(seq: &SeqId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}.{}", seq.index, seq.generation))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SeqId, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parts = text.split_once('.').and_then(|(index, generation)| {
            Some(SeqId { index: index.parse().ok()?, generation: generation.parse().ok()? })
        });
        parts.ok_or_else(|| D::Error::custom(format!("`{text}` is no sequence; one is like `3.0`")))
    }
}
