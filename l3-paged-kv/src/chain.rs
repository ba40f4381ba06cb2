//! Tokens with the hashes of their full blocks, grown together.

use crate::{BlockHash, BlockHasher, ExtraKeys};

/// Tokens of a request, and one hash for each full block of them. The request owns the chain, the
/// block manager reads it.
///
/// A hash is computed once, when the last token of its block arrives, however the tokens came:
/// all at once, in chunks, or one by one from the model.
///
/// The fields that appending a token uses come first: a scheduler with a thousand requests appends a thousand tokens a
/// step, and waits for a cache line of each chain.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct TokenChain {
    tokens: Vec<u32>,
    hashes: Vec<BlockHash>,
    hasher: BlockHasher,
    keys: ExtraKeys,
}

impl TokenChain {
    /// Creates an empty chain.
    pub fn new(hasher: &BlockHasher, keys: ExtraKeys) -> Self {
        Self::with_capacity(hasher, keys, 0)
    }

    /// Creates an empty chain with capacity for `max_tokens` tokens: up to that length, appending allocates nothing.
    pub fn with_capacity(hasher: &BlockHasher, keys: ExtraKeys, max_tokens: usize) -> Self {
        let hashes = Vec::with_capacity(max_tokens / hasher.block_size());
        Self { hasher: *hasher, keys, tokens: Vec::with_capacity(max_tokens), hashes }
    }

    /// Appends tokens.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.hash_full_blocks();
    }

    /// Appends one token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.hash_full_blocks();
    }

    /// Removes the tokens from `len` on, and the hashes of blocks that are no longer full.
    pub fn truncate(&mut self, len: usize) {
        // exercise l3.chain
        self.tokens.truncate(len);
        self.hashes.truncate(self.tokens.len() / self.hasher.block_size());
        // end of exercise
    }

    /// Hash the blocks that are full and have no hash yet, each over the one before it.
    fn hash_full_blocks(&mut self) {
        let size = self.hasher.block_size();
        // exercise l3.chain
        for index in self.hashes.len()..self.tokens.len() / size {
            let tokens = &self.tokens[index * size..][..size];
            let hash = self.hasher.hash(self.hashes.last(), index, tokens, &self.keys);
            self.hashes.push(hash);
        }
        // end of exercise
    }

    /// All tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether the chain is empty.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Hashes of the full blocks, in order.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// Number of tokens per block.
    pub fn block_size(&self) -> usize {
        self.hasher.block_size()
    }

    /// Adapter and salt that the hashes include beside the tokens.
    pub fn keys(&self) -> &ExtraKeys {
        &self.keys
    }
}
