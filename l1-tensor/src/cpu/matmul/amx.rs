//! The matmul in tiles (Intel's AMX): sixteen rows by sixteen outputs by 32 inputs in one instruction.
//!
//! ```text
//! tile of x: 16 rows x 32 inputs        tile of weights: 16 pairs of inputs x 16 outputs    tile of sums: 16 x 16 f32
//!            as they lie in memory                       every second line of a panel
//! ```
//!
//! The packed panels need no other layout: a line is 16 outputs by one pair of inputs, which is a row of a tile. The
//! tiles of a Xeon make 26 times the multiplications of its `vdpbf16ps`, so memory is the limit for more rows.
//!
//! **Order of sums.** Each `tdpbf16ps` adds a *block* of 32 inputs to every sum: the even inputs in one chain of fused
//! steps that begins at zero, the odd ones in another, then `sum + (even + odd)`. Intel's manual specifies it, with
//! numbers below 2^-126 read and written as zero. Blocks follow each other along K, so a sum still depends on its own
//! row alone. It is not the order of the other kernels: see [`crate::ops::linear::reference`].

mod few_rows;

use std::arch::asm;

use half::bf16;

use crate::weight::{Line, PANEL};

use super::blocks::{Buffer, ChunkSums, PanelSpans};
use super::epilogue::fetch_output;
use super::tile::{LANES, Sums};
use super::x86::Avx512Dot;
use super::{Blocks, Job, Kernel, Lines, finish_rows};

/// Inputs in a block: one instruction's share of K.
const BLOCK: usize = 32;

/// Rows of a tile.
const TILE_ROWS: usize = 16;

/// Rows that are computed at once: two tiles, against two tiles of weights.
const ROWS: usize = 2 * TILE_ROWS;

/// Lines of a panel in a block: two vectors for each pair of inputs.
const BLOCK_LINES: usize = BLOCK;

/// Prefetches the lines of a block, two blocks ahead: 4 KiB (measured on a Xeon: 7% for 32 rows and more, nothing for
/// few). Lines that have just been dequantized are in the cache.
macro_rules! prefetch_block {
    ($($line:literal)*) => {
        concat!($("prefetcht0 [{lines} + 4096 + 64 * ", $line, "]\n"),*)
    };
}
macro_rules! prefetch_lines {
    () => {
        prefetch_block!(
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        )
    };
}

/// Inputs of the last, partial block, padded with zeros: they add nothing.
#[repr(align(64))]
struct Tail {
    x: [[bf16; BLOCK]; ROWS],
    lines: [Line; BLOCK_LINES],
}

/// Where the lines of a panel are.
#[derive(Clone, Copy)]
enum Source {
    Memory,
    Cache,
}

/// Shapes of the eight tile registers, in the layout of `ldtilecfg`.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Registers 0 and 1 are the sums of the first `rows` rows, 2 and 3 those of the rest; 4 and 5 are their inputs;
    /// 6 and 7 are weights.
    fn of(rows: usize) -> Self {
        let first = rows.min(TILE_ROWS) as u8;
        // `ldtilecfg` refuses a register with columns and no rows, so one that is not used gets a row.
        let second = rows.saturating_sub(TILE_ROWS).max(1) as u8;
        let weights = TILE_ROWS as u8;
        let mut shapes =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let rows = [first, first, second, second, first, second, weights, weights];
        shapes.rows[..8].copy_from_slice(&rows);
        shapes.row_bytes[..8].fill(size_of::<Line>() as u16);
        shapes
    }
}

/// The kernel for this processor.
pub(super) fn kernel() -> Kernel<bf16> {
    Kernel { chunk, blocks: chunk_of_blocks, peak }
}

