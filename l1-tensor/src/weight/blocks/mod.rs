//! Block-quantised weights that stay small: codes and scales, packed in the order in which the kernels read them.
//!
//! A checkpoint's blocks follow each other along a row. A kernel wants 32 outputs side by side, as in
//! [`PackedBf16`](super::PackedBf16), so blocks are repacked when a model is loaded: panels of 32 outputs, and in a panel
//! units of one block of each output. The codes themselves do not change, so a weight takes about the size of its file.
//!
//! ```text
//! panel    | unit | unit | ...                      along K
//! unit     | scales of 32 outputs | codes of 16 inputs x 32 outputs | codes of the next 16 | ...
//! codes    for each vector of 16 outputs and each half of it a line:
//!          lane 2 i + p = output i of the half, inputs p, p + 2, ... p + 14, four bits each
//!          the fifth and sixth bit of longer codes in lines behind
//!          Q8_0: two lines for each half vector; byte 16 t + 2 i + p is the code of input 2 t + p
//! ```
//!
//! A shift moves one code of each lane to the bottom; two halves rounded to bf16 are then a line of pairs, the very
//! line that [`PackedBf16`](super::PackedBf16) would hold. So a matmul dequantizes a span of a panel into the first level
//! of the cache and runs the same kernels over it: the results are the same bits, for every instruction set and batch.
//!
//! **Why the bits are the same.** `d` and `dmin` have 11 significant bits. So the largest products of integers,
//! 2047 x 63 x 31 in Q5_K and 2047 x 128 x 32 in Q6_K, are below 2^24: products are exact in f32, and adding the minimum
//! rounds once. A fused multiply-add therefore gives what a multiplication and an addition give. The rounding to bf16 is
//! to nearest even. Every weight is a multiple of 2^-24, so none is subnormal.
//!
//! The formats of four-bit floats (NVFP4, MXFP4) do not round at all: a product has at most six significant bits. MXFP4
//! has subnormal weights, which are therefore not rounded by an instruction that takes them for zero.

mod format;
mod stored;

use half::f16;

pub use format::BlockFormat;
pub(crate) use format::{Levels, STEP, Scale, Shape};
pub use stored::StoredRow;

use stored::Block;

use super::memory::{LineMemory, Place};
use super::packed::{LANES, Line, PANEL, RowOrder, logical_row, panel_count, panel_of};
use super::panels::fill_panels;
use crate::cpu::ThreadPool;
use crate::cpu::lanes::round_bf16;
use crate::{Error, Layout, Result};

/// Number of outputs in a half of a vector: two lanes for each.
const HALF: usize = 8;

/// Number of codes in a lane.
const CODES: usize = STEP / 2;

/// Size of a line, in bytes.
const LINE: usize = size_of::<Line>();

/// Size of a step's lines of four bits, in bytes: the upper bits are behind them.
const WORDS: usize = 4 * LINE;

/// Rows of one format, which follow those of the part before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPart {
    /// Number of rows.
    pub rows: usize,
    /// Format of all of them.
    pub format: BlockFormat,
}

/// A `[n, k]` matrix in block formats, packed in panels of 32 outputs.
#[derive(Debug)]
pub struct PackedBlocks {
    n: usize,
    k: usize,
    order: RowOrder,
    runs: Vec<Run>,
    lines: LineMemory,
}

/// Panels of one format.
#[derive(Clone, Copy, Debug)]
struct Run {
    format: BlockFormat,
    /// Index of its first panel.
    first: usize,
    /// Number of its panels.
    panels: usize,
    /// Index of its first line.
    line: usize,
}

impl Run {
    /// Number of lines of a panel.
    fn panel_lines(&self, k: usize) -> usize {
        let shape = self.format.shape();
        k / shape.unit_len() * shape.unit_lines()
    }
}

/// A panel: units of one format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPanel<'a> {
    pub(crate) format: BlockFormat,
    pub(crate) lines: &'a [Line],
}

