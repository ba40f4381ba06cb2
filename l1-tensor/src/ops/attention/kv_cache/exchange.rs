//! Blocks as bytes outside of a cache: one layout for every device.
//!
//! A cache keeps its numbers as its kernels read them: tiles on a CPU, rows of tokens on CUDA. Bytes that leave a cache,
//! to be kept in a file or sent to another process, have the *exchange layout*. It depends on the shape and the dtype
//! only. A block is
//!
//! ```text
//! keys           [block_size, heads, head_dim]    F32, BF16 or F8E4M3 codes
//! values         [block_size, heads, head_dim]
//! key scales     [block_size, heads]              8-bit caches only: one byte, the biased exponent of a power of two
//! value scales   [block_size, heads]
//! ```
//!
//! in row-major order, without padding, numbers little-endian. Several blocks lie one behind the other. On CUDA the
//! keys of a block are one run of bytes in the cache and here, and so are its values: a kernel collects the runs of all
//! blocks and of all layers, and few large copies move them. No cache there is in 8 bits.

use super::{Geometry, KvCache, TILE};
use crate::{DType, Device, Error, Result};

impl KvCache {
    /// Number of bytes of a block in the exchange layout: see [`KvCache::read_blocks`].
    pub fn exchange_bytes(&self) -> usize {
        2 * self.block_size * self.heads * (self.head_dim() * self.dtype().size() + self.scale())
    }

    /// Number of bytes of a token's scale.
    fn scale(&self) -> usize {
        usize::from(self.dtype() == DType::F8E4M3)
    }

    /// Copies blocks into `out`, one behind the other, in the exchange layout: keys `[block_size, heads, head_dim]`, then
    /// values, in the cache's dtype, little-endian; in 8-bit caches a byte of scale for each token and head follows, those
    /// of the keys first. The bytes are the same on every device. On CUDA it waits for the device.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a block beyond the pool; [`Error::BadParameter`] when `out` has not
    /// [`KvCache::exchange_bytes`] bytes for each block; [`Error::Cuda`].
    pub fn read_blocks(&self, blocks: &[u32], out: &mut [u8]) -> Result<()> {
        const OP: &str = "kv_read_blocks";
        self.check_exchange(OP, blocks, out.len())?;
        if let Device::Cuda(_) = self.device() {
            return Self::read_from_cuda(OP, [(self, 0)], blocks, out);
        }
        for (block, out) in blocks.iter().zip(out.chunks_exact_mut(self.exchange_bytes().max(1))) {
            let [keys, values, scales] = self.parts_mut(out);
            self.read_tiles(*block, keys, values, scales);
        }
        Ok(())
    }

    /// Copies bytes in the exchange layout into blocks: the inverse of [`KvCache::read_blocks`]. Every slot of each block
    /// is written, and no other one. Of a block that occurs twice, the last bytes stay.
    ///
    /// The bytes are not inspected. A scale or a number that no cache would store gives wrong attention, not a wrong
    /// access to memory.
    ///
    /// # Errors
    /// As for [`KvCache::read_blocks`], before anything is written; [`Error::Cuda`] in the middle of it.
    pub fn write_blocks(&mut self, blocks: &[u32], bytes: &[u8]) -> Result<()> {
        const OP: &str = "kv_write_blocks";
        self.check_exchange(OP, blocks, bytes.len())?;
        if let Device::Cuda(_) = self.device() {
            return Self::write_to_cuda(OP, [(self, 0)], blocks, bytes);
        }
        let size = self.exchange_bytes().max(1);
        for (block, bytes) in blocks.iter().zip(bytes.chunks_exact(size)) {
            let (keys, rest) = bytes.split_at(self.row_bytes() * self.block_size);
            let (values, scales) = rest.split_at(keys.len());
            self.write_tiles(*block, keys, values, scales);
        }
        Ok(())
    }

    /// Copies blocks of all layers of a model into `out`, one layer behind the other, each as [`KvCache::read_blocks`]
    /// does. `None` is a layer without attention, of which there are no bytes. On CUDA it waits for the device once.
    ///
    /// # Errors
    /// As for [`KvCache::read_blocks`]; `out` has [`KvCache::exchange_bytes`] bytes of each layer for each block.
    pub fn read_layers(layers: &[Option<KvCache>], blocks: &[u32], out: &mut [u8]) -> Result<()> {
        const OP: &str = "kv_read_layers";
        let caches = layers.iter().flatten();
        check_layers(OP, caches.clone(), blocks, blocks.len(), out.len())?;
        let mut end = 0;
        let mut places = caches.map(|cache| {
            let start = end;
            end += blocks.len() * cache.exchange_bytes();
            (cache, start)
        });
        if on_cuda(layers) {
            return Self::read_from_cuda(OP, places, blocks, out);
        }
        places.try_for_each(|(cache, start)| {
            let len = blocks.len() * cache.exchange_bytes();
            cache.read_blocks(blocks, &mut out[start..][..len])
        })
    }

