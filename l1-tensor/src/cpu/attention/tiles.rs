//! From a block table to tiles that a kernel can read.
//!
//! The kernel reads sixteen keys side by side, as f32 or as pairs of bf16. A tile of the pool
//! usually has that layout and is read in place. Where blocks are smaller than a tile, a tile of
//! the sequence is assembled from its blocks; where the cache has 8-bit codes, they are widened to
//! bf16. Both happen in a thread's scratch, one split at a time. No arithmetic on scores happens
//! here, so the sums have the same terms in the same order for every block size.

use std::ops::Range;

use super::SPLIT_TILES;
use crate::DType;
use crate::cpu::lanes::dispatch;
use crate::cpu::matmul::prefetch;
use crate::e4m3;
use crate::ops::TILE;
use crate::ops::attention::Geometry;

/// Prefetch distance, in tiles ahead of the one that is assembled.
const AHEAD: usize = 4;

/// The memory of a cache.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'a> {
    pub k: &'a [u8],
    pub v: &'a [u8],
    pub scales: &'a [u8],
    pub block_size: usize,
    pub heads: usize,
    pub geometry: Geometry,
}

/// Keys or values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Keys,
    Values,
}

/// The blocks of one sequence, for one KV head, as far as an item reads them.
pub(super) struct Reader<'a> {
    pub(super) pool: Pool<'a>,
    /// Row of the block table for the sequence.
    pub(super) table: &'a [i32],
    /// Blocks that hold a key of some query. Entries of other blocks may have any value.
    pub(super) blocks: Range<usize>,
    pub(super) head: usize,
}

/// Scratch for the tiles of a split.
pub(super) struct Workbench<'a> {
    /// Room for the words of [`SPLIT_TILES`] tiles.
    pub(super) words: &'a mut [u8],
    /// Room for the codes of one tile.
    pub(super) codes: &'a mut [u8],
}

/// Addresses of the tiles of a split, in order.
pub(super) struct Tiles {
    at: [*const u8; SPLIT_TILES],
    count: usize,
    /// Bytes of a tile as the kernel reads it.
    bytes: usize,
}

impl Tiles {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Address of tile `t`.
    #[inline(always)]
    pub(super) fn at(&self, t: usize) -> *const u32 {
        self.at[t].cast()
    }

    /// Prefetches tile `t`, if there is one.
    #[inline(always)]
    pub(super) fn prefetch(&self, t: usize) {
        if t < self.count {
            prefetch_bytes(self.at[t], self.bytes);
        }
    }
}

#[inline(always)]
fn prefetch_bytes(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        prefetch(at.wrapping_add(line).cast());
    }
}

impl Reader<'_> {
    /// Whether tiles are read in the pool, for every block table.
    pub(super) fn in_place(&self) -> bool {
        self.pool.block_size >= TILE && self.pool.geometry.dtype != DType::F8E4M3
    }

    /// Tiles that are read [in place](Self::in_place).
    #[inline(always)]
    pub(super) fn stored_tiles(&self, part: Part, tiles: Range<usize>) -> Tiles {
        let bytes = self.pool.geometry.tile_bytes();
        let mut out = Tiles { at: [std::ptr::null(); SPLIT_TILES], count: tiles.len(), bytes };
        let per_block = self.pool.block_size / TILE;
        let (mut block, mut inside) = (tiles.start / per_block, tiles.start % per_block);
        for at in &mut out.at[..tiles.len()] {
            let tile = self.table[block] as usize * per_block + inside;
            *at = self.stored(part, tile).as_ptr();
            inside += 1;
            if inside == per_block {
                (block, inside) = (block + 1, 0);
            }
        }
        out
    }

    /// Tile of the pool that is tile `t` of the sequence, if the blocks allow it.
    #[inline(always)]
    fn whole(&self, t: usize) -> Option<usize> {
        let block_size = self.pool.block_size;
        if block_size >= TILE {
            let per_block = block_size / TILE;
            return Some(self.table[t / per_block] as usize * per_block + t % per_block);
        }
        let pieces = TILE / block_size;
        let mine = t * pieces..(t + 1) * pieces;
        if mine.start < self.blocks.start || mine.end > self.blocks.end {
            return None;
        }
        let first = self.table[mine.start];
        let aligned = (first as usize).is_multiple_of(pieces);
        let run = self.table[mine].iter().zip(first..).all(|(block, next)| *block == next);
        (aligned && run).then_some(first as usize / pieces)
    }

    /// This head's part of a tile of the pool.
    #[inline(always)]
    fn stored(&self, part: Part, tile: usize) -> &[u8] {
        let bytes = self.pool.geometry.tile_bytes();
        let pool = if part == Part::Keys { self.pool.k } else { self.pool.v };
        &pool[(tile * self.pool.heads + self.head) * bytes..][..bytes]
    }

    /// The scales of this head's part of a tile.
    #[inline(always)]
    fn scales(&self, part: Part, tile: usize) -> &[u8] {
        let which = usize::from(part == Part::Values);
        &self.pool.scales[((tile * self.pool.heads + self.head) * 2 + which) * TILE..][..TILE]
    }

    /// Blocks of tile `t` that hold a key of some query, each with its offset in the tile and its
    /// slot in the pool.
    #[inline(always)]
    fn pieces(&self, t: usize) -> impl Iterator<Item = (usize, usize)> {
        let block_size = self.pool.block_size;
        let pieces = TILE / block_size;
        let mine = (t * pieces).max(self.blocks.start)..((t + 1) * pieces).min(self.blocks.end);
        mine.map(move |b| (b % pieces * block_size, self.table[b] as usize * block_size))
    }

    /// Assembles tile `t` of the sequence from blocks smaller than a tile. Slots of other blocks
    /// are zeros.
    #[inline(always)]
    fn put_together(
        &self,
        part: Part,
        t: usize,
        out: &mut [u8],
        mut scales: Option<&mut [u8; TILE]>,
    ) {
        if self.pieces(t).count() * self.pool.block_size < TILE {
            out.fill(0);
        }
        for (to, slot) in self.pieces(t) {
            let (tile, from) = (slot / TILE, slot % TILE);
            let stored = self.stored(part, tile);
            let (g, n) = (self.pool.geometry, self.pool.block_size);
            match part {
                Part::Keys => g.copy_keys(out, stored, (to, from), n),
                Part::Values => g.copy_values(out, stored, (to, from), n),
            }
            if let Some(scales) = &mut scales {
                scales[to..to + n].copy_from_slice(&self.scales(part, tile)[from..from + n]);
            }
        }
    }

    /// Prefetches the blocks of tile `t`.
    #[inline(always)]
    fn prefetch(&self, part: Part, t: usize) {
        if let Some(tile) = self.whole(t) {
            let stored = self.stored(part, tile);
            prefetch_bytes(stored.as_ptr(), stored.len());
            return;
        }
        for (_, slot) in self.pieces(t) {
            let mut stored = self.stored(part, slot / TILE);
            if part == Part::Values {
                // Rows of a few tokens are adjacent, columns are spread over the tile.
                let rows = self.pool.geometry.value_rows(slot % TILE, self.pool.block_size);
                stored = &stored[rows];
            }
            prefetch_bytes(stored.as_ptr(), stored.len());
        }
    }
}

