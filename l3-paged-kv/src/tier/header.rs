//! The header of a chunk that is kept outside of the process.
//!
//! ```text
//! "STRATAKV" | version: u32 | 0: u32 | length: u64 | key: 32 bytes | checksum: 32 bytes | `length` bytes
//! ```
//!
//! Numbers are little-endian. The checksum is the sha256 of everything but itself.

use sha2::{Digest, Sha256};

use super::ChunkKey;

/// Number of bytes before those of the chunk.
pub(super) const HEADER_BYTES: usize = 88;

const MAGIC: &[u8; 8] = b"STRATAKV";
const VERSION: u32 = 1;
/// Where the checksum begins: it covers what is before it.
const CHECKSUM: usize = HEADER_BYTES - 32;

/// Header of a file with these bytes.
pub(super) fn header(key: &ChunkKey, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    header[24..CHECKSUM].copy_from_slice(&key.0);
    let sum = Sha256::new().chain_update(&header[..CHECKSUM]).chain_update(bytes).finalize();
    header[CHECKSUM..].copy_from_slice(&sum);
    header
}

/// Whether a file is that of a key, whole and undamaged.
pub(super) fn is_sound(key: &ChunkKey, head: &[u8], bytes: &[u8]) -> bool {
    head == header(key, bytes)
}
