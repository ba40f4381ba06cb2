//! Storage of keys and values: a pool of blocks, for one layer.
//!
//! A block is an index and `block_size` slots for tokens. Its owner decides which blocks belong to a
//! sequence, and in which order (paged attention, Kwon et al. 2023). The index of a token in the pool is its
//! *slot*: `block * block_size + offset`.
//!
//! Beneath the blocks lie *tiles* of sixteen slots, whose layout is made for the kernel that reads them.
//! Scores of sixteen keys against one query are sixteen dot products side by side, so a key tile holds its
//! sixteen keys as *columns*: word `w` of all sixteen keys, then word `w + 1`. (A word is one f32 or two
//! bf16, see `cpu::simd`.) The weighted sum of values runs along tokens, so a value tile holds one row of
//! words per token, or per two tokens for bf16, whose halves are those two tokens.
//!
//! ```text
//! key tile    [D / P][16 tokens][P]    P = 1 for f32, 2 for bf16
//! value tile  [16 / P][D'][P]          D' = D rounded up to 16
//! pool        [tile][kv head][words of one tile]
//! ```
//!
//! Slot `s` is position `s % 16` of tile `s / 16`. So a block is a power-of-two part of a tile, or a run of
//! whole tiles.
//!
//! # Eight bits
//!
//! With [`DType::F8E4M3`] the layout is that of bf16 with bytes for elements, beside one scale for
//! each token and KV head, keys and values apart: the smallest power of two that brings the largest
//! magnitude to 448 or less. Codes times scale are exact in bf16, so a tile is widened when it is read
//! and the bf16 kernel does the rest. What is stored of `x` is within
//!
//! ```text
//! max(2^-4 |x|, 2^-10 scale)      2^-10 scale < 2^-17.8 of the head's largest magnitude
//! ```
//!
//! of it: half an ulp of three mantissa bits, or of the smallest codes. (The scale is at least
//! `2^-117`: a head whose largest magnitude is below `2^-109` is as good as zero.) A NaN stays a NaN.
//! An infinity, which E4M3 has not, becomes the largest number the scale of its finite neighbours
//! can say.

mod copy;
mod exchange;
mod gather;
mod places;
mod store;
mod store_fp8;

use std::ops::Range;

use crate::cpu::attention::Pool;
use crate::{
    DType, Device, Error, Index, Layout, OpKind, Result, Runtime, Tensor, TensorRef, Work,
};
pub(crate) use places::Geometry;

/// Tokens in a tile.
pub const TILE: usize = 16;

/// From so many elements of keys on, threads share the heads of a write. That is fewer than for other ops, since a key is
/// scattered over its tile: two threads make a step of 32 sequences of SmolLM2 4% faster (two cores of a Xeon).
const PARALLEL_WRITE: usize = 4 * 1024;

/// Keys and values of one layer, for many sequences.
pub struct KvCache {
    k: Tensor,
    v: Tensor,
    /// `[tile][kv head][keys, values][16]`, in 8-bit caches.
    scales: Tensor,
    blocks: usize,
    block_size: usize,
    heads: usize,
    geometry: Geometry,
}

impl KvCache {
    /// Creates a pool for `blocks * block_size` tokens of `heads` KV heads. `block_size` is a power of two or
    /// a multiple of 16, `dtype` F32, BF16 or F8E4M3. Memory is zeroed; most systems allocate its pages on
    /// the first write.
    ///
    /// # Errors
    /// [`Error::BadParameter`] for another block size or dtype or more blocks than a table of `i32`
    /// can name, [`Error::OutOfMemory`].
    pub fn new(
        blocks: usize,
        block_size: usize,
        heads: usize,
        head_dim: usize,
        dtype: DType,
    ) -> Result<Self> {
        Self::on(Device::Cpu, blocks, block_size, heads, head_dim, dtype)
    }

