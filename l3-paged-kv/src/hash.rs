//! Block hashes: sha256 over canonical CBOR of (parent hash, token ids, extra keys); vLLM's `sha256_cbor`.
//! (dir hash/cbor.rs: the few CBOR forms that occur.)

/// sha256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);   // Debug/Display: hex; serde: hex string

/// What beside tokens decides what a block holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraKeys {
    /// Adapter (name, path): hashed into every block. The path may carry a content digest.
    pub lora: Option<(String, String)>,
    /// Hashed into block 0 only, which is enough: every later hash contains it through its parent.
    pub cache_salt: Option<String>,
}

/// Hashes blocks of one size under one seed.
#[derive(Clone, Debug)]
pub struct BlockHasher { /* none_hash, block_size */ }

impl BlockHasher {
    pub const SEED: &'static str = "vllm-none-hash";
    pub fn new(block_size: usize) -> Self;                       // default seed
    pub fn with_seed(block_size: usize, seed: &str) -> Self;     // PYTHONHASHSEED's role
    pub fn none_hash(&self) -> BlockHash;
    pub fn block_size(&self) -> usize;
    /// Hash of one full block; `index` is its place in the sequence (the salt counts at 0 only).
    pub fn hash(&self, parent: Option<&BlockHash>, index: usize, tokens: &[u32], keys: &ExtraKeys) -> BlockHash;
}
// pub fn shared_key(namespace: &str, group: GroupId, hash: &BlockHash) -> Vec<u8>: key of a shared cache: length-prefixed namespace (the specialist), hash, 4-byte big-endian group id
