//! The page: its data, and how it is written.
//!
//! A frame is one sentence and the few [`Delta`]s that lead to it from the frame before, so the size of a page depends
//! on the number of operations and not on the size of the pool. `viewer/replay.js` applies them;
//! [`Mirror`](super::mirror::Mirror) is the same in Rust; the page has its digests, by which it verifies that it shows
//! what was recorded.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::mirror::Mirror;
use super::template;
use l3_paged_kv::BlockId;

/// Data of a page.
#[derive(Debug, Serialize)]
pub struct Page {
    /// Name of the run: that of the file.
    pub title: String,
    /// Kind of the file: `recording` or `simulation`.
    pub source: &'static str,
    /// Number of blocks, including the null block.
    pub num_blocks: usize,
    /// Tokens per block, if the file has it.
    pub block_size: Option<usize>,
    /// Namespace of the pool, if the file has it.
    pub namespace: Option<String>,
    /// Whether the file has the order of the free list, and which blocks have a hash.
    pub knows_free_list: bool,
    /// Labels of sequences: deltas and sentences refer to them by index.
    pub sequences: Vec<String>,
    /// Hashes: deltas and sentences refer to them by index.
    pub hashes: Vec<HashName>,
    /// Blocks that some delta names. All others are free from beginning to end.
    pub blocks: Vec<BlockId>,
    /// The frames.
    pub frames: Vec<Frame>,
    /// Number of frames that the page leaves out.
    pub left_out: usize,
    /// `(frame, digest)`: expected digests of the replay.
    pub checks: Vec<(usize, u32)>,
    #[serde(skip)]
    mirror: Mirror,
}

/// A hash, for display.
#[derive(Debug, Serialize)]
pub struct HashName {
    /// First eight digits.
    pub short: String,
    /// Index of the hash of the block before.
    pub parent: Option<usize>,
}

/// One frame.
///
/// In `text`, `{b5}` is block 5, `{s0}` and `{h0}` are the first sequence and the first hash of the page's lists.
#[derive(Clone, Debug, Serialize)]
pub struct Frame {
    /// Step of the frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Kind of the operation.
    pub kind: &'static str,
    /// Sentence that explains the operation.
    pub text: String,
    /// Changes of the state.
    pub deltas: Vec<Delta>,
}

/// A change of the state. On the page an array: `["append", 0, 5]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta {
    /// A block leaves the free list.
    Leave(BlockId),
    /// A block becomes the first of the free list.
    Front(BlockId),
    /// A block becomes the last of the free list.
    Back(BlockId),
    /// A block has this many users.
    Users(BlockId, u32),
    /// A block has a hash: `None` where the file does not say which. Pending or not.
    Hash(BlockId, Option<usize>, bool),
    /// A block has no hash any more.
    Unhash(BlockId),
    /// No block has a hash any more.
    UnhashAll,
    /// What is pending is certain.
    Settle,
    /// A sequence is there, with an empty table.
    Begin(usize),
    /// A sequence is gone.
    End(usize),
    /// A table grows by a block.
    Append(usize, BlockId),
    /// A table keeps this many blocks.
    Truncate(usize, usize),
    /// A sequence has this many tokens stored.
    Stored(usize, usize),
}

impl Serialize for Delta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Leave(block) => ("leave", block).serialize(serializer),
            Self::Front(block) => ("front", block).serialize(serializer),
            Self::Back(block) => ("back", block).serialize(serializer),
            Self::Users(block, users) => ("users", block, users).serialize(serializer),
            Self::Hash(block, hash, pending) => {
                let hash = hash.map_or(-1, |h| h as i64);
                ("hash", block, hash, u8::from(pending)).serialize(serializer)
            }
            Self::Unhash(block) => ("unhash", block).serialize(serializer),
            Self::UnhashAll => ("unhash_all",).serialize(serializer),
            Self::Settle => ("settle",).serialize(serializer),
            Self::Begin(seq) => ("begin", seq).serialize(serializer),
            Self::End(seq) => ("end", seq).serialize(serializer),
            Self::Append(seq, block) => ("append", seq, block).serialize(serializer),
            Self::Truncate(seq, blocks) => ("truncate", seq, blocks).serialize(serializer),
            Self::Stored(seq, tokens) => ("stored", seq, tokens).serialize(serializer),
        }
    }
}

impl Delta {
    /// The block that changes.
    pub fn block(&self) -> Option<BlockId> {
        match *self {
            Self::Leave(block)
            | Self::Front(block)
            | Self::Back(block)
            | Self::Users(block, _)
            | Self::Hash(block, ..)
            | Self::Unhash(block)
            | Self::Append(_, block) => Some(block),
            _ => None,
        }
    }
}

/// Frames between two digests.
const CHECK_EVERY: usize = 64;

impl Page {
    /// A page without frames.
    pub fn new(title: &str, source: &'static str, num_blocks: usize) -> Self {
        Self {
            title: title.to_owned(),
            source,
            num_blocks,
            block_size: None,
            namespace: None,
            knows_free_list: true,
            sequences: Vec::new(),
            hashes: Vec::new(),
            blocks: Vec::new(),
            frames: Vec::new(),
            left_out: 0,
            checks: Vec::new(),
            mirror: Mirror::default(),
        }
    }

    /// Adds a frame.
    pub fn push(&mut self, frame: Frame) {
        self.mirror.apply(&frame.deltas);
        if self.frames.len().is_multiple_of(CHECK_EVERY) {
            self.checks.push((self.frames.len(), self.mirror.digest()));
        }
        self.frames.push(frame);
    }

    /// Closes the list of frames.
    pub fn finish(&mut self) {
        if let Some(last) = self.frames.len().checked_sub(1) {
            self.checks.push((last, self.mirror.digest()));
        }
        self.blocks = self.frames.iter().flat_map(|f| &f.deltas).filter_map(Delta::block).collect();
        self.blocks.sort_unstable();
        self.blocks.dedup();
    }

    /// Writes the page: one file with everything in it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let parts = [
            ("title", template::escaped(&self.title)),
            ("style", include_str!("viewer/style.css").to_owned()),
            ("data", template::data(self)?),
            ("replay", include_str!("viewer/replay.js").to_owned()),
            ("view", include_str!("viewer/view.js").to_owned()),
        ];
        template::fill(include_str!("viewer/page.html"), &parts, out)
    }
}