    /// Copies bytes into blocks of all layers: the inverse of [`KvCache::read_layers`]. `bytes` has `of` blocks of each
    /// layer, of which those from `first` on are written, as many as `blocks` has.
    ///
    /// # Errors
    /// As for [`KvCache::write_blocks`]; [`Error::BadParameter`] when there are no such blocks in `bytes`.
    pub fn write_layers(
        layers: &mut [Option<KvCache>],
        blocks: &[u32],
        (first, of): (usize, usize),
        bytes: &[u8],
    ) -> Result<()> {
        const OP: &str = "kv_write_layers";
        if first.checked_add(blocks.len()).is_none_or(|end| end > of) {
            let why = format!("{} blocks from block {first} on of {of}", blocks.len());
            return Err(Error::BadParameter { op: OP, why });
        }
        check_layers(OP, layers.iter().flatten(), blocks, of, bytes.len())?;
        let cuda = on_cuda(layers);
        let mut end = 0;
        let mut places = layers.iter_mut().flatten().map(|cache| {
            let start = end + first * cache.exchange_bytes();
            end += of * cache.exchange_bytes();
            (cache, start)
        });
        if cuda {
            return Self::write_to_cuda(OP, places, blocks, bytes);
        }
        places.try_for_each(|(cache, start)| {
            let len = blocks.len() * cache.exchange_bytes();
            cache.write_blocks(blocks, &bytes[start..][..len])
        })
    }

    fn check_exchange(&self, op: &'static str, blocks: &[u32], bytes: usize) -> Result<()> {
        self.check_blocks(op, blocks)?;
        let one = self.exchange_bytes();
        if blocks.len().checked_mul(one) == Some(bytes) {
            return Ok(());
        }
        let n = blocks.len();
        let why = format!("{n} blocks of {one} bytes are {} bytes, not {bytes}", n * one);
        Err(Error::BadParameter { op, why })
    }

    /// Number of bytes of the keys, or of the values, of one token.
    fn row_bytes(&self) -> usize {
        self.heads * self.head_dim() * self.dtype().size()
    }

    /// Keys, values and scales of a block's bytes.
    fn parts_mut<'a>(&self, bytes: &'a mut [u8]) -> [&'a mut [u8]; 3] {
        let (keys, rest) = bytes.split_at_mut(self.row_bytes() * self.block_size);
        let (values, scales) = rest.split_at_mut(keys.len());
        [keys, values, scales]
    }

    /// Tiles and positions of the token heads of a block, in the order of the exchange layout: index of the head's part of
    /// a tile, and position there.
    fn places(&self, block: u32) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (first, heads) = (block as usize * self.block_size, self.heads);
        let slots = first..first + self.block_size;
        slots.flat_map(move |slot| (0..heads).map(move |h| (slot / TILE * heads + h, slot % TILE)))
    }

    fn read_tiles(&self, block: u32, keys: &mut [u8], values: &mut [u8], scales: &mut [u8]) {
        let (g, head) = (self.geometry, (self.head_dim() * self.dtype().size()).max(1));
        let (k, v, bytes) = (self.k.raw(), self.v.raw(), g.tile_bytes());
        let rows = keys.chunks_exact_mut(head).zip(values.chunks_exact_mut(head));
        for ((part, i), (key, value)) in self.places(block).zip(rows) {
            g.read_key(&k[part * bytes..][..bytes], i, key);
            g.read_value(&v[part * bytes..][..bytes], i, value);
        }
        let (of_keys, of_values) = scales.split_at_mut(scales.len() / 2);
        let stored = self.scales.raw();
        for ((part, i), (key, value)) in self.places(block).zip(of_keys.iter_mut().zip(of_values)) {
            *key = stored[2 * part * TILE + i];
            *value = stored[(2 * part + 1) * TILE + i];
        }
    }

    fn write_tiles(&mut self, block: u32, keys: &[u8], values: &[u8], scales: &[u8]) {
        let (g, head) = (self.geometry, (self.head_dim() * self.dtype().size()).max(1));
        let (places, bytes) = (self.places(block), g.tile_bytes());
        let rows = keys.chunks_exact(head).zip(values.chunks_exact(head));
        let (k, v) = (self.k.raw_mut(), self.v.raw_mut());
        for ((part, i), (key, value)) in places.zip(rows) {
            g.write_key(&mut k[part * bytes..][..bytes], i, key);
            g.write_value(&mut v[part * bytes..][..bytes], i, value);
        }
        let (of_keys, of_values) = scales.split_at(scales.len() / 2);
        let (places, stored) = (self.places(block), self.scales.raw_mut());
        for ((part, i), (key, value)) in places.zip(of_keys.iter().zip(of_values)) {
            stored[2 * part * TILE + i] = *key;
            stored[(2 * part + 1) * TILE + i] = *value;
        }
    }
}

