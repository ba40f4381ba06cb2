//! Chunks: runs of whole blocks, as a tier keeps them.

use l1_tensor::ops::KvCache;

use crate::tier::{ChunkKey, KeySpace, KvTier, Presence};
use crate::{BlockHash, BlockId, GroupId, KvError, PagedKv, Result};

/// Tokens of a chunk, if nothing else is chosen: that of LMCache.
pub const DEFAULT_CHUNK_TOKENS: usize = 256;

/// Division of sequences into chunks. Chunk `i` has tokens `i * tokens .. (i + 1) * tokens`; the tokens behind the last
/// whole chunk are not kept.
///
/// A large chunk makes few and long transfers. A small one loses fewer tokens at the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLayout {
    block_size: usize,
    blocks: usize,
}

impl ChunkLayout {
    /// Chunks of `tokens` tokens in blocks of `block_size`.
    ///
    /// # Errors
    /// [`KvError::BadConfig`] unless a chunk is a positive number of whole blocks.
    pub fn new(block_size: usize, tokens: usize) -> Result<Self> {
        if block_size == 0 || tokens == 0 || !tokens.is_multiple_of(block_size) {
            let why = format!(
                "a chunk of {tokens} tokens: choose a positive multiple of the block size, {block_size}"
            );
            return Err(KvError::BadConfig(why));
        }
        Ok(Self { block_size, blocks: tokens / block_size })
    }

    /// Number of tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Number of blocks of a chunk.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of tokens of a chunk.
    pub fn tokens(&self) -> usize {
        self.block_size * self.blocks
    }

    /// Keys of the whole chunks of a sequence, in order. `hashes` are those of its full blocks from the first on.
    pub fn keys(&self, space: &KeySpace, group: GroupId, hashes: &[BlockHash]) -> Vec<ChunkKey> {
        // exercise l3.chunks
        let chunks = hashes.chunks_exact(self.blocks);
        chunks.filter_map(|chunk| Some(space.key(group, chunk.last()?))).collect()
        // end of exercise
    }

    /// Number of tokens behind token `from` that a tier has without a gap. `keys` are those of the sequence from its first
    /// chunk on; `from` may lie within a chunk, of which the rest counts then. `None`: the tier does not know yet.
    ///
    /// A chunk behind one that is missing is of no use: a token attends to all tokens before it.
    pub fn matched_tokens(
        &self,
        tier: &mut dyn KvTier,
        keys: &[ChunkKey],
        from: usize,
    ) -> Option<usize> {
        // exercise l3.chunks
        let first = from / self.tokens();
        let mut chunks = first;
        for key in keys.get(first..).unwrap_or_default() {
            match tier.contains(key) {
                Presence::Present => chunks += 1,
                Presence::Absent => break,
                Presence::Unknown => return None,
            }
        }
        Some((chunks * self.tokens()).saturating_sub(from))
        // end of exercise
    }
}

impl PagedKv {
    /// Number of bytes of a chunk of so many blocks, all layers.
    pub fn chunk_bytes(&self, blocks: usize) -> usize {
        blocks * (0..self.num_layers()).map(|layer| self.exchange_bytes(layer)).sum::<usize>()
    }

    /// Copies a chunk out of the memory: for each layer that attends, in order, its part of each block as
    /// [`PagedKv::read_blocks`] gives it. `out` has [`PagedKv::chunk_bytes`]. On CUDA it waits for the device once.
    ///
    /// # Errors
    /// [`KvError::UnknownBlock`]; [`KvError::Malformed`] for another length; errors of the device.
    pub fn read_chunk(&self, blocks: &[BlockId], out: &mut [u8]) -> Result<()> {
        self.check_chunk(blocks.len(), out.len())?;
        self.check_blocks(blocks)?;
        Ok(KvCache::read_layers(self.layers(), blocks, out)?)
    }

    /// Copies blocks of a chunk of `of` blocks into the memory: those from `first` on, as many as `blocks` has. The pool may
    /// have the beginning of a chunk already.
    ///
    /// # Errors
    /// [`KvError::UnknownBlock`]; [`KvError::Malformed`] for another length, or more blocks than the chunk has. Then nothing
    /// was written. Errors of the device.
    pub fn write_chunk(
        &mut self,
        blocks: &[BlockId],
        first: usize,
        of: usize,
        bytes: &[u8],
    ) -> Result<()> {
        self.check_chunk(of, bytes.len())?;
        if first.checked_add(blocks.len()).is_none_or(|end| end > of) {
            let n = blocks.len();
            let why = format!("blocks {first} to {first} + {n} of a chunk of {of} blocks");
            return Err(KvError::Malformed(why));
        }
        self.check_blocks(blocks)?;
        Ok(KvCache::write_layers(self.layers_mut(), blocks, (first, of), bytes)?)
    }

    fn check_chunk(&self, blocks: usize, bytes: usize) -> Result<()> {
        let want = self.chunk_bytes(blocks);
        if bytes == want {
            return Ok(());
        }
        let why = format!("a chunk of {blocks} blocks has {want} bytes here, not {bytes}");
        Err(KvError::Malformed(why))
    }
}
