//! Where keys and values wait: a pool of tiles, sixteen tokens each, for one layer.
//!
//! The layout serves the kernel that reads it. Scores of sixteen keys against one query are
//! sixteen dot products side by side, so a key tile holds its sixteen keys as *columns*: word `w`
//! of all sixteen keys, then word `w + 1`. (A word is one f32 or two bf16, see
//! `cpu::simd`.) The weighted sum of values runs along tokens, so a value tile holds one row of
//! words per token, or per two tokens for bf16, whose halves are those two tokens.
//!
//! ```text
//! key tile    [D / P][16 tokens][P]    P = 1 for f32, 2 for bf16
//! value tile  [16 / P][D'][P]          D' = D rounded up to 16
//! pool        [tile][kv head][words of one tile]
//! ```
//!
//! Slot `16 t + i` is place `i` of tile `t`. Which tiles belong to a sequence, in which order, is
//! its owner's business: a contiguous cache hands out runs of tiles, a paged one any tiles at all.

use crate::cpu::lanes::{dispatch, round_bf16};
use crate::{DType, Device, Error, Result, Runtime, Tensor, TensorRef};

/// Tokens in a tile.
pub const TILE: usize = 16;

/// Keys and values of one layer, for many sequences.
pub struct KvCache {
    k: Tensor,
    v: Tensor,
    tiles: usize,
    heads: usize,
    head_dim: usize,
    dtype: DType,
}

impl KvCache {
    /// Room for `tiles * 16` tokens of `heads` KV heads. `dtype` is F32 or BF16. Memory is zeroed
    /// and, on most systems, not taken until it is written.
    ///
    /// # Errors
    /// [`Error::UnexpectedDType`]-like parameter errors, or no memory.
    pub fn new(tiles: usize, heads: usize, head_dim: usize, dtype: DType) -> Result<Self> {
        if !matches!(dtype, DType::F32 | DType::BF16) {
            return Err(Error::BadParameter {
                op: "kv_cache",
                why: format!("keys and values are F32 or BF16, not {dtype}"),
            });
        }
        if tiles > u32::MAX as usize {
            let why = format!("{tiles} tiles do not fit a table of 32-bit indices");
            return Err(Error::BadParameter { op: "kv_cache", why });
        }
        let shape = [tiles, heads, tile_elems(head_dim)];
        let zeros = || Tensor::zeros(&shape, dtype, Device::Cpu);
        Ok(Self { k: zeros()?, v: zeros()?, tiles, heads, head_dim, dtype })
    }

    /// Tiles in the pool.
    pub fn tiles(&self) -> usize {
        self.tiles
    }

    /// KV heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Elements of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of keys and values in one tile, all heads.
    pub fn tile_bytes(&self) -> usize {
        2 * self.heads * tile_elems(self.head_dim) * self.dtype.size()
    }

    pub(super) fn words(&self) -> (&[u32], &[u32]) {
        // Both dtypes are viewed as 32-bit words; the storage is 64-byte aligned.
        (as_words(&self.k), as_words(&self.v))
    }

