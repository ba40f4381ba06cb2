//! Block hashes: 32 bytes that identify what a block holds.
//!
//! The keys and values of a token depend on it and on everything before it. So a block's hash covers its
//! own tokens *and* the hash of the block before it: two blocks have the same hash only where their whole
//! prefixes are the same.
//!
//! ```text
//! none    = sha256(cbor(seed))
//! hash[i] = sha256(cbor([hash[i - 1] or none, [token, token, ...], extra keys or null]))
//! ```
//!
//! Beside tokens, two things decide what is in a block ([`ExtraKeys`]): the adapter that ran, and a
//! salt that separates tenants. The scheme is vLLM's `sha256_cbor` to the byte, so routers and shared
//! caches that know one engine know the other. 256 bits make collisions infeasible, even for an attacker
//! who chooses the prompts.

mod cbor;

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::GroupId;
use cbor::{Encoder, Sink};

/// Hash of a full block's contents and of everything before it: a sha256. Displayed and serialised in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

/// Keys beside the tokens that decide what a block holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraKeys {
    /// LoRA adapter (name, path), hashed into every block. Where adapters are reloaded in place, the path
    /// must contain a digest of the contents, so that a new adapter never hits blocks of the old one.
    pub lora: Option<(String, String)>,
    /// Cache salt: requests with different salts share no blocks. Hashed into block 0 only, which is
    /// enough: every later hash contains it through its parent.
    pub cache_salt: Option<String>,
}

/// Computes the hashes of blocks of one size, with one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockHasher {
    block_size: usize,
    none_hash: BlockHash,
}

impl BlockHasher {
    /// The seed that vLLM uses where none is set.
    pub const SEED: &'static str = "vllm-none-hash";

    /// Creates a hasher with the default seed. `block_size` (tokens per block) must be at least 1.
    pub fn new(block_size: usize) -> Self {
        Self::with_seed(block_size, Self::SEED)
    }

    /// Creates a hasher with another seed: engines with different seeds share nothing. (vLLM takes the
    /// seed from `PYTHONHASHSEED`.)
    pub fn with_seed(block_size: usize, seed: &str) -> Self {
        let mut encoder = Encoder::new(Sha256::new());
        encoder.text(seed);
        Self { none_hash: digest(encoder), block_size: block_size.max(1) }
    }

    /// Hash that stands for the parent of the first block of a sequence.
    pub fn none_hash(&self) -> BlockHash {
        self.none_hash
    }

    /// Number of tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Hashes one full block. `parent` is the hash of the block before it, `index` its index in the
    /// sequence (the salt is hashed at index 0 only). Allocates nothing.
    pub fn hash(
        &self,
        parent: Option<&BlockHash>,
        index: usize,
        tokens: &[u32],
        keys: &ExtraKeys,
    ) -> BlockHash {
        debug_assert_eq!(tokens.len(), self.block_size, "only full blocks have a hash");
        let mut encoder = Encoder::new(Sha256::new());
        self.encode(&mut encoder, parent, index, tokens, keys);
        digest(encoder)
    }

    /// Returns the CBOR bytes whose sha256 is the hash: for inspection, and to compare with another engine.
    pub fn encoded(
        &self,
        parent: Option<&BlockHash>,
        index: usize,
        tokens: &[u32],
        keys: &ExtraKeys,
    ) -> Vec<u8> {
        let mut encoder = Encoder::new(Vec::new());
        self.encode(&mut encoder, parent, index, tokens, keys);
        encoder.finish()
    }

    /// `[parent, tokens, extra keys or null]`; the keys are `["lora", name, path]`, then
    /// `["cache_salt", salt]`, those of them that there are.
    fn encode<S: Sink>(
        &self,
        out: &mut Encoder<S>,
        parent: Option<&BlockHash>,
        index: usize,
        tokens: &[u32],
        keys: &ExtraKeys,
    ) {
        // exercise l3.hash
        out.array(3);
        out.bytes(&parent.unwrap_or(&self.none_hash).0);
        out.array(tokens.len());
        for token in tokens {
            out.uint(u64::from(*token));
        }
        let salt = keys.cache_salt.as_ref().filter(|_| index == 0);
        let count = usize::from(keys.lora.is_some()) + usize::from(salt.is_some());
        if count == 0 {
            return out.null();
        }
        out.array(count);
        if let Some((name, path)) = &keys.lora {
            out.array(3);
            out.text("lora");
            out.text(name);
            out.text(path);
        }
        if let Some(salt) = salt {
            out.array(2);
            out.text("cache_salt");
            out.text(salt);
        }
        // end of exercise
    }
}

fn digest(encoder: Encoder<Sha256>) -> BlockHash {
    BlockHash(encoder.finish().finalize().into())
}

/// Returns the key of a block in a cache that several engines share. Outside this process the key must
/// also identify the model, because the block's contents depend on it: `namespace` identifies the model.
///
/// ```text
/// length of the namespace, 8 bytes | namespace | hash, 32 bytes | group, 4 bytes
/// ```
///
/// Numbers are big-endian. The last 36 bytes are the key vLLM uses within one process.
pub fn shared_key(namespace: &str, group: GroupId, hash: &BlockHash) -> Vec<u8> {
    // exercise l3.hash
    let mut key = Vec::with_capacity(8 + namespace.len() + 32 + 4);
    key.extend((namespace.len() as u64).to_be_bytes());
    key.extend(namespace.as_bytes());
    key.extend(hash.0);
    key.extend(group.0.to_be_bytes());
    key
    // end of exercise
}

impl Sink for Sha256 {
    fn put(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }
}

/// Error of parsing a [`BlockHash`]: the text is not 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a block hash is 64 hexadecimal digits, not `{0}`")]
pub struct ParseHashError(String);

impl FromStr for BlockHash {
    type Err = ParseHashError;

    fn from_str(s: &str) -> Result<Self, ParseHashError> {
        let error = || ParseHashError(s.chars().take(80).collect());
        if s.len() != 64 {
            return Err(error());
        }
        let digit = |c: u8| char::from(c).to_digit(16);
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(s.as_bytes().chunks_exact(2)) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(error());
            };
            *byte = (high << 4 | low) as u8;
        }
        Ok(Self(hash))
    }
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for BlockHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlockHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