/// Whether a model's caches are on CUDA. All are on one device.
fn on_cuda(layers: &[Option<KvCache>]) -> bool {
    layers.iter().flatten().next().is_some_and(|cache| matches!(cache.device(), Device::Cuda(_)))
}

/// Checks that all caches have these blocks, and that so many bytes are `of` blocks of each.
fn check_layers<'a>(
    op: &'static str,
    caches: impl Iterator<Item = &'a KvCache>,
    blocks: &[u32],
    of: usize,
    bytes: usize,
) -> Result<()> {
    let mut one = 0;
    for cache in caches {
        cache.check_blocks(op, blocks)?;
        one += cache.exchange_bytes();
    }
    if of.checked_mul(one) == Some(bytes) {
        return Ok(());
    }
    let why = format!("{of} blocks of {one} bytes in all layers are not {bytes} bytes");
    Err(Error::BadParameter { op, why })
}

/// One head of one token: `head_dim` elements here, a column of a key tile or a row of a value tile there.
impl Geometry {
    fn read_key(self, tile: &[u8], i: usize, out: &mut [u8]) {
        match self.word() {
            2 => read_column::<2>(tile, i, out),
            _ => read_column::<4>(tile, i, out),
        }
    }

    fn write_key(self, tile: &mut [u8], i: usize, key: &[u8]) {
        match self.word() {
            2 => write_column::<2>(tile, i, key),
            _ => write_column::<4>(tile, i, key),
        }
    }

    fn read_value(self, tile: &[u8], i: usize, out: &mut [u8]) {
        let row = &tile[self.value_rows(i, 1)];
        match (self.per_word(), self.dtype.size()) {
            (1, _) => out.copy_from_slice(&row[..out.len()]),
            (_, 2) => read_half::<2>(row, i % 2, out),
            _ => read_half::<1>(row, i % 2, out),
        }
    }

    fn write_value(self, tile: &mut [u8], i: usize, value: &[u8]) {
        let row = &mut tile[self.value_rows(i, 1)];
        match (self.per_word(), self.dtype.size()) {
            (1, _) => row[..value.len()].copy_from_slice(value),
            (_, 2) => write_half::<2>(row, i % 2, value),
            _ => write_half::<1>(row, i % 2, value),
        }
    }
}

/// Copies column `i` of a tile of words of `N` bytes. Of the last word of an odd dimension, the first element only.
fn read_column<const N: usize>(tile: &[u8], i: usize, out: &mut [u8]) {
    let column = tile.as_chunks::<N>().0.iter().skip(i).step_by(TILE);
    for (out, word) in out.chunks_mut(N).zip(column) {
        match out.first_chunk_mut::<N>() {
            Some(out) => *out = *word,
            None => out.copy_from_slice(&word[..out.len()]),
        }
    }
}

fn write_column<const N: usize>(tile: &mut [u8], i: usize, key: &[u8]) {
    let column = tile.as_chunks_mut::<N>().0.iter_mut().skip(i).step_by(TILE);
    for (key, word) in key.chunks(N).zip(column) {
        match key.first_chunk::<N>() {
            Some(key) => *word = *key,
            None => word[..key.len()].copy_from_slice(key),
        }
    }
}

/// Copies one of the two tokens of a row of values, elements of `N` bytes.
fn read_half<const N: usize>(row: &[u8], half: usize, out: &mut [u8]) {
    let elements = row.as_chunks::<N>().0.iter().skip(half).step_by(2);
    out.as_chunks_mut::<N>().0.iter_mut().zip(elements).for_each(|(out, x)| *out = *x);
}

fn write_half<const N: usize>(row: &mut [u8], half: usize, value: &[u8]) {
    let elements = row.as_chunks_mut::<N>().0.iter_mut().skip(half).step_by(2);
    elements.zip(value.as_chunks::<N>().0).for_each(|(to, x)| *to = *x);
}