impl PackedBlocks {
    /// Whether rows of these parts can be packed: whole blocks in a row, and one format in a panel. Parts without rows
    /// do not count.
    pub fn can_pack(k: usize, order: RowOrder, parts: &[BlockPart]) -> bool {
        Plan::of(k, order, parts).is_ok()
    }

    /// Packs the rows of `parts`, `k` weights each. `row(i)` returns the blocks of logical row `i` as a file stores
    /// them: bytes, or a [`StoredRow`]. It is called once for each row, from all threads of the pool.
    ///
    /// # Errors
    /// The first error `row` returns; [`Error::BadParameter`] for parts that cannot be packed
    /// ([`can_pack`](Self::can_pack)) and for an odd number of rows in [`RowOrder::GateUp`]; [`Error::BadRow`] for a row
    /// of another size, or with a scale that is no finite number; [`Error::BadShape`] for more weights than there are
    /// addresses; [`Error::OutOfMemory`].
    #[allow(clippy::type_complexity)] // an alias would hide what the caller has to write
    pub fn pack<'a, R, E>(
        pool: &ThreadPool,
        k: usize,
        order: RowOrder,
        parts: &[BlockPart],
        row: &(dyn Fn(usize) -> std::result::Result<R, E> + Sync),
    ) -> std::result::Result<Self, E>
    where
        R: Into<StoredRow<'a>>,
        E: Send + From<Error>,
    {
        let Plan { n, runs } = Plan::of(k, order, parts)?;
        let sizes = runs.iter().flat_map(|run| std::iter::repeat_n(run.panel_lines(k), run.panels));
        let lines = fill_panels::<E>(Place::Region, pool, sizes, &|panel, _, lines| {
            let format = run_of(&runs, panel).format;
            for output in 0..PANEL {
                let at = logical_row(n, order, panel, output / LANES, output % LANES);
                let Some(i) = at else { continue };
                pack_row(format, k, row(i)?.into(), lines, output)
                    .map_err(|why| Error::BadRow { op: "pack", row: i, why })?;
            }
            Ok(())
        })?;
        Ok(Self { n, k, order, runs, lines })
    }

    /// Number of outputs: logical rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs: length of a logical row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Assignment of the logical rows to panels.
    pub fn order(&self) -> RowOrder {
        self.order
    }

    /// Number of bytes of memory held, padding included.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Formats of the panels, from the first panel on.
    pub fn formats(&self) -> impl Iterator<Item = BlockFormat> {
        self.runs.iter().map(|run| run.format)
    }

    /// Reads logical row `i` into `out` (`[k]`), each weight rounded to bf16. Weight by weight, so it takes some ten
    /// times as long as [`PackedBf16::row`](super::PackedBf16::row); a matmul reads whole lines.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a row that does not exist, [`Error::ShapeMismatch`] when `out` is not `k` long.
    pub fn row(&self, i: usize, out: &mut [f32]) -> Result<()> {
        super::check_row([self.n, self.k], i, out)?;
        let (panel, vector, lane) = panel_of(self.n, self.order, i);
        let BlockPanel { format, lines } = self.panel(panel);
        let (shape, output) = (format.shape(), vector * LANES + lane);
        let units =
            lines.chunks_exact(shape.unit_lines()).zip(out.chunks_exact_mut(shape.unit_len()));
        for (unit, out) in units {
            let unit = Unit { shape, bytes: bytes_of(unit) };
            for (g, out) in out.chunks_exact_mut(shape.group).enumerate() {
                let (scale, offset) = unit.scale(g, output);
                for (i, out) in out.iter_mut().enumerate() {
                    let code = shape.number(unit.code(g * shape.group + i, output));
                    // Without a minimum nothing is added: -0 + 0 would be +0.
                    let weight = if shape.min { scale * code + offset } else { scale * code };
                    *out = round_bf16(weight).to_f32();
                }
            }
        }
        Ok(())
    }

    /// A panel.
    pub(crate) fn panel(&self, panel: usize) -> BlockPanel<'_> {
        let run = run_of(&self.runs, panel);
        let lines = run.panel_lines(self.k);
        let first = run.line + (panel - run.first) * lines;
        BlockPanel { format: run.format, lines: &self.lines[first..][..lines] }
    }

    /// Number of panels.
    pub(crate) fn panels(&self) -> usize {
        panel_count(self.n, self.order)
    }
}

