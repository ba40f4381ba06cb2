//! Ids of blocks, groups of layers and sequences.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Block id: an index into the memory of the pool.
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

/// Handle of a sequence: an index in the manager, and the generation of that index. A handle of a freed
/// sequence is an error; it never refers to another sequence.
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
