//! The matmul kernels: how the work is cut, and the order of the loops.
//!
//! From the outside in:
//!
//! * [`matmul`] cuts the output into *chunks* of rows by panels and lets the threads take them.
//! * [`sweep`] walks a chunk: panel by panel, and for each panel tile by tile down the rows, so
//!   that a panel comes from memory once and is then reused from the cache. `blocks` does that for
//!   weights in block formats, of which it dequantizes a span of a panel at a time.
//! * [`tile`] is the inner loop: a few rows by one panel, sums in registers.
//! * `amx` is the same for tiles of whole matrices, which have registers of their own.
//! * [`epilogue`] turns the sums into outputs while they are still in the L1 cache.
//!
//! None of the cuts goes through K. Every output is summed by one thread, in one register lane,
//! from the first input to the last (by `amx`: from the first block of inputs to the last), so how
//! the work is cut cannot show in the result.

mod activation;
#[cfg(target_arch = "x86_64")]
mod amx;
mod blocks;
mod epilogue;
mod portable;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use epilogue::{After, Out, OutData};
pub(in crate::cpu) use tile::prefetch;
#[cfg(target_arch = "x86_64")]
pub(in crate::cpu) use x86::round_16;

use std::ops::Range;

use half::bf16;

use crate::cpu::dequantize::{Dequantizer, PanelDequantizer};
use crate::cpu::{Isa, ThreadPool};
use crate::weight::{Factors, HostWeight, Line, PANEL, PackedBlocks, RowOrder};

use epilogue::{fetch_output, finish};
use portable::Portable;
use tile::{Dot, MAX_ROWS, Sums, Tile, run_tile};
#[cfg(target_arch = "x86_64")]
use x86::{Avx2, Avx512, Avx512Dot};

/// The activations of a matmul: rows of `k` elements, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Input<X> {
    /// The first element.
    pub(crate) data: *const X,
    /// Number of rows.
    pub(crate) rows: usize,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
}

/// Panels of bf16 pairs.
#[derive(Clone, Copy)]
struct Lines<'a> {
    all: &'a [Line],
    /// Number of lines of a panel.
    each: usize,
}

/// Panels in block formats, and what makes lines of them.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    of: &'a PackedBlocks,
    dequantizer: Dequantizer,
}

impl<'a> Blocks<'a> {
    /// The dequantizer of a panel.
    #[inline(always)]
    fn panel(self, panel: usize) -> PanelDequantizer<'a> {
        self.dequantizer.panel(self.of.panel(panel))
    }
}

/// One call, shared by all threads.
pub(crate) struct Job<'a, X> {
    x: Input<X>,
    k: usize,
    panels: usize,
    n: usize,
    order: RowOrder,
    factors: Option<&'a Factors>,
    bias: Option<&'a [f32]>,
    after: After,
    out: Out,
    /// Number of panels in a chunk.
    chunk_panels: usize,
    /// Number of rows in a chunk.
    chunk_rows: usize,
}

impl<X> Job<'_, X> {
    /// Rows and panels of a chunk.
    fn ranges(&self, chunk: usize) -> (Range<usize>, Range<usize>) {
        let across = self.panels.div_ceil(self.chunk_panels);
        let panel = chunk % across * self.chunk_panels;
        let row = chunk / across * self.chunk_rows;
        let rows = row..self.x.rows.min(row + self.chunk_rows);
        (rows, panel..self.panels.min(panel + self.chunk_panels))
    }
}

// SAFETY: the pointers are to memory that outlives the call; `x` is only read, and chunks write
// disjoint parts of `out`.
unsafe impl<X> Sync for Job<'_, X> {}

/// Kernel of one instruction set for one activation type.
#[derive(Clone, Copy)]
pub(crate) struct Kernel<X> {
    /// Computes one chunk of a job.
    chunk: unsafe fn(&Job<'_, X>, Lines<'_>, usize),
    /// Computes one chunk of a job over a weight in block formats. It is a function of its own because it needs much
    /// more memory of the stack.
    blocks: unsafe fn(&Job<'_, X>, Blocks<'_>, usize),
    /// Multiplies in registers for a while; returns the number of floating point operations.
    peak: unsafe fn(usize) -> usize,
}

impl<X> Kernel<X> {
    fn of<D: Dot<X = X>>() -> Self {
        Self { chunk: D::chunk, blocks: D::blocks, peak: D::peak }
    }