/// Computes one chunk: see [`super::sweep`].
///
/// # Safety
/// As [`super::matmul`], where [`Isa::Amx`](crate::cpu::Isa::Amx) is available: without the permission that it has
/// asked for, the first tile is an illegal instruction.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
unsafe fn chunk(job: &Job<'_, bf16>, lines: Lines<'_>, chunk: usize) {
    let (rows, panels) = job.ranges(chunk);
    let mut sums = Sums([[0.0; PANEL]; ROWS]);
    for row in rows.clone().step_by(ROWS) {
        let height = ROWS.min(rows.end - row);
        let (shapes, sums) = (Shapes::of(height), &mut sums.0[..height]);
        for panel in panels.clone() {
            fetch_output(job, row, height, panel);
            sums.fill([0.0; PANEL]);
            // SAFETY: the caller's promise; rows and panel are within the matrices.
            unsafe {
                let x = job.x.data.add(row * job.x.stride);
                let lines = &lines.all[panel * lines.each..][..lines.each];
                tile(x, job.x.stride, job.k, &shapes, Source::Memory, lines, sums);
                finish_rows::<Avx512Dot>(job, row, panel, sums);
            }
        }
    }
}

/// Computes one chunk of a weight in block formats: see [`super::blocks::sweep`].
///
/// # Safety
/// As [`chunk`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
unsafe fn chunk_of_blocks(job: &Job<'_, bf16>, weight: Blocks<'_>, chunk: usize) {
    let (rows, panels) = job.ranges(chunk);
    if rows.len() <= few_rows::ROWS && panels.clone().all(|panel| weight.panel(panel).has_outputs())
    {
        // SAFETY: the caller's promise.
        return unsafe { few_rows::chunk(job, weight, rows, panels) };
    }
    let (mut buffer, mut memory) = (Buffer::new(), ChunkSums::new());
    let spans = PanelSpans::new(weight, rows.len(), ROWS);
    let (whole, last) = (Shapes::of(ROWS), Shapes::of(rows.len() % ROWS));
    // SAFETY: the caller's promise.
    let registers = (rows.len() <= ROWS).then(|| unsafe { Registers::new(rows.len()) });
    for panel in panels {
        fetch_output(job, rows.start, rows.len(), panel);
        let sums = memory.zeros(rows.len());
        // SAFETY: the caller's promise: the rows exist, and have the inputs of this span. All units are whole blocks.
        let x = |row: usize, from: usize| unsafe {
            job.x.data.add((rows.start + row) * job.x.stride + from)
        };
        match &registers {
            // SAFETY: the caller's promise; the rows have the inputs of this block.
            Some(registers) => unsafe {
                registers.zero();
                spans.for_each(panel, &mut buffer, |from, lines| {
                    registers.add_block(x(0, from), job.x.stride, lines);
                });
                registers.store(sums);
            },
            None => spans.for_each(panel, &mut buffer, |from, lines| {
                for (i, sums) in sums.chunks_mut(ROWS).enumerate() {
                    let shapes = if sums.len() == ROWS { &whole } else { &last };
                    // SAFETY: as above.
                    unsafe {
                        let x = x(i * ROWS, from);
                        tile(x, job.x.stride, lines.len(), shapes, Source::Cache, lines, sums);
                    }
                }
            }),
        }
        // SAFETY: the caller's promise.
        unsafe { finish_rows::<Avx512Dot>(job, rows.start, panel, sums) };
    }
}

/// Adds the products of rows of `k` inputs with a panel, or a span of it, to their sums.
///
/// # Safety
/// As [`chunk`]; as many rows as there are sums, at most [`ROWS`], of `k` elements must be readable at `x`, `stride`
/// apart. `shapes` must be those of this number of rows, and `lines` two for each pair of inputs.
#[inline(always)]
unsafe fn tile(
    x: *const bf16,
    stride: usize,
    k: usize,
    shapes: &Shapes,
    source: Source,
    lines: &[Line],
    sums: &mut [[f32; PANEL]],
) {
    let (blocks, rest) = (k / BLOCK, k % BLOCK);
    // SAFETY: the caller's promise: rows of `k` inputs, of which whole blocks are read, and as many blocks of lines. The
    // padded block has the shapes of a whole one.
    unsafe {
        if blocks > 0 {
            add_blocks(shapes, x, stride, source, lines.as_ptr(), blocks, sums);
        }
        if rest > 0 {
            let mut tail =
                Tail { x: [[bf16::ZERO; BLOCK]; ROWS], lines: [Line([0; LANES]); BLOCK_LINES] };
            for (m, padded) in tail.x[..sums.len()].iter_mut().enumerate() {
                let inputs = x.add(m * stride + blocks * BLOCK);
                padded[..rest].copy_from_slice(std::slice::from_raw_parts(inputs, rest));
            }
            let left = &lines[blocks * BLOCK_LINES..];
            tail.lines[..left.len()].copy_from_slice(left);
            let (x, lines) = (tail.x.as_ptr().cast(), tail.lines.as_ptr());
            add_blocks(shapes, x, BLOCK, source, lines, 1, sums);
        }
    }
}

