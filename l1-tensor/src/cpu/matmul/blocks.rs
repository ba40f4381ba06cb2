//! Chunks of a weight in block formats: a span of a panel is dequantized into the cache, and the kernels run over it.
//!
//! Sums go on from one span to the next in memory. They are the sums of one pass over K: each is still in one lane, from
//! the first input to the last.

use std::mem::MaybeUninit;

use crate::cpu::dequantize::PIECE;
use crate::weight::{Line, PANEL};

use super::epilogue::fetch_output;
use super::tile::{Dot, Sums, Tile, run_tile};
use super::{Blocks, Job, finish_rows};

/// Maximum number of rows in a chunk.
pub(super) const MAX_CHUNK_ROWS: usize = 512;

/// Inputs of a span of a panel where many rows use it: a tile begins and ends seldom, and the second level of the cache is
/// fast enough.
const LONG_SPAN: usize = 1024;

/// Lines of a span.
#[repr(align(64))]
pub(super) struct Buffer([MaybeUninit<Line>; LONG_SPAN]);

impl Buffer {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; LONG_SPAN])
    }
}

/// Dequantizes panels, one span of inputs after the other.
pub(super) struct PanelSpans<'a> {
    weight: Blocks<'a>,
    len: usize,
}

impl<'a> PanelSpans<'a> {
    /// Spans for a chunk of this number of rows, of which a tile has `tile` at most.
    ///
    /// If one tile has all rows, a span is one piece. A processor that executes instructions out of order then
    /// dequantizes the next piece while the sums of this one wait for each other: with longer spans it would do the one
    /// after the other, since a span has more instructions than it can hold.
    pub(super) fn new(weight: Blocks<'a>, rows: usize, tile: usize) -> Self {
        Self { weight, len: if rows <= tile { PIECE } else { LONG_SPAN } }
    }

    /// Dequantizes a panel, and calls `each` with the first input of a span and its lines, two for each pair of inputs.
    #[inline(always)]
    pub(super) fn for_each(
        &self,
        panel: usize,
        buffer: &mut Buffer,
        mut each: impl FnMut(usize, &[Line]),
    ) {
        let (panel, k) = (self.weight.panel(panel), self.weight.of.k());
        let mut from = 0;
        while from < k {
            let n = self.len.min(k - from);
            each(from, panel.dequantize(from, n, &mut buffer.0));
            from += n;
        }
    }
}

/// Sums of a chunk's rows.
pub(super) struct ChunkSums(MaybeUninit<Sums<MAX_CHUNK_ROWS>>);

impl ChunkSums {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Zeros for `rows` rows, at most [`MAX_CHUNK_ROWS`].
    #[inline(always)]
    pub(super) fn zeros(&mut self, rows: usize) -> &mut [[f32; PANEL]] {
        assert!(rows <= MAX_CHUNK_ROWS);
        let first = self.0.as_mut_ptr().cast::<[f32; PANEL]>();
        // SAFETY: the memory holds `MAX_CHUNK_ROWS` rows, and those of the slice are zeros from here on.
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
pub(super) unsafe fn sweep<D: Dot>(job: &Job<'_, D::X>, weight: Blocks<'_>, chunk: usize) {
    let (rows, panels) = job.ranges(chunk);
    let (mut buffer, mut memory) = (Buffer::new(), ChunkSums::new());
    let spans = PanelSpans::new(weight, rows.len(), D::ROWS);
    for panel in panels {
        fetch_output(job, rows.start, rows.len(), panel);
        let sums = memory.zeros(rows.len());
        spans.for_each(panel, &mut buffer, |from, lines| {
            let tiles = rows.len().div_ceil(D::ROWS);
            let mut at = 0;
            for tile in 0..tiles {
                let height = (rows.len() - at).div_ceil(tiles - tile);
                // SAFETY: the caller's promise: the rows exist, and have the inputs of this span.
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
