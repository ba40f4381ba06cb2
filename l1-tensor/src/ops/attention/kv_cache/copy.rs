//! Copying and truncating blocks.

use super::{KvCache, TILE};
use crate::{Device, Error, Result};

impl KvCache {
    /// Clears offsets `from..` of a block. A sequence that was rolled back into the middle of a block leaves
    /// values there, and a mask does not protect from all of them: `0 * NaN` is NaN.
    ///
    /// In a block of more than one tile only the tile of `from` is cleared: the first token that is written
    /// to a later tile clears that. A device's block is cleared to its end.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a block beyond the pool.
    pub fn clear(&mut self, block: u32, from: usize) -> Result<()> {
        const OP: &str = "kv_clear";
        self.check_blocks(OP, &[block])?;
        if self.device() != Device::Cpu {
            return self.clear_on_cuda(OP, block, from.min(self.block_size)..self.block_size);
        }
        if from < self.block_size {
            let slot = block as usize * self.block_size + from;
            let span = self.span();
            let end = (slot / span + 1) * span;
            self.clear_places(slot / TILE, slot % TILE..slot % TILE + (end - slot));
        }
        Ok(())
    }

    /// Copies the blocks `from` of `source` into this cache's blocks `to`, one by one.
    ///
    /// # Errors
    /// Caches of different geometry or block size, lists of different lengths, or blocks beyond a
    /// pool.
    pub fn copy_blocks(&mut self, to: &[u32], source: &KvCache, from: &[u32]) -> Result<()> {
        const OP: &str = "kv_copy_blocks";
        if to.len() != from.len() || self.block_size != source.block_size {
            let why = format!(
                "{} blocks of {} tokens cannot become {} blocks of {}",
                from.len(),
                source.block_size,
                to.len(),
                self.block_size
            );
            return Err(Error::BadParameter { op: OP, why });
        }
        self.check_blocks(OP, to)?;
        source.check_blocks(OP, from)?;
        for (to, from) in to.iter().zip(from) {
            self.copy_prefix(*to, source, *from, self.block_size)?;
        }
        Ok(())
    }

    /// Copies the first `tokens` offsets of a block of another cache; the next offset can be written after
    /// that. Block sizes may differ where both are multiples of 16.
    ///
    /// # Errors
    /// Caches of different geometry, more tokens than a block has, or blocks beyond a pool.
    pub fn copy_prefix(
        &mut self,
        to: u32,
        source: &KvCache,
        from: u32,
        tokens: usize,
    ) -> Result<()> {
        const OP: &str = "kv_copy_prefix";
        let same = (self.heads, self.geometry, self.span())
            == (source.heads, source.geometry, source.span());
        if !same {
            return Err(Error::ShapeMismatch {
                op: OP,
                why: "both caches need the same heads, head dim, dtype and parts of a tile",
                lhs: *source.k.layout(),
                rhs: *self.k.layout(),
            });
        }
        self.check_blocks(OP, &[to])?;
        source.check_blocks(OP, &[from])?;
        check_tokens(OP, tokens, self.block_size.min(source.block_size))?;
        if self.device() != Device::Cpu {
            self.copy_on_cuda(OP, to, source, from, tokens)?;
            return self.clear_unfinished(to, tokens);
        }
        source.on_host(OP)?;
        for (to, from) in self.spans(to, tokens).zip(source.spans(from, tokens)) {
            self.put_span(to, source.tile(from / TILE), from % TILE);
        }
        self.clear_unfinished(to, tokens)
    }

    /// Copies the first `tokens` offsets of one block of this pool into another: a private copy of a shared
    /// block, to be written further.
    ///
    /// # Errors
    /// More tokens than a block has, or blocks beyond the pool.
    pub fn copy_within(&mut self, to: u32, from: u32, tokens: usize) -> Result<()> {
        const OP: &str = "kv_copy_within";
        self.check_blocks(OP, &[to, from])?;
        check_tokens(OP, tokens, self.block_size)?;
        if to == from {
            return self.clear_unfinished(to, tokens);
        }
        if self.device() != Device::Cpu {
            self.copy_inside_on_cuda(OP, to, from, tokens)?;
            return self.clear_unfinished(to, tokens);
        }
        // The two blocks may be parts of one tile, so the source is copied first.
        let mut aside = self.tile(0).map(<[u8]>::to_vec);
        for (to, from) in self.spans(to, tokens).zip(self.spans(from, tokens)) {
            for (aside, part) in aside.iter_mut().zip(self.tile(from / TILE)) {
                aside.copy_from_slice(part);
            }
            self.put_span(to, aside.each_ref().map(Vec::as_slice), from % TILE);
        }
        self.clear_unfinished(to, tokens)
    }

    /// First slots of the parts of tiles that contain a block's first `tokens` offsets.
    fn spans(&self, block: u32, tokens: usize) -> impl Iterator<Item = usize> + use<> {
        let first = block as usize * self.block_size;
        (first..first + tokens).step_by(self.span())
    }

    /// Keys, values and scales of a tile, all heads.
    fn tile(&self, tile: usize) -> [&[u8]; 3] {
        let (bytes, scales) = self.tile_sizes();
        [
            &self.k.raw()[tile * bytes..][..bytes],
            &self.v.raw()[tile * bytes..][..bytes],
            &self.scales.raw()[tile * scales..][..scales],
        ]
    }

    /// Number of bytes of the keys, or of the values, of a tile, and of its scales.
    fn tile_sizes(&self) -> (usize, usize) {
        (self.heads * self.geometry.tile_bytes(), self.heads * self.geometry.scale_bytes())
    }

    /// Copies the positions of a block in a tile: from position `i` of another tile, to slot `to`.
    fn put_span(&mut self, to: usize, [k, v, scales]: [&[u8]; 3], i: usize) {
        let (g, span) = (self.geometry, self.span());
        let (bytes, scale_bytes) = self.tile_sizes();
        let (tile, at) = (to / TILE, (to % TILE, i));
        let heads = self.k.raw_mut()[tile * bytes..][..bytes].chunks_exact_mut(g.tile_bytes());
        for (to, from) in heads.zip(k.chunks_exact(g.tile_bytes())) {
            g.copy_keys(to, from, at, span);
        }
        let heads = self.v.raw_mut()[tile * bytes..][..bytes].chunks_exact_mut(g.tile_bytes());
        for (to, from) in heads.zip(v.chunks_exact(g.tile_bytes())) {
            g.copy_values(to, from, at, span);
        }
        let rows =
            self.scales.raw_mut()[tile * scale_bytes..][..scale_bytes].chunks_exact_mut(TILE);
        for (to, from) in rows.zip(scales.chunks_exact(TILE)) {
            to[at.0..at.0 + span].copy_from_slice(&from[at.1..at.1 + span]);
        }
    }

    /// Clears the offsets behind a copied prefix, which were copied with its tile.
    fn clear_unfinished(&mut self, block: u32, tokens: usize) -> Result<()> {
        if tokens.is_multiple_of(self.span()) { Ok(()) } else { self.clear(block, tokens) }
    }
}

fn check_tokens(op: &'static str, tokens: usize, block_size: usize) -> Result<()> {
    if tokens <= block_size {
        return Ok(());
    }
    let (what, index) = ("token count", tokens as i64);
    Err(Error::OutOfRange { op, what, index, limit: block_size + 1 })
}
