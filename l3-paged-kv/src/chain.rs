//! Tokens with the hashes of their full blocks, grown together.

/// A request's tokens. Owned by the request; the manager reads it.
pub struct TokenChain { /* tokens, hashes, hasher, keys; scratch for encoding: no allocation per token beyond growth */ }

impl TokenChain {
    pub fn new(hasher: &BlockHasher, keys: ExtraKeys) -> Self;
    pub fn with_capacity(hasher: &BlockHasher, keys: ExtraKeys, max_tokens: usize) -> Self;  // then pushing allocates nothing
    pub fn extend(&mut self, tokens: &[u32]);
    pub fn push(&mut self, token: u32);
    pub fn truncate(&mut self, len: usize);
    pub fn tokens(&self) -> &[u32];
    pub fn len(&self) -> usize; pub fn is_empty(&self) -> bool;
    /// One hash for each full block.
    pub fn hashes(&self) -> &[BlockHash];
    pub fn block_size(&self) -> usize;
    pub fn keys(&self) -> &ExtraKeys;
}
