//! Blocks of caches as bytes on the host.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::exchange::{Host, Run, exchange};
use crate::{Gpu, Kv, KvMut, KvShape};

/// Keys and values of a cache, and the first byte on the host that is theirs.
struct Layer {
    halves: [u64; 2],
    /// Number of bytes of a block's keys, and of its values.
    run: usize,
    host: usize,
}

impl Layer {
    /// Checks that the cache has these blocks, and the host as many bytes.
    fn new(
        op: &'static str,
        (shape, halves): (KvShape, [u64; 2]),
        blocks: &[u32],
        host: usize,
        len: usize,
    ) -> Result<Self> {
        if let Some(block) = blocks.iter().find(|block| **block as usize >= shape.blocks) {
            return Err(Error::shape(op, format!("block {block} of {} blocks", shape.blocks)));
        }
        let run = shape.block_size * shape.heads * shape.dim * shape.dtype.size();
        let end = blocks.len().checked_mul(2 * run).and_then(|bytes| host.checked_add(bytes));
        if end.is_none_or(|end| end > len) {
            let n = blocks.len();
            let why = format!("{n} blocks of {} bytes at {host} of {len}", 2 * run);
            return Err(Error::shape(op, why));
        }
        Ok(Self { halves, run, host })
    }

    /// Keys and values of block `block`, the `nth` on the host.
    fn runs(&self, nth: usize, block: u32) -> [Run; 2] {
        let (at, bytes) = ((block as usize * self.run) as u64, self.run);
        let host = self.host + nth * 2 * bytes;
        let [k, v] = self.halves;
        [Run { at: k + at, host, bytes }, Run { at: v + at, host: host + bytes, bytes }]
    }
}

/// Copies blocks of caches to the host and waits once: of each cache, to the bytes from its number on, the keys
/// `[block_size, heads, dim]` of the first block, its values, the keys of the second block, and so on. Bytes of `out`
/// that belong to no cache are not written.
///
/// # Errors
/// [`Error::Shape`] for a block that a cache does not have, and for bytes beyond `out`: nothing was copied. Errors of
/// the driver.
pub fn read_blocks<'a>(
    gpu: &Arc<Gpu>,
    caches: impl IntoIterator<Item = (Kv<'a>, usize)>,
    blocks: &[u32],
    out: &mut [u8],
) -> Result<()> {
    let layers = caches.into_iter().map(|(cache, host)| {
        let cache = (cache.shape, [cache.k, cache.v]);
        Layer::new("read_blocks", cache, blocks, host, out.len())
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let runs = layers.iter().flat_map(|layer| {
        blocks.iter().enumerate().flat_map(|(nth, block)| layer.runs(nth, *block))
    });
    // SAFETY: the caches are borrowed until this function returns, and have these blocks.
    unsafe { exchange(gpu, Host::To(out), runs) }
}

/// Copies bytes to blocks of caches and waits once: the inverse of [`read_blocks`]. If a block occurs twice, its last
/// bytes are there in the end.
///
/// # Errors
/// As [`read_blocks`].
pub fn write_blocks<'a>(
    gpu: &Arc<Gpu>,
    caches: impl IntoIterator<Item = (KvMut<'a>, usize)>,
    blocks: &[u32],
    bytes: &[u8],
) -> Result<()> {
    let layers = caches.into_iter().map(|(cache, host)| {
        let cache = (cache.shape, [cache.k, cache.v]);
        Layer::new("write_blocks", cache, blocks, host, bytes.len())
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let targets = last_of_each(blocks);
    let runs = layers
        .iter()
        .flat_map(|layer| targets.iter().flat_map(|(nth, block)| layer.runs(*nth, *block)));
    // SAFETY: as in `read_blocks`, and borrowed for writing.
    unsafe { exchange(gpu, Host::From(bytes), runs) }
}

/// Blocks with their indices, in order; of a block that occurs twice, the last one. The parts of a kernel have no
/// order, so two of them must not write the same bytes.
fn last_of_each(blocks: &[u32]) -> Vec<(usize, u32)> {
    let mut all: Vec<_> = blocks.iter().copied().enumerate().collect();
    all.sort_unstable_by_key(|&(nth, block)| (block, std::cmp::Reverse(nth)));
    all.dedup_by_key(|&mut (_, block)| block);
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_blocks_the_last_is_kept_in_the_order_of_the_host() {
        assert_eq!(last_of_each(&[]), []);
        assert_eq!(last_of_each(&[4, 1, 9]), [(0, 4), (1, 1), (2, 9)]);
        assert_eq!(last_of_each(&[7, 2, 7, 5, 2, 7]), [(3, 5), (4, 2), (5, 7)]);
    }
}