/// Adds `blocks` blocks of inputs to the sums.
///
/// # Safety
/// As [`chunk`]. As many rows of `blocks` blocks as there are sums, `stride` elements apart, must be readable at `x`, and
/// as many blocks of lines at `lines`. `shapes` must be those of this number of rows.
#[inline(always)]
unsafe fn add_blocks(
    shapes: &Shapes,
    x: *const bf16,
    stride: usize,
    source: Source,
    lines: *const Line,
    blocks: usize,
    sums: &mut [[f32; PANEL]],
) {
    let rows = sums.len();
    debug_assert!((1..=ROWS).contains(&rows) && blocks > 0);
    let stride = stride * size_of::<bf16>();
    let sums = sums.as_mut_ptr();
    // The distance of rows of sums is that of lines of a vector too; the others are literals in the text.
    const {
        assert!(size_of::<[f32; PANEL]>() == 2 * size_of::<Line>());
        assert!(BLOCK * size_of::<bf16>() == 64 && BLOCK_LINES * size_of::<Line>() == 2048);
    }
    // The compiler knows nothing of the shapes of tiles, so the block that needs them sets and releases them. A second
    // tile of one unread row would let one block serve both heights; it made a step of one row 6% slower. So the second
    // tile is an argument of the text, as is what fetches lines ahead.
    macro_rules! sum {
        (
            prefetch: $prefetch:expr,
            second tile: load [$($load:literal)*] multiply [$($multiply:literal)*] store [$($store:literal)*]
                operands [$($operands:tt)*]
        ) => {
            asm!(
                "ldtilecfg [{shapes}]",
                "tileloadd tmm0, [{sums} + 1*{apart}]",
                "tileloadd tmm1, [{sums} + 1*{apart} + 64]",
                $($load,)*
                "2:",
                "tileloadd tmm4, [{x} + 1*{stride}]",
                "tileloadd tmm6, [{lines} + 1*{apart}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{lines} + 1*{apart} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                $($multiply,)*
                "add {x}, 64",
                $prefetch,
                "add {lines}, 2048",
                "dec {blocks}",
                "jnz 2b",
                "tilestored [{sums} + 1*{apart}], tmm0",
                "tilestored [{sums} + 1*{apart} + 64], tmm1",
                $($store,)*
                "tilerelease",
                shapes = in(reg) shapes,
                sums = in(reg) sums,
                apart = in(reg) size_of::<[f32; PANEL]>(),
                x = inout(reg) x => _,
                stride = in(reg) stride,
                lines = inout(reg) lines => _,
                blocks = inout(reg) blocks => _,
                $($operands)*
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                out("tmm6") _, out("tmm7") _,
                options(nostack),
            )
        };
        ($prefetch:expr) => {
            if rows <= TILE_ROWS {
                sum!(prefetch: $prefetch, second tile: load [] multiply [] store [] operands [])
            } else {
                sum!(
                    prefetch: $prefetch,
                    second tile:
                    load [
                        "tileloadd tmm2, [{second} + 1*{apart}]"
                        "tileloadd tmm3, [{second} + 1*{apart} + 64]"
                    ]
                    multiply [
                        "tileloadd tmm5, [{below} + 1*{stride}]"
                        "tdpbf16ps tmm2, tmm5, tmm6"
                        "tdpbf16ps tmm3, tmm5, tmm7"
                        "add {below}, 64"
                    ]
                    store [
                        "tilestored [{second} + 1*{apart}], tmm2"
                        "tilestored [{second} + 1*{apart} + 64], tmm3"
                    ]
                    operands [
                        second = in(reg) sums.add(TILE_ROWS),
                        below = inout(reg) x.byte_add(TILE_ROWS * stride) => _,
                    ]
                )
            }
        };
    }
    // SAFETY: the caller's promise for what is read; the sums have room for two tiles of rows.
    unsafe {
        match source {
            Source::Memory => sum!(prefetch_lines!()),
            Source::Cache => sum!(""),
        }
    }
}

