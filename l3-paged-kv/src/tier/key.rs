//! Keys of chunks.

use std::fmt;
use std::str::FromStr;

use l1_tensor::DType;
use l2_model::ModelDigest;
use sha2::{Digest, Sha256};

use super::ChunkLayout;
use crate::hash::ParseHashError;
use crate::{BlockHash, GroupId};

/// Version of the layout of [`PagedKv::read_blocks`](crate::PagedKv::read_blocks) and of chunks made of it. It is part of
/// every key, so bytes of another layout are never found.
pub const EXCHANGE_LAYOUT_VERSION: u32 = 1;

/// Key of a chunk: a sha256. Displayed in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkKey(pub [u8; 32]);

/// Number formats by which keys and values are computed and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// Format in which the engine holds the weights, such as "bf16". It may differ from that of the checkpoint, which the
    /// model's digest covers.
    pub weights: String,
    /// Dtype of the activations that enter a matmul.
    pub activations: DType,
    /// Dtype of keys and values in blocks.
    pub kv: DType,
}

/// All that the bytes of a chunk depend on beside its tokens. Two engines share chunks if all of it is equal.
///
/// ```text
/// key = sha256("strata kv chunk" | layout version | model digest | adapter digest, or none
///              | format of weights | dtype of activations | dtype of keys and values
///              | block size | blocks per chunk | group | hash of the chunk's last block)
/// ```
///
/// The hash covers the tokens of the chunk and all before them, the name of the adapter, and the salt of the tenant: see
/// [`crate::hash`]. The adapter's digest is here too, because a name is no proof of contents.
///
/// What is not here is the order of sums: machines and kernels of one [`Numerics`] share chunks, whose last bits can
/// differ.
#[derive(Clone)]
pub struct KeySpace {
    /// Hash of the fields before the group.
    begun: Sha256,
}

impl KeySpace {
    /// Space of a model that is run in these number formats. `adapter` is a digest of the weights of the LoRA adapter
    /// that ran, if any.
    pub fn new(
        model: &ModelDigest,
        adapter: Option<&[u8; 32]>,
        numerics: &Numerics,
        layout: ChunkLayout,
    ) -> Self {
        let mut begun = Sha256::new();
        // exercise l3.chunk_key
        begun.update(b"strata kv chunk");
        begun.update(EXCHANGE_LAYOUT_VERSION.to_be_bytes());
        begun.update(model.0);
        begun.update([u8::from(adapter.is_some())]);
        begun.update(adapter.unwrap_or(&[0; 32]));
        let Numerics { weights, activations, kv } = numerics;
        for format in [weights, activations.as_str(), kv.as_str()] {
            begun.update((format.len() as u64).to_be_bytes());
            begun.update(format);
        }
        begun.update((layout.block_size() as u64).to_be_bytes());
        begun.update((layout.blocks() as u64).to_be_bytes());
        // end of exercise
        Self { begun }
    }

    /// Key of the chunk whose last block has this hash.
    pub fn key(&self, group: GroupId, last: &BlockHash) -> ChunkKey {
        let mut hash = self.begun.clone();
        // exercise l3.chunk_key
        hash.update(group.0.to_be_bytes());
        hash.update(last.0);
        // end of exercise
        ChunkKey(hash.finalize().into())
    }
}

impl fmt::Debug for KeySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySpace").finish_non_exhaustive()
    }
}

impl FromStr for ChunkKey {
    type Err = ParseHashError;

    fn from_str(s: &str) -> Result<Self, ParseHashError> {
        Ok(Self(s.parse::<BlockHash>()?.0))
    }
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&BlockHash(self.0), f)
    }
}

impl fmt::Debug for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