    /// [`KvCache::new`] in the memory of a device. On CUDA there are no tiles: keys and values are `[blocks,
    /// block_size, heads, head_dim]` each, and F32 or BF16.
    ///
    /// # Errors
    /// As [`KvCache::new`]; [`Error::BadParameter`] for 8-bit keys and values on CUDA; [`Error::Cuda`].
    pub fn on(
        device: Device,
        blocks: usize,
        block_size: usize,
        heads: usize,
        head_dim: usize,
        dtype: DType,
    ) -> Result<Self> {
        let refuse = |why| Err(Error::BadParameter { op: "kv_cache", why });
        if !matches!(dtype, DType::F32 | DType::BF16 | DType::F8E4M3) {
            return refuse(format!("keys and values are F32, BF16 or F8E4M3, not {dtype}"));
        }
        if block_size == 0 || !(block_size.is_power_of_two() || block_size.is_multiple_of(TILE)) {
            return refuse(format!(
                "a block of {block_size} tokens: choose a power of two or a multiple of {TILE}"
            ));
        }
        let slots = blocks.checked_mul(block_size).filter(|_| i32::try_from(blocks).is_ok());
        let Some(slots) = slots else {
            return refuse(format!("{blocks} blocks do not fit a table of 32-bit indices"));
        };
        if device != Device::Cpu && dtype == DType::F8E4M3 {
            return refuse(format!("no {dtype} keys and values on {device} yet: use bf16 there"));
        }
        let geometry = Geometry { head_dim, dtype };
        let tiles = slots.div_ceil(TILE);
        let (pool, scales) = match device {
            Device::Cpu => {
                let scales = [tiles, heads, geometry.scale_bytes(), 1];
                ([tiles, heads, geometry.elems(), 1], scales)
            }
            Device::Cuda(_) => ([blocks, block_size, heads, head_dim], [0; 4]),
        };
        let rank = if device == Device::Cpu { 3 } else { 4 };
        let zeros = |shape: [usize; 4], dtype, device| Tensor::zeros(&shape[..rank], dtype, device);
        Ok(Self {
            k: zeros(pool, dtype, device)?,
            v: zeros(pool, dtype, device)?,
            scales: zeros(scales, DType::U8, Device::Cpu)?,
            blocks,
            block_size,
            heads,
            geometry,
        })
    }

    /// Number of blocks in the pool.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of tokens in a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Number of KV heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Number of elements of one head.
    pub fn head_dim(&self) -> usize {
        self.geometry.head_dim
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.geometry.dtype
    }

    /// Device of the pool.
    pub fn device(&self) -> Device {
        self.k.device()
    }

    /// Number of bytes of keys and values in one block, all heads, scales included.
    pub fn block_bytes(&self) -> usize {
        if self.device() != Device::Cpu {
            return 2 * self.block_size * self.heads * self.head_dim() * self.dtype().size();
        }
        let part = 2 * self.geometry.tile_bytes() + self.geometry.scale_bytes();
        // A tile's bytes are sixteen times those of a token, so this divides.
        self.heads * part * self.block_size / TILE
    }

    /// Number of bytes of keys and values of one token, all heads.
    pub(super) fn token_bytes(&self) -> usize {
        self.block_bytes() / self.block_size
    }

    /// Number of bytes of the pool.
    pub fn bytes(&self) -> usize {
        self.k.bytes() + self.v.bytes() + self.scales.bytes()
    }

    /// Keys and values.
    pub(crate) fn stored(&self) -> [&Tensor; 2] {
        [&self.k, &self.v]
    }

    /// Keys and values for writing.
    pub(crate) fn stored_mut(&mut self) -> [&mut Tensor; 2] {
        [&mut self.k, &mut self.v]
    }

    /// Rejects a cache on a device, in the name of an op that runs on the CPU.
    pub(super) fn on_host(&self, op: &'static str) -> Result<()> {
        self.k.storage().on_host(op)
    }

