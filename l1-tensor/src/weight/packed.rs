//! Dense bf16 weights, packed in the order in which the kernels read them.
//!
//! ```text
//! logical  W [n, k], row-major                packed  [panels][ceil(k/2)][2][16][2]
//!
//!          k ->                               panel p, all of K in one straight run:
//!      n   . . . . . .                          pair j=0: | outputs 0..16  | outputs 16..32 |
//!      |   . . . . . .                          pair j=1: | outputs 0..16  | outputs 16..32 |
//!      v   . . . . . .                            ...
//!                                             where one | cell | is a 64-byte line:
//!                                               16 outputs x (w[2j], w[2j+1])
//! ```
//!
//! Why the rows are not kept: sixteen outputs of one input element share that element. The kernel
//! broadcasts it and multiplies it by a line of sixteen weights, and each lane of a vector register
//! is the sum of *its own* output. No sum crosses lanes, so there is no horizontal reduction at the
//! end, and each output has one accumulator from the first input to the last. Memory is read in one
//! straight line, which decides the speed when a single token is decoded. The pairs along K are
//! those that the bf16 dot product of AVX-512 multiplies at once.
//!
//! A matrix whose `n` is no multiple of 32 or whose `k` is odd is padded with zeros.

use std::sync::Mutex;

use super::memory::{LineMemory, Place};
use super::panels::{fill_panels, lock, reserve};
use crate::cpu::ThreadPool;
use crate::cpu::lanes::round_bf16;
use crate::{Error, Layout, Result};

/// Number of outputs in a vector: lanes of a 512-bit register.
pub(super) const LANES: usize = 16;

/// Number of outputs in a panel: two vectors.
pub(crate) const PANEL: usize = 2 * LANES;

/// One line of a panel: sixteen outputs by one pair along K. The low half of each lane is the
/// weight of the even input, the high half that of the odd one.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line(pub(crate) [u32; LANES]);

/// Assignment of the logical rows of a packed matrix to panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// Row `32 p + i` is output `i` of panel `p`.
    Plain,
    /// Rows `0..n/2` are gates, `n/2..n` are ups; panel `p` holds gates `16 p..` in its first
    /// vector and the ups of the same index in its second, so that `silu(gate) * up` needs no
    /// other panel.
    GateUp,
}

/// A dense `[n, k]` matrix in bf16, packed in panels of 32 outputs:
/// `[panels][ceil(k/2)][2][16][2]`, 64-byte aligned. `panels` is `ceil(n/32)`, or
/// `ceil((n/2)/16)` for [`RowOrder::GateUp`].
#[derive(Debug)]
pub struct PackedBf16 {
    n: usize,
    k: usize,
    order: RowOrder,
    lines: LineMemory,
}

impl PackedBf16 {
    /// Packs `n` rows of `k` values, rounding each to the nearest bf16 (ties to even).
    ///
    /// `row(i, out)` writes logical row `i` as f32 into `out` (`[k]`). It is called once per row,
    /// from all threads of the pool, neighbouring rows by the same thread. Besides the packed
    /// bytes only 16 rows of f32 per thread are held, never the matrix.
    ///
    /// # Errors
    /// The first error `row` returns; [`Error::BadParameter`] for an odd `n` in
    /// [`RowOrder::GateUp`]; [`Error::OutOfMemory`].
    #[allow(clippy::type_complexity)] // an alias would hide what the caller has to write
    pub fn pack<E>(
        pool: &ThreadPool,
        n: usize,
        k: usize,
        order: RowOrder,
        row: &(dyn Fn(usize, &mut [f32]) -> std::result::Result<(), E> + Sync),
    ) -> std::result::Result<Self, E>
    where
        E: Send + From<Error>,
    {
        Self::pack_at(Place::Own, pool, n, k, order, row)
    }