    /// Store keys and values `[T, heads, head_dim]` (f32; rounded here if the cache is bf16) at
    /// `slots[T]`. A slot of -1 writes nothing. The first token of a tile clears the tile: what an
    /// earlier owner left there can never leak into a sum, not even as `0 * NaN`.
    ///
    /// # Errors
    /// A shape that does not fit, or a slot beyond the pool.
    pub fn write(&mut self, rt: &Runtime, slots: &[i64], k: TensorRef, v: TensorRef) -> Result<()> {
        const OP: &str = "kv_write";
        for x in [&k, &v] {
            if *x.layout().dims() != [slots.len(), self.heads, self.head_dim] {
                return Err(Error::ShapeMismatch {
                    op: OP,
                    why: "keys and values are [tokens, kv heads, head dim]",
                    lhs: *x.layout(),
                    rhs: *self.k.layout(),
                });
            }
            let dense = self.head_dim <= 1 || x.layout().strides()[2] == 1;
            if !dense {
                let why = "needs a dense head dimension";
                return Err(Error::UnsupportedLayout { op: OP, why, layout: *x.layout() });
            }
        }
        let limit = self.tiles * TILE;
        if let Some(bad) = slots.iter().find(|s| **s >= limit as i64 || **s < -1) {
            return Err(Error::OutOfRange { op: OP, what: "slot", index: *bad, limit });
        }
        let (ks, vs) = (k.strided::<f32>(OP)?, v.strided::<f32>(OP)?);
        let (kst, vst) = (*k.layout(), *v.layout());
        let (heads, dim, elems) = (self.heads, self.head_dim, tile_elems(self.head_dim));
        let (isa, bf16) = (rt.isa(), self.dtype == DType::BF16);
        let k_out = SendPtr(as_words_mut(&mut self.k).as_mut_ptr());
        let v_out = SendPtr(as_words_mut(&mut self.v).as_mut_ptr());
        let words = elems * self.dtype.size() / 4;
        let one_head = |h: usize, _worker: usize| {
            let (k_out, v_out) = (&k_out, &v_out);
            for (t, slot) in slots.iter().enumerate() {
                let Ok(slot) = usize::try_from(*slot) else { continue };
                let at = ((slot / TILE) * heads + h) * words;
                let row = |x: &'_ [f32], l: &crate::Layout| {
                    let start = t * l.strides()[0] + h * l.strides()[1];
                    x.as_ptr().wrapping_add(start)
                };
                // SAFETY: the slot was checked against the pool, the row against the layout; each
                // head has words of its own, so threads write disjoint memory.
                unsafe {
                    let k_row = std::slice::from_raw_parts(row(ks, &kst), dim);
                    let v_row = std::slice::from_raw_parts(row(vs, &vst), dim);
                    let k_tile = std::slice::from_raw_parts_mut(k_out.0.add(at), words);
                    let v_tile = std::slice::from_raw_parts_mut(v_out.0.add(at), words);
                    store_token(isa, bf16, k_tile, v_tile, slot % TILE, k_row, v_row);
                }
            }
        };
        if slots.len() * heads * dim < 16 * 1024 {
            (0..heads).for_each(|h| one_head(h, 0));
        } else {
            rt.pool().run(heads, &one_head);
        }
        Ok(())
    }

    /// Forget places `from..16` of a tile. A sequence that was rolled back into the middle of a tile
    /// leaves values there that no mask should have to meet: `0 * NaN` is NaN.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a tile beyond the pool.
    pub fn clear(&mut self, tile: u32, from: usize) -> Result<()> {
        const OP: &str = "kv_clear";
        if tile as usize >= self.tiles {
            let (what, index) = ("tile", i64::from(tile));
            return Err(Error::OutOfRange { op: OP, what, index, limit: self.tiles });
        }
        let words = tile_elems(self.head_dim) * self.dtype.size() / 4;
        let at = tile as usize * self.heads * words;
        let per_word = 4 / self.dtype.size();
        let padded = self.head_dim.next_multiple_of(16);
        let from = from.min(TILE);
        for h in 0..self.heads {
            // exercise l1.kv_cache
            let start = at + h * words;
            for keys in as_words_mut(&mut self.k)[start..start + words].chunks_exact_mut(TILE) {
                keys[from..].fill(0);
            }
            let v = &mut as_words_mut(&mut self.v)[start..start + words];
            let whole = from.div_ceil(per_word);
            if whole * per_word > from {
                // The row of words shared by the last token that stays and the first that goes.
                for word in &mut v[(whole - 1) * padded..whole * padded] {
                    *word &= 0xffff;
                }
            }
            v[whole * padded..].fill(0);
            // end of exercise
        }
        Ok(())
    }

    /// Copy the tiles `from` of `source` into this cache's tiles `to`, one by one.
    ///
    /// # Errors
    /// Caches of different geometry, or tiles beyond a pool.
    pub fn copy_tiles(&mut self, to: &[u32], source: &KvCache, from: &[u32]) -> Result<()> {
        const OP: &str = "kv_copy";
        let same = (self.heads, self.head_dim, self.dtype)
            == (source.heads, source.head_dim, source.dtype);
        if !same || to.len() != from.len() {
            return Err(Error::ShapeMismatch {
                op: OP,
                why: "both caches need the same heads, head dim and dtype",
                lhs: *source.k.layout(),
                rhs: *self.k.layout(),
            });
        }
        let words = self.heads * tile_elems(self.head_dim) * self.dtype.size() / 4;
        for (tiles, limit) in [(to, self.tiles), (from, source.tiles)] {
            if let Some(bad) = tiles.iter().find(|t| **t as usize >= limit) {
                let index = i64::from(*bad);
                return Err(Error::OutOfRange { op: OP, what: "tile", index, limit });
            }
        }
        for (to, from) in to.iter().zip(from) {
            let (to, from) = (*to as usize * words, *from as usize * words);
            for (dst, src) in [(&mut self.k, &source.k), (&mut self.v, &source.v)] {
                as_words_mut(dst)[to..to + words]
                    .copy_from_slice(&as_words(src)[from..from + words]);
            }
        }
        Ok(())
    }
}

/// Elements of one head's part of a tile: 16 tokens of `head_dim` rounded up to 16.
fn tile_elems(head_dim: usize) -> usize {
    TILE * head_dim.next_multiple_of(16)
}

struct SendPtr(*mut u32);
// SAFETY: threads write disjoint words through it (one head each).
unsafe impl Sync for SendPtr {}

fn as_words(t: &Tensor) -> &[u32] {
    let bytes = t.raw();
    // SAFETY: storage is 64-byte aligned and any bits are a valid u32.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / 4) }
}

fn as_words_mut(t: &mut Tensor) -> &mut [u32] {
    let bytes = t.raw_mut();
    // SAFETY: as in `as_words`, under an exclusive borrow.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / 4) }
}

dispatch! {
    /// Put one token's key and value of one head into place `i` of its tile.
    fn store_token<const FMA: bool>(
        bf16: bool,
        k_tile: &mut [u32],
        v_tile: &mut [u32],
        i: usize,
        k: &[f32],
        v: &[f32],
    ) {
        // exercise l1.kv_cache
        if i == 0 {
            k_tile.fill(0);
            v_tile.fill(0);
        }
        let padded = k.len().next_multiple_of(16);
        if !bf16 {
            for (w, x) in k.iter().enumerate() {
                k_tile[w * TILE + i] = x.to_bits();
            }
            for (word, x) in v_tile[i * padded..].iter_mut().zip(v) {
                *word = x.to_bits();
            }
            return;
        }
        // Round sixteen at a time, then scatter: the rounding is a vector, the scatter cannot be.
        for (part, k) in k.chunks(16).enumerate() {
            let mut bits = [0u32; 16];
            for (b, x) in bits.iter_mut().zip(k) {
                *b = u32::from(round_bf16(*x).to_bits());
            }
            for (w, pair) in bits.as_chunks::<2>().0.iter().enumerate().take(k.len().div_ceil(2)) {
                k_tile[(part * 8 + w) * TILE + i] = pair[0] | pair[1] << 16;
            }
        }
        let shift = 16 * (i % 2) as u32;
        for (word, x) in v_tile[(i / 2) * padded..].iter_mut().zip(v) {
            *word = *word & !(0xffff << shift) | u32::from(round_bf16(*x).to_bits()) << shift;
        }
        // end of exercise
    }
}

#[cfg(test)]
mod tests;
