//! Names of things: blocks and sequences.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A block's number: an index into the pool's memory.
pub type BlockId = u32;

/// Block 0 stands for "no block here" (behind a sliding window, in padding). It is counted in the
/// pool and never handed out.
pub const NULL_BLOCK: BlockId = 0;

/// A group of layers whose blocks live and die together (full attention is one, a sliding window
/// would be another). Part of every key under which a block is looked up.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct GroupId(pub u32);

/// A sequence's handle: a place in the manager, and how often that place was given away before. A
/// handle that outlived its sequence is an error, never another sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}.{}", self.index, self.generation)
    }
}