    /// View for the kernel.
    pub(super) fn pool(&self) -> Pool<'_> {
        Pool {
            k: self.k.raw(),
            v: self.v.raw(),
            scales: self.scales.raw(),
            block_size: self.block_size,
            heads: self.heads,
            geometry: self.geometry,
        }
    }

    /// Index of a table's entry, if there is such a block.
    pub(super) fn block(&self, entry: i32) -> Option<usize> {
        usize::try_from(entry).ok().filter(|b| *b < self.blocks)
    }

    /// Number of positions of a tile that a block owns.
    fn span(&self) -> usize {
        self.block_size.min(TILE)
    }

    fn check_blocks(&self, op: &'static str, blocks: &[u32]) -> Result<()> {
        let Some(bad) = blocks.iter().find(|b| **b as usize >= self.blocks) else { return Ok(()) };
        Err(Error::OutOfRange { op, what: "block", index: i64::from(*bad), limit: self.blocks })
    }

    /// Stores keys and values `[T, heads, head_dim]` (f32; rounded here to the cache's dtype) at `slots[T]`.
    /// A slot of -1 writes nothing. The first token of a block clears the block's positions in its tile, and
    /// the first of every further tile clears that tile: values of an earlier owner never enter a sum, not
    /// even as `0 * NaN`. Other blocks in the tile are unchanged.
    ///
    /// # Errors
    /// A shape that does not fit, or a slot beyond the pool.
    pub fn write<'a>(
        &mut self,
        rt: &Runtime,
        slots: impl Into<Index<'a, i64>>,
        k: TensorRef,
        v: TensorRef,
    ) -> Result<()> {
        const OP: &str = "kv_write";
        let index = slots.into();
        let slots = index.host;
        let _timed = rt.time(|| {
            let tokens = slots.iter().filter(|slot| **slot >= 0).count();
            (OpKind::KvWrite, Work::moved(tokens * self.token_bytes()))
        });
        let (heads, dim) = (self.heads, self.geometry.head_dim);
        for x in [&k, &v] {
            if *x.layout().dims() != [slots.len(), heads, dim] {
                return Err(Error::ShapeMismatch {
                    op: OP,
                    why: "keys and values are [tokens, kv heads, head dim]",
                    lhs: *x.layout(),
                    rhs: *self.k.layout(),
                });
            }
            let dense = dim <= 1 || x.layout().strides()[2] == 1;
            if !dense {
                let why = "needs a dense head dimension";
                return Err(Error::UnsupportedLayout { op: OP, why, layout: *x.layout() });
            }
        }
        let limit = self.blocks * self.block_size;
        if let Some(bad) = slots.iter().find(|s| **s >= limit as i64 || **s < -1) {
            return Err(Error::OutOfRange { op: OP, what: "slot", index: *bad, limit });
        }
        if let Some(gpu) = rt.gpu() {
            return self.write_on_cuda(OP, gpu, index, k, v);
        }
        self.on_host(OP)?;
        let rows = (k.strided::<f32>(OP)?, v.strided::<f32>(OP)?);
        let layouts = (*k.layout(), *v.layout());
        let (isa, span, g) = (rt.isa(), self.span(), self.geometry);
        let (bytes, scale_bytes) = (g.tile_bytes(), g.scale_bytes());
        let k_out = SendPtr(self.k.raw_mut().as_mut_ptr());
        let v_out = SendPtr(self.v.raw_mut().as_mut_ptr());
        let scales_out = SendPtr(self.scales.raw_mut().as_mut_ptr());
        let one_head = |h: usize, _worker: usize| {
            let (k_out, v_out, scales_out) = (&k_out, &v_out, &scales_out);
            for (t, slot) in slots.iter().enumerate() {
                let Ok(slot) = usize::try_from(*slot) else { continue };
                let (part, i) = ((slot / TILE) * heads + h, slot % TILE);
                let k = row(rows.0, &layouts.0, t, h);
                let v = row(rows.1, &layouts.1, t, h);
                // SAFETY: the slot was checked against the pool; each head has words of its own, so
                // threads write disjoint memory. Tiles are whole words, in 64-byte aligned storage.
                unsafe {
                    let (k_at, v_at) = (k_out.0.add(part * bytes), v_out.0.add(part * bytes));
                    if g.dtype == DType::F8E4M3 {
                        let k_tile = std::slice::from_raw_parts_mut(k_at, bytes);
                        let v_tile = std::slice::from_raw_parts_mut(v_at, bytes);
                        let at = scales_out.0.add(part * scale_bytes);
                        let scales = std::slice::from_raw_parts_mut(at, scale_bytes);
                        store_fp8::store_token(isa, g, span, k_tile, v_tile, scales, i, k, v);
                    } else {
                        let k_tile = std::slice::from_raw_parts_mut(k_at.cast(), bytes / 4);
                        let v_tile = std::slice::from_raw_parts_mut(v_at.cast(), bytes / 4);
                        let bf16 = g.dtype == DType::BF16;
                        store::store_token(isa, bf16, span, k_tile, v_tile, i, k, v);
                    }
                }
            }
        };
        if slots.len() * heads * dim < PARALLEL_WRITE {
            (0..heads).for_each(|h| one_head(h, 0));
        } else {
            rt.pool().run(heads, &one_head);
        }
        Ok(())
    }

    /// Clears positions of a tile, all heads.
    fn clear_places(&mut self, tile: usize, places: Range<usize>) {
        let g = self.geometry;
        let bytes = g.tile_bytes();
        for part in tile * self.heads..(tile + 1) * self.heads {
            let k = &mut self.k.raw_mut()[part * bytes..][..bytes];
            let v = &mut self.v.raw_mut()[part * bytes..][..bytes];
            if g.dtype == DType::F8E4M3 {
                g.clear_keys(k, places.clone());
                g.clear_values(v, places.clone());
            } else {
                store::clear_places(
                    as_words(k),
                    as_words(v),
                    g.padded(),
                    g.per_word(),
                    places.clone(),
                );
            }
        }
    }
}

/// Stores one token's head.
fn row<'a>(x: &'a [f32], layout: &Layout, token: usize, head: usize) -> &'a [f32] {
    let start = token * layout.strides()[0] + head * layout.strides()[1];
    &x[start..][..layout.dims()[2]]
}

struct SendPtr(*mut u8);
// SAFETY: threads write disjoint bytes through it (one head each).
unsafe impl Sync for SendPtr {}

fn as_words(bytes: &mut [u8]) -> &mut [u32] {
    // SAFETY: tiles of f32 and bf16 are multiples of 64 bytes in 64-byte aligned storage, and any
    // bits are a valid u32.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / 4) }
}

#[cfg(test)]
mod tests;