/// The run of a panel.
fn run_of(runs: &[Run], panel: usize) -> Run {
    let after = runs.partition_point(|run| run.first + run.panels <= panel);
    runs[after.min(runs.len() - 1)]
}

/// Panels of a matrix.
struct Plan {
    n: usize,
    runs: Vec<Run>,
}

impl Plan {
    /// Cuts parts into panels.
    fn of(k: usize, order: RowOrder, parts: &[BlockPart]) -> Result<Self> {
        let bad = |why: String| Error::BadParameter { op: "pack", why };
        // Neighbours of one format are one: it may have any number of rows in each.
        let mut merged: Vec<BlockPart> = Vec::with_capacity(parts.len());
        for part in parts.iter().filter(|part| part.rows > 0) {
            match merged.last_mut().filter(|last| last.format == part.format) {
                Some(last) => last.rows = last.rows.saturating_add(part.rows),
                None => merged.push(*part),
            }
        }
        let n = merged.iter().fold(0usize, |n, part| n.saturating_add(part.rows));
        // All sizes below are smaller than that of the expanded matrix.
        Layout::contiguous(&[n, k])?;
        let whole = |part: &BlockPart| k > 0 && k.is_multiple_of(part.format.unit_len());
        let fits = |(i, part): (usize, &BlockPart)| {
            let last = i + 1 == merged.len();
            let alone = last && i == 0;
            whole(part)
                && (last || part.rows.is_multiple_of(PANEL))
                && (alone || order == RowOrder::Plain)
        };
        if merged.is_empty() || !merged.iter().enumerate().all(fits) {
            let formats: Vec<_> = parts.iter().map(|part| part.format.name()).collect();
            return Err(bad(format!(
                "rows of {k} weights in {formats:?} do not fill panels of {PANEL} rows"
            )));
        }
        if order == RowOrder::GateUp && !n.is_multiple_of(2) {
            return Err(bad(format!("gates and ups come in pairs, but there are {n} rows")));
        }
        let (mut first, mut line) = (0, 0);
        let mut runs = Vec::with_capacity(merged.len());
        for part in merged {
            let run =
                Run { format: part.format, first, panels: panel_count(part.rows, order), line };
            first += run.panels;
            line += run.panels * run.panel_lines(k);
            runs.push(run);
        }
        Ok(Self { n, runs })
    }
}

/// Puts a row into its lanes of a panel of zeros.
fn pack_row(
    format: BlockFormat,
    k: usize,
    row: StoredRow<'_>,
    lines: &mut [Line],
    output: usize,
) -> std::result::Result<(), String> {
    let shape = format.shape();
    let units = k / shape.unit_len();
    let scale_bytes = format.unit_blocks() * format.scale_bytes();
    let unit_bytes = format.unit_blocks() * format.block_bytes() - scale_bytes;
    let StoredRow { blocks, scales } = row;
    if (blocks.len(), scales.len()) != (units * unit_bytes, units * scale_bytes) {
        let (got, want) = (blocks.len() + scales.len(), units * (unit_bytes + scale_bytes));
        return Err(format!("has {got} bytes; {k} weights in {format} are {want}"));
    }
    let mut block = Block::new();
    let units = blocks.chunks_exact(unit_bytes).zip(lines.chunks_exact_mut(shape.unit_lines()));
    for (i, (stored, unit)) in units.enumerate() {
        block.read(format, stored, &scales[i * scale_bytes..][..scale_bytes]);
        if !block.is_finite(shape) {
            return Err(format!("has a scale in {format} that is {}", shape.scale.unusable()));
        }
        put(shape, &block, bytes_of_mut(unit), output);
    }
    Ok(())
}

