//! Chunks of a weight in block formats: a part of a panel is decoded into the cache, and the kernels run over it.
//!
//! Sums go on from one part to the next in memory. They are the sums of one pass over K: each is still in one lane, from
//! the first input to the last.

use std::mem::MaybeUninit;

use crate::cpu::decode::Decoder;
use crate::weight::{Line, PANEL, PackedBlocks};

use super::epilogue::fetch_output;
use super::tile::{Dot, Sums, Tile, run_tile};
use super::{Job, finish_rows};

/// Maximum number of rows in a chunk.
pub(super) const MAX_ROWS: usize = 512;

/// Inputs of a part of a panel: 16 KiB of lines, which stay in the first level of the cache until they have been read. A
/// multiple of the units of all formats.
const PART: usize = 256;

/// The same with many rows: a tile begins and ends less often, and the second level is fast enough.
const LONG_PART: usize = 1024;

/// Number of rows that count as many.
const MANY: usize = 16;

/// Lines of a part.
#[repr(align(64))]
pub(super) struct Part([MaybeUninit<Line>; LONG_PART]);

/// The rows of a chunk and its panels, one part of a panel after the other.
pub(super) struct Parts<'a> {
    of: &'a PackedBlocks,
    decoder: Decoder,
    len: usize,
}

impl<'a> Parts<'a> {
    /// Parts for a chunk of this number of rows.
    pub(super) fn new(of: &'a PackedBlocks, decoder: Decoder, rows: usize) -> Self {
        Self { of, decoder, len: if rows < MANY { PART } else { LONG_PART } }
    }

    /// Decodes a panel, and calls `each` with the first input of a part and its lines, two for each pair of inputs.
    #[inline(always)]
    pub(super) fn for_each(
        &self,
        panel: usize,
        buffer: &mut Part,
        mut each: impl FnMut(usize, &[Line]),
    ) {
        let panel = self.of.panel(panel);
        let k = self.of.k();
        let mut from = 0;
        while from < k {
            let n = self.len.min(k - from);
            each(from, self.decoder.decode(panel, from, n, &mut buffer.0[..n]));
            from += n;
        }
    }
}

/// Memory for the lines of a part.
#[inline(always)]
pub(super) fn part() -> Part {
    Part([const { MaybeUninit::uninit() }; LONG_PART])
}

/// Sums of a chunk's rows.
pub(super) struct ChunkSums(MaybeUninit<Sums<MAX_ROWS>>);

impl ChunkSums {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Zeros for `rows` rows, at most [`MAX_ROWS`].
    #[inline(always)]
    pub(super) fn zeros(&mut self, rows: usize) -> &mut [[f32; PANEL]] {
        assert!(rows <= MAX_ROWS);
        let first = self.0.as_mut_ptr().cast::<[f32; PANEL]>();
        // SAFETY: the memory holds `MAX_ROWS` rows, and those of the slice are zeros from here on.
        unsafe {
            first.write_bytes(0, rows);
            std::slice::from_raw_parts_mut(first, rows)
        }
    }
}

/// Computes one chunk.
///
/// # Safety
/// As [`super::sweep`].
#[inline(always)]
pub(super) unsafe fn sweep<D: Dot>(
    job: &Job<'_, D::X>,
    of: &PackedBlocks,
    decoder: Decoder,
    chunk: usize,
) {
    let (rows, panels) = job.part(chunk);
    let (mut buffer, mut memory) = (part(), ChunkSums::new());
    let parts = Parts::new(of, decoder, rows.len());
    for panel in panels {
        fetch_output(job, rows.start, rows.len(), panel);
        let sums = memory.zeros(rows.len());
        parts.for_each(panel, &mut buffer, |from, lines| {
            let tiles = rows.len().div_ceil(D::ROWS);
            let mut at = 0;
            for tile in 0..tiles {
                let height = (rows.len() - at).div_ceil(tiles - tile);
                // SAFETY: the caller's promise: the rows exist, and have the inputs of this part.
                unsafe {
                    let tile = Tile {
                        x: job.x.data.add((rows.start + at) * job.x.stride + from),
                        stride: job.x.stride,
                        k: lines.len(),
                        panel: lines,
                        ahead: 0,
                    };
                    run_tile::<D>(height, &tile, &mut sums[at..at + height]);
                }
                at += height;
            }
        });
        // SAFETY: the caller's promise.
        unsafe { finish_rows::<D>(job, rows.start, panel, sums) };
    }
}
