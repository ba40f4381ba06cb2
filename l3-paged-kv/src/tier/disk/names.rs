//! The names of the files of a disk tier.
//!
//! The key in hexadecimal and `.kv`, or `.tmp` while it is written.

use std::fmt;

use crate::tier::ChunkKey;

/// Name of a file that belongs to the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileName {
    /// A chunk.
    Chunk(ChunkKey),
    /// A chunk that is being written, or was when the machine stopped.
    Unfinished(ChunkKey),
}

impl FileName {
    /// `None` for a file that the tier has not written.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (key, ending) = name.split_once('.')?;
        let parsed: ChunkKey = key.parse().ok()?;
        let name = match ending {
            "kv" => Self::Chunk(parsed),
            "tmp" => Self::Unfinished(parsed),
            _ => return None,
        };
        // Digits in capitals are another name of the same key.
        (parsed.to_string() == key).then_some(name)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileName::Chunk(key) => write!(f, "{key}.kv"),
            FileName::Unfinished(key) => write!(f, "{key}.tmp"),
        }
    }
}
