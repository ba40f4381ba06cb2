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
    // exercise l3.header
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    header[24..CHECKSUM].copy_from_slice(&key.0);
    let sum = Sha256::new().chain_update(&header[..CHECKSUM]).chain_update(bytes).finalize();
    header[CHECKSUM..].copy_from_slice(&sum);
    // end of exercise
    header
}

/// Whether a file is that of a key, whole and undamaged.
pub(super) fn is_sound(key: &ChunkKey, head: &[u8], bytes: &[u8]) -> bool {
    // exercise l3.header
    head == header(key, bytes)
    // end of exercise
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChunkKey = ChunkKey([7; 32]);
    const BYTES: &[u8] = b"keys and values";

    #[test]
    fn a_header_is_the_one_of_the_documentation() {
        let mut want = b"STRATAKV".to_vec();
        want.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([15, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([7; 32]);
        let sum: [u8; 32] = Sha256::digest([&want, BYTES].concat()).into();
        want.extend(sum);
        assert_eq!(header(&KEY, BYTES)[..], want);
    }

    #[test]
    fn a_file_with_another_bit_anywhere_is_not_sound() {
        let head = header(&KEY, BYTES);
        assert!(is_sound(&KEY, &head, BYTES));
        for at in 0..head.len() {
            let mut damaged = head;
            damaged[at] ^= 0x10;
            assert!(!is_sound(&KEY, &damaged, BYTES), "another bit in byte {at} of the header");
        }
        for at in 0..BYTES.len() {
            let mut damaged = BYTES.to_vec();
            damaged[at] ^= 0x10;
            assert!(!is_sound(&KEY, &head, &damaged), "another bit in byte {at} of the chunk");
        }
    }

    #[test]
    fn a_file_of_another_length_is_not_sound() {
        let head = header(&KEY, BYTES);
        for len in 0..head.len() {
            assert!(!is_sound(&KEY, &head[..len], &[]), "{len} bytes of a header");
        }
        assert!(!is_sound(&KEY, &head, &[]), "no byte of the chunk");
        assert!(!is_sound(&KEY, &head, &BYTES[1..]), "a chunk without its first byte");
        assert!(!is_sound(&KEY, &head, &[BYTES, &[0]].concat()), "a byte more");
        assert!(is_sound(&KEY, &header(&KEY, &[]), &[]), "an empty chunk is a chunk");
    }

    #[test]
    fn a_file_of_another_key_is_not_sound() {
        assert!(!is_sound(&ChunkKey([8; 32]), &header(&KEY, BYTES), BYTES));
    }
}