/// Puts a block into its lanes of a unit of zeros.
fn put(shape: Shape, block: &Block, unit: &mut [u8], output: usize) {
    if shape.scale == Scale::F16 {
        unit[2 * output..][..2].copy_from_slice(&block.d.to_le_bytes());
    }
    if shape.min {
        unit[LINE + 2 * output..][..2].copy_from_slice(&block.min.to_le_bytes());
    }
    if shape.nested {
        for g in 0..shape.groups {
            unit[shape.scale_line() * LINE + g * PANEL + output] = block.scales[g];
            if shape.min {
                unit[shape.min_line() * LINE + g * PANEL + output] = block.mins[g];
            }
        }
    }
    let (half, lane) = (output / HALF, output % HALF * 2);
    let steps = block.codes[..shape.unit_len()].as_chunks::<STEP>().0;
    let lines = unit[shape.code_line() * LINE..].chunks_exact_mut(shape.bits * LINE);
    for (codes, lines) in steps.iter().zip(lines) {
        if shape.bits == 8 {
            for (i, code) in codes.iter().enumerate() {
                lines[half * 2 * LINE + i / 2 * LANES + lane + i % 2] = *code;
            }
            continue;
        }
        // exercise l1.blocks
        for parity in 0..2 {
            let mut word = 0;
            let mut upper = 0;
            for t in 0..CODES {
                let code = u32::from(codes[2 * t + parity]);
                word |= (code & 15) << (4 * t);
                upper |= code >> 4 << ((shape.bits - 4) * t);
            }
            let lane = lane + parity;
            lines[half * LINE + 4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
            match shape.bits {
                5 => lines[WORDS + half * LANES + lane] = upper as u8,
                6 => {
                    let at = WORDS + half * 2 * LANES + 2 * lane;
                    lines[at..at + 2].copy_from_slice(&(upper as u16).to_le_bytes());
                }
                _ => {}
            }
        }
        // end of exercise
    }
}

/// A packed unit, read weight by weight.
struct Unit<'a> {
    shape: Shape,
    bytes: &'a [u8],
}

impl Unit<'_> {
    fn half(&self, line: usize, output: usize) -> f32 {
        let at = line * LINE + 2 * output;
        f16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]).to_f32()
    }

    /// Scale of a group, and what is added.
    fn scale(&self, group: usize, output: usize) -> (f32, f32) {
        if self.shape.scale != Scale::F16 {
            let at = self.shape.scale_line() * LINE + group * PANEL + output;
            return (self.shape.scale.of_byte(self.bytes[at]), 0.0);
        }
        // exercise l1.blocks
        let shape = self.shape;
        let (d, min) = (self.half(0, output), if shape.min { self.half(1, output) } else { 0.0 });
        if !shape.nested {
            return (d, min);
        }
        let byte = |line: usize| self.bytes[line * LINE + group * PANEL + output];
        let scale = byte(shape.scale_line());
        match shape.min {
            true => (d * f32::from(scale), -(min * f32::from(byte(shape.min_line())))),
            false => (d * f32::from(scale.cast_signed()), 0.0),
        }
        // end of exercise
    }

    /// Code of input `i`, less the one that stands for zero.
    fn code(&self, i: usize, output: usize) -> i32 {
        // exercise l1.blocks
        let shape = self.shape;
        let lines = &self.bytes[(shape.code_line() + i / STEP * shape.bits) * LINE..];
        let (half, lane, t) = (output / HALF, output % HALF * 2 + i % 2, i % STEP / 2);
        if shape.bits == 8 {
            return i32::from(lines[half * 2 * LINE + t * LANES + lane].cast_signed());
        }
        let low = lines[half * LINE + 4 * lane + t / 2] >> (t % 2 * 4) & 15;
        let upper = match shape.bits {
            5 => lines[WORDS + half * LANES + lane] >> t & 1,
            6 => lines[WORDS + half * 2 * LANES + 2 * lane + t / 4] >> (t % 4 * 2) & 3,
            _ => 0,
        };
        i32::from(low | upper << 4) - shape.zero
        // end of exercise
    }
}

/// Bytes of lines.
fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: a line is 64 bytes without padding, and any byte is valid.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

/// Bytes of lines, to write.
fn bytes_of_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: as above; any bytes are a valid line.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

#[cfg(test)]
mod tests;