    /// Runs `rounds` rounds of multiplications without memory accesses and returns their number of
    /// floating point operations, which measures a processor's peak.
    pub(crate) fn exercise(self, rounds: usize) -> usize {
        // SAFETY: a kernel is only returned where its instruction set is available.
        unsafe { (self.peak)(rounds) }
    }
}

/// An activation type for which there are kernels.
pub(crate) trait Kernels: Copy {
    /// Kernel for `isa`, or the portable one where this machine lacks it.
    fn kernel(isa: Isa) -> Kernel<Self>;
}

impl Kernels for f32 {
    fn kernel(isa: Isa) -> Kernel<f32> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 if isa.is_available() => {
                Kernel::of::<Avx512<f32>>()
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if isa.is_available() => Kernel::of::<Avx2<f32>>(),
            _ => Kernel::of::<Portable<f32>>(),
        }
    }
}

impl Kernels for bf16 {
    fn kernel(isa: Isa) -> Kernel<bf16> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx if isa.is_available() => amx::kernel(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 if isa.is_available() => Kernel::of::<Avx512Dot>(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if isa.is_available() => Kernel::of::<Avx512<bf16>>(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 if isa.is_available() => Kernel::of::<Avx2<bf16>>(),
            _ => Kernel::of::<Portable<bf16>>(),
        }
    }
}

/// `out = after((x W^T) factors + bias)`.
///
/// # Safety
/// `x` must be readable: `x.rows` rows of the weight's `k` elements. `out` must be writable, and by no
/// other thread during the call: `x.rows` rows of `n` elements, or `n / 2` where `after` folds, which
/// needs [`RowOrder::GateUp`]. A bias and factors of rows must hold `n` values. An output that is added to
/// must be f32.
pub(crate) unsafe fn matmul<X: Kernels>(
    pool: &ThreadPool,
    isa: Isa,
    x: Input<X>,
    (w, factors): (HostWeight<'_>, Option<&Factors>),
    bias: Option<&[f32]>,
    after: After,
    out: Out,
) {
    let (n, k, order, panels) = match w {
        HostWeight::Bf16(w) => (w.n(), w.k(), w.order(), w.panels()),
        HostWeight::Blocks(w) => (w.n(), w.k(), w.order(), w.panels()),
    };
    let dequantizes = matches!(w, HostWeight::Blocks(_));
    let (chunk_panels, chunk_rows) = chunk_shape(x.rows, panels, pool.threads(), dequantizes);
    let job = Job { x, k, panels, n, order, factors, bias, after, out, chunk_panels, chunk_rows };
    let kernel = X::kernel(isa);
    let chunks = panels.div_ceil(chunk_panels) * x.rows.div_ceil(chunk_rows);
    match w {
        HostWeight::Bf16(w) => {
            let lines = Lines { all: w.lines(), each: w.panel_lines() };
            // SAFETY: `Kernels::kernel` has asked for the instruction set; the rest is the caller's
            // promise.
            pool.run(chunks, &|chunk, _worker| unsafe { (kernel.chunk)(&job, lines, chunk) });
        }
        HostWeight::Blocks(w) => {
            let blocks = Blocks { of: w, dequantizer: Dequantizer::of(isa) };
            // SAFETY: as above.
            pool.run(chunks, &|chunk, _worker| unsafe { (kernel.blocks)(&job, blocks, chunk) });
        }
    }
}

/// Size of a chunk in panels and rows: small enough that threads finish together, large enough that
/// claiming chunks costs nothing and that a panel is reused while it is in the cache. A panel in
/// blocks is dequantized once for a chunk, so a chunk then has more rows.
fn chunk_shape(rows: usize, panels: usize, threads: usize, dequantizes: bool) -> (usize, usize) {
    let few = |most: usize| (panels / (8 * threads)).clamp(1, most);
    match rows {
        0..=1 => (few(4), 1),
        2..=128 => (few(1), 128),
        // Chunks of equal height: each dequantizes the panel, so a short last one would cost as much
        // of that. More of them only where a narrow weight would leave threads without work.
        _ if dequantizes => {
            let most = rows.div_ceil(128).min((2 * threads).div_ceil(panels));
            let across = rows.div_ceil(blocks::MAX_CHUNK_ROWS).max(most);
            (1, rows.div_ceil(across))
        }
        _ => (few(6).max(2), 128),
    }
}

/// Computes one chunk.
///
/// # Safety
/// As [`matmul`], on a processor that runs `D`'s instruction set.
#[inline(always)]
unsafe fn sweep<D: Dot>(job: &Job<'_, D::X>, lines: Lines<'_>, chunk: usize) {
    let (rows, panels) = job.ranges(chunk);
    let mut sums = Sums([[0.0; PANEL]; MAX_ROWS]);
    // Tiles of nearly the same height: 13 rows are 7 + 6, not 12 + 1.
    let tiles = rows.len().div_ceil(D::ROWS);
    let mut at = rows.start;
    for tile in 0..tiles {
        let height = (rows.end - at).div_ceil(tiles - tile);
        // The tile's rows stay in the first level of the cache, while panels stream through it.
        for panel in panels.clone() {
            // SAFETY: the caller's promise; rows and panel are within the matrices.
            unsafe {
                let lines = &lines.all[panel * lines.each..][..lines.each];
                step::<D>(job, at, height, panel, lines, &mut sums.0[..height]);
            }
        }
        at += height;
    }
}

/// Computes one tile and its epilogue.
///
/// # Safety
/// As [`sweep`]; the rows and the panel must exist.
#[inline(always)]
unsafe fn step<D: Dot>(
    job: &Job<'_, D::X>,
    row: usize,
    rows: usize,
    panel: usize,
    lines: &[Line],
    sums: &mut [[f32; PANEL]],
) {
    // Prefetch distance: 0 where the processor's own prefetcher is faster alone, else 8 KB. With
    // many rows a panel takes long enough to fetch the whole next one.
    let ahead = match job.x.rows {
        rows if rows <= D::UNAIDED_ROWS => 0,
        0..=MAX_ROWS => 128,
        _ => lines.len(),
    };
    // SAFETY: the caller's promise.
    unsafe {
        let tile = Tile {
            x: job.x.data.add(row * job.x.stride),
            stride: job.x.stride,
            k: job.k,
            panel: lines,
            ahead,
        };
        fetch_output(job, row, rows, panel);
        sums.fill([0.0; PANEL]);
        run_tile::<D>(rows, &tile, sums);
        finish_rows::<D>(job, row, panel, sums);
    }
}

/// Finishes the sums of rows from `row` on.
///
/// # Safety
/// As [`finish`], for each of the rows.
#[inline(always)]
unsafe fn finish_rows<D: Dot>(
    job: &Job<'_, D::X>,
    row: usize,
    panel: usize,
    sums: &[[f32; PANEL]],
) {
    for (m, sums) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            if D::FMA {
                finish::<true, D>(job, row + m, panel, sums);
            } else {
                finish::<false, D>(job, row + m, panel, sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_few_where_a_panel_is_dequantized_and_leave_no_thread_without_work() {
        for rows in [1, 2, 16, 128, 129, 500, 512, 513, 2000] {
            for panels in [1, 3, 18, 96, 1536] {
                for threads in [1, 2, 8, 64] {
                    let what = format!("{rows} rows, {panels} panels, {threads} threads");
                    let (across, height) = chunk_shape(rows, panels, threads, true);
                    assert!(across >= 1 && height >= 1, "{what}");
                    assert!(height <= blocks::MAX_CHUNK_ROWS, "{what}: {height} rows have no sums");
                    let chunks = panels.div_ceil(across) * rows.div_ceil(height);
                    // A chunk of 128 rows is worth another dequantization, if a thread has nothing else to do.
                    let possible = panels * rows.div_ceil(128);
                    assert!(chunks >= threads.min(possible), "{what}: {chunks} chunks");
                    // Equal heights: no short last chunk.
                    let down = rows.div_ceil(height);
                    assert!(rows > (down - 1) * height, "{what}: {down} chunks of {height} rows");
                    if panels >= 2 * threads {
                        let fewest = rows.div_ceil(blocks::MAX_CHUNK_ROWS);
                        assert_eq!(down, fewest, "{what}: panels are enough to share");
                    }
                }
            }
        }
    }

    #[test]
    fn chunks_of_dequantized_rows_are_of_nearly_the_same_height() {
        let (_, height) = chunk_shape(513, 96, 2, true);
        assert_eq!(height, 257);
        let (_, height) = chunk_shape(513, 96, 2, false);
        assert_eq!(height, 128, "nothing is dequantized for a chunk");
    }
}
