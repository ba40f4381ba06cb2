//! The words of a recording.
//!
//! Two kinds. An *act* says what somebody wanted ("the sequence ends") and opens a frame of the
//! viewer; a *change* says what that did to one block or one table. Changes are exact, so that a
//! reader needs no rule of the pool to follow them: it is told `push_front`, never "was freed".
//! Whatever happens before the next act belongs to the act before it.

use std::borrow::Cow;
use std::io;

use serde::{Deserialize, Serialize};

use crate::{BlockHash, BlockId, SeqId};

/// Told of everything that happens to blocks, as it happens.
pub trait BlockObserver: Send {
    /// One more thing happened.
    fn observe(&mut self, op: &BlockOp<'_>);

    /// Nothing more will come.
    ///
    /// # Errors
    /// Whatever went wrong since the beginning: watching must not disturb what is watched, so
    /// [`observe`](Self::observe) has no way to tell.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One thing that happened to blocks. In a recording: one line of JSON, its kind under `op`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum BlockOp<'a> {
    /// Act: a pool was made. Blocks `1..num_blocks` are free, in this order; no hashes, no tables.
    /// The first op, and the only one of its kind.
    PoolMade {
        /// Blocks, the null block among them.
        num_blocks: usize,
        /// Tokens a block.
        block_size: usize,
        /// Whose pool it is.
        namespace: Cow<'a, str>,
    },

    /// Act: the next step begins. What is recorded up to its end is undone if it is abandoned
    /// (the undoing is recorded too, as changes).
    StepBegins,
    /// Act: the step ran. Every pending hash is certain now.
    StepCommitted,
    /// Act: the step will not run. The changes that undo it follow.
    StepAbandoned,

    /// Act: a sequence enters, with an empty table. `label` is its name for a reader.
    SequenceBegins {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// What to call it.
        label: Cow<'a, str>,
    },
    /// Act: a sequence needs room for its tokens `..up_to_len`. Only worth an op if that takes
    /// blocks.
    Grows {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Tokens that must have slots.
        up_to_len: usize,
    },
    /// Act: the step computes a sequence's tokens `..computed_len`; the hashes of the blocks which
    /// that fills follow. Only worth an op if it fills one.
    Registers {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Tokens that are computed when the step has run.
        computed_len: usize,
    },
    /// Act: a sequence forgets its tokens from `len` on.
    RollsBack {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Tokens that stay.
        len: usize,
    },
    /// Act: a sequence is gone, its table with it. What happens to the blocks follows (the table
    /// may be told to be emptied along with them).
    SequenceEnds {
        /// The sequence.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Why.
        why: Ending,
    },
    /// Act: blocks were asked for and there are too few; nothing was taken.
    Refused {
        /// Blocks that would have to be free.
        needed: usize,
        /// Blocks that are.
        free: usize,
    },
    /// Act: every hash is forgotten. The blocks stay where they are.
    CacheCleared,

    /// A sequence found the beginning of its tokens in these blocks. The changes that share them
    /// follow.
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
        /// From this block.
        from: BlockId,
        /// To this one.
        to: BlockId,
        /// This many.
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
    /// Change: this many users hold a block now.
    RefCount {
        /// The block.
        block: BlockId,
        /// Its users.
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
        /// Whether the contents are yet to be computed, by the step that is open.
        pending: bool,
    },
    /// Change: a block cannot be found by its hash any more.
    Unhashed {
        /// The block.
        block: BlockId,
    },
    /// Change: a table is one block longer.
    Append {
        /// Whose table.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// The block.
        block: BlockId,
    },
    /// Change: a table keeps its first `blocks` blocks.
    Truncate {
        /// Whose table.
        #[serde(with = "seq_id")]
        seq: SeqId,
        /// Blocks that stay.
        blocks: usize,
    },
}

impl BlockOp<'_> {
    /// Whether this opens a frame.
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

/// Why a sequence is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It was freed: finished, aborted or preempted. The pool cannot tell.
    Freed,
    /// Its prefix hit rested on blocks that will not be computed after all.
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