/// The tile registers of this thread, with the shapes of at most [`ROWS`] rows, until it is dropped. Other instructions
/// can run between two blocks, so the sums of few rows wait for each other while the next block is dequantized.
///
/// Each function is a piece of assembly that finds the registers as the one before has left them. The compiler does not
/// promise that; it cannot break it either, as it knows no other instruction that names a tile: no function of this
/// crate has the feature `amx-tile`, and the system keeps them from one turn of a thread to the next.
struct Registers {
    rows: usize,
}

impl Registers {
    /// Shapes the registers.
    ///
    /// # Safety
    /// As [`chunk`]. There must be no other on this thread until this one is dropped.
    #[inline(always)]
    unsafe fn new(rows: usize) -> Self {
        debug_assert!((1..=ROWS).contains(&rows));
        // SAFETY: the caller's promise.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &Shapes::of(rows), options(nostack, readonly));
        }
        Self { rows }
    }

    /// Begins sums.
    ///
    /// # Safety
    /// As [`chunk`].
    #[inline(always)]
    unsafe fn zero(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem)
            );
        }
    }

    /// Adds a block of inputs.
    ///
    /// # Safety
    /// As [`chunk`]; as many rows of [`BLOCK`] elements must be readable at `x`, `stride` apart, as the registers have.
    #[inline(always)]
    unsafe fn add_block(&self, x: *const bf16, stride: usize, lines: &[Line]) {
        assert!(lines.len() == BLOCK_LINES);
        let (lines, apart) = (lines.as_ptr(), 2 * size_of::<Line>());
        let stride = stride * size_of::<bf16>();
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm4, [{x} + 1*{stride}]",
                "tileloadd tmm6, [{lines} + 1*{apart}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{lines} + 1*{apart} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                x = in(reg) x,
                stride = in(reg) stride,
                lines = in(reg) lines,
                apart = in(reg) apart,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
            if self.rows > TILE_ROWS {
                asm!(
                    "tileloadd tmm5, [{x} + 1*{stride}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    x = in(reg) x.byte_add(TILE_ROWS * stride),
                    stride = in(reg) stride,
                    out("tmm2") _, out("tmm3") _, out("tmm5") _,
                    options(nostack, readonly),
                );
            }
        }
    }

    /// Writes the sums.
    ///
    /// # Safety
    /// As [`chunk`].
    #[inline(always)]
    unsafe fn store(&self, sums: &mut [[f32; PANEL]]) {
        assert!(sums.len() == self.rows);
        let (first, apart) = (sums.as_mut_ptr(), size_of::<[f32; PANEL]>());
        // SAFETY: the caller's promise; the sums have room for the rows of the tiles.
        unsafe {
            asm!(
                "tilestored [{sums} + 1*{apart}], tmm0",
                "tilestored [{sums} + 1*{apart} + 64], tmm1",
                sums = in(reg) first,
                apart = in(reg) apart,
                options(nostack),
            );
            if self.rows > TILE_ROWS {
                asm!(
                    "tilestored [{sums} + 1*{apart}], tmm2",
                    "tilestored [{sums} + 1*{apart} + 64], tmm3",
                    sums = in(reg) first.add(TILE_ROWS),
                    apart = in(reg) apart,
                    options(nostack),
                );
            }
        }
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: they have been shaped, so the processor has them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Multiplies zeros, `rounds` times with four tiles of sums, without memory accesses. Returns the number of floating
/// point operations.
///
/// # Safety
/// As [`chunk`].
unsafe fn peak(rounds: usize) -> usize {
    let shapes = Shapes::of(ROWS);
    // SAFETY: the caller's promise; no memory is accessed but the shapes.
    unsafe {
        asm!(
            "ldtilecfg [{shapes}]",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {rounds}",
            "jnz 2b",
            "tilerelease",
            shapes = in(reg) &raw const shapes,
            rounds = inout(reg) rounds.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
            out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
    rounds.max(1) * 4 * TILE_ROWS * LANES * BLOCK * 2
}