dispatch! {
    /// Makes tiles of the sequence readable: assembles in scratch those that cannot be read in
    /// place.
    pub(super) fn make_tiles<const FMA: bool>(
        reader: &Reader<'_>,
        part: Part,
        tiles: Range<usize>,
        bench: &mut Workbench<'_>,
    ) -> Tiles {
        let g = reader.pool.geometry;
        let narrow = g.dtype == DType::F8E4M3;
        let bytes = g.tile_bytes() * if narrow { 2 } else { 1 };
        let mut out = Tiles { at: [std::ptr::null(); SPLIT_TILES], count: tiles.len(), bytes };
        let rooms = bench.words.chunks_exact_mut(bytes);
        for (t, (at, room)) in tiles.clone().zip(out.at.iter_mut().zip(rooms)) {
            let whole = reader.whole(t);
            if !narrow && let Some(tile) = whole {
                *at = reader.stored(part, tile).as_ptr();
                continue;
            }
            if t + AHEAD < tiles.end {
                reader.prefetch(part, t + AHEAD);
            }
            let mut scales = [0; TILE];
            match whole {
                Some(tile) => {
                    scales.copy_from_slice(reader.scales(part, tile));
                    widen(g, part, reader.stored(part, tile), &scales, room);
                }
                None if narrow => {
                    let codes = &mut bench.codes[..g.tile_bytes()];
                    reader.put_together(part, t, codes, Some(&mut scales));
                    widen(g, part, codes, &scales, room);
                }
                None => reader.put_together(part, t, room, None),
            }
            *at = room.as_ptr();
        }
        out
    }
}

/// Writes the codes of a tile as bf16, each multiplied by its token's scale.
#[inline(always)]
fn widen(g: Geometry, part: Part, codes: &[u8], scales: &[u8; TILE], out: &mut [u8]) {
    let power = scales.map(|s| i16::from(s) - 127);
    // Two codes to a token, or two tokens to a pair of codes.
    let of_keys: [i16; 32] = std::array::from_fn(|i| power[i / 2]);
    let line = if part == Part::Keys { 32 } else { 2 * g.padded() };
    let rows = codes.chunks_exact(line).zip(out.chunks_exact_mut(2 * line)).enumerate();
    for (row, (codes, out)) in rows {
        let powers = match part {
            Part::Keys => of_keys,
            Part::Values => pairs(power[2 * (row % 8)], power[2 * (row % 8) + 1]),
        };
        let out = out.as_chunks_mut::<64>().0;
        for (codes, out) in codes.as_chunks::<32>().0.iter().zip(out) {
            for (i, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                *out = e4m3::to_bf16(codes[i], powers[i]).to_ne_bytes();
            }
        }
    }
}

/// Two powers, alternating.
#[inline(always)]
fn pairs(even: i16, odd: i16) -> [i16; 32] {
    let both = [even, odd];
    let all = [both; 16];
    *all.as_flattened().first_chunk().unwrap_or(&[0; 32])
}