    /// As [`pack`](Self::pack), in memory of this place.
    ///
    /// # Errors
    /// As [`pack`](Self::pack).
    #[allow(clippy::type_complexity)] // an alias would hide what the caller has to write
    pub(super) fn pack_at<E>(
        place: Place,
        pool: &ThreadPool,
        n: usize,
        k: usize,
        order: RowOrder,
        row: &(dyn Fn(usize, &mut [f32]) -> std::result::Result<(), E> + Sync),
    ) -> std::result::Result<Self, E>
    where
        E: Send + From<Error>,
    {
        if order == RowOrder::GateUp && !n.is_multiple_of(2) {
            let why = format!("gates and ups come in pairs, but there are {n} rows");
            return Err(Error::BadParameter { op: "pack", why }.into());
        }
        let too_big = || Error::BadShape { shape: vec![n, k], why: "its size overflows" };
        Layout::contiguous(&[n, k])?;
        let panels = panel_count(n, order);
        let panel_lines = k.div_ceil(2) * 2;
        panels.checked_mul(panel_lines).ok_or_else(too_big)?;

        // A row in the scratch is padded to whole blocks of 16 pairs, with zeros.
        let padded = k.next_multiple_of(2 * LANES);
        let mut scratch = Vec::with_capacity(pool.threads());
        for _ in 0..pool.threads() {
            let mut rows: Vec<f32> = reserve(LANES * padded)?;
            rows.resize(LANES * padded, 0.0);
            scratch.push(Mutex::new(rows));
        }
        let sizes = std::iter::repeat_n(panel_lines, panels);
        let lines = fill_panels::<E>(place, pool, sizes, &|panel, worker, lines| {
            let mut rows = lock(&scratch[worker]);
            for vector in 0..2 {
                for lane in 0..LANES {
                    let out = &mut rows[lane * padded..][..k];
                    match logical_row(n, order, panel, vector, lane) {
                        Some(i) => row(i, out)?,
                        None => out.fill(0.0),
                    }
                }
                interleave(&rows, padded, k, lines, vector);
            }
            Ok(())
        })?;
        Ok(Self { n, k, order, lines })
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

    /// Reads logical row `i` back into `out` (`[k]`), as f32. So a tied matrix serves as both the
    /// output head and the embedding table: reading a row costs about a microsecond, a second copy
    /// would cost its size in memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a row that does not exist, [`Error::ShapeMismatch`] when `out` is
    /// not `k` long.
    pub fn row(&self, i: usize, out: &mut [f32]) -> Result<()> {
        super::check_row([self.n, self.k], i, out)?;
        let (panel, vector, lane) = panel_of(self.n, self.order, i);
        // exercise l1.pack
        let lines = &self.lines[panel * self.panel_lines()..][..self.panel_lines()];
        for (pair, out) in lines.chunks_exact(2).zip(out.chunks_mut(2)) {
            let both = pair[vector].0[lane];
            out[0] = f32::from_bits(both << 16);
            if let Some(odd) = out.get_mut(1) {
                *odd = f32::from_bits(both & 0xffff_0000);
            }
        }
        Ok(())
        // end of exercise
    }

    /// All lines, panel after panel.
    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Number of panels.
    pub(crate) fn panels(&self) -> usize {
        panel_count(self.n, self.order)
    }

    /// Lines in a panel.
    pub(crate) fn panel_lines(&self) -> usize {
        self.k.div_ceil(2) * 2
    }
}

pub(super) fn panel_count(n: usize, order: RowOrder) -> usize {
    match order {
        RowOrder::Plain => n.div_ceil(PANEL),
        RowOrder::GateUp => (n / 2).div_ceil(LANES),
    }
}

/// Panel, vector and lane of logical row `i` of `n`.
pub(super) fn panel_of(n: usize, order: RowOrder, i: usize) -> (usize, usize, usize) {
    // exercise l1.pack
    match order {
        RowOrder::Plain => (i / PANEL, i % PANEL / LANES, i % LANES),
        RowOrder::GateUp => {
            let half = n / 2;
            let (vector, i) = if i < half { (0, i) } else { (1, i - half) };
            (i / LANES, vector, i % LANES)
        }
    }
    // end of exercise
}

/// Logical row at this position, or `None` for padding.
pub(super) fn logical_row(
    n: usize,
    order: RowOrder,
    panel: usize,
    vector: usize,
    lane: usize,
) -> Option<usize> {
    // exercise l1.pack
    match order {
        RowOrder::Plain => Some(panel * PANEL + vector * LANES + lane).filter(|i| *i < n),
        RowOrder::GateUp => {
            let i = panel * LANES + lane;
            (i < n / 2).then_some(vector * (n / 2) + i)
        }
    }
    // end of exercise
}

/// Rounds sixteen rows to bf16 and writes them as one vector of a panel: a transposition of `[16
/// rows][pairs]` to `[pairs][16 rows]`, in blocks of 16 by 16 pairs that stay in the L1 cache.
///
/// `panel` has `2 * ceil(k/2)` lines; `rows` holds 16 rows of `padded` values, and `padded` is `k`
/// rounded up to a multiple of 32.
fn interleave(rows: &[f32], padded: usize, k: usize, panel: &mut [Line], vector: usize) {
    // exercise l1.pack
    let pairs = k.div_ceil(2);
    for start in (0..pairs).step_by(LANES) {
        let mut block = [[0u32; LANES]; LANES];
        for (lane, block) in block.iter_mut().enumerate() {
            let values = &rows[lane * padded + 2 * start..][..2 * LANES];
            for (pair, v) in block.iter_mut().zip(values.chunks_exact(2)) {
                *pair = bf16_bits(v[0]) | bf16_bits(v[1]) << 16;
            }
        }
        for j in start..pairs.min(start + LANES) {
            panel[2 * j + vector] = Line(std::array::from_fn(|lane| block[lane][j - start]));
        }
    }
    // end of exercise
}

/// The bits of the bf16 nearest to `x`.
#[inline(always)]
fn bf16_bits(x: f32) -> u32 {
    u32::from(round_bf16(x).to_bits())
}

#[cfg(test)]
mod tests;
