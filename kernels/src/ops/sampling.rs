//! From logits to tokens.
//!
//! The token of a row depends on that row alone: the kernels compare and add integers, so a maximum and a sum
//! are the same in any order.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::scratch::Purpose;
use crate::{Args, Float, Gpu, Launch, Mat, MatMut, Pod, View, ViewMut};

/// Sampling parameters of a row, laid out as the kernel reads them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct SampleRow {
    /// Temperature: logits are divided by it; 0 takes the most likely token, the first of equal ones.
    pub temperature: f32,
    /// Top-p: keeps the smallest set of most likely tokens with at least this probability together; 1 is off.
    pub top_p: f32,
    /// Min-p: keeps tokens at least this many times as likely as the most likely one; 0 is off.
    pub min_p: f32,
    /// Uniform random number, at least 0 and below 1.
    pub uniform: f32,
    /// Top-k: keeps so many of the most likely tokens; 0 is off.
    pub top_k: i32,
}

// SAFETY: five numbers of four bytes, no padding.
unsafe impl Pod for SampleRow {}

/// Token of a row from which nothing can be drawn: every logit is NaN or -infinity.
pub const NO_TOKEN: u32 = u32::MAX;

/// Maximum `k` of [`top_k`].
pub const MOST_TOP_K: usize = 64;

/// Maximum number of logits of a row: so many shares of 44 bits after the point have a sum of 64 bits.
const MOST_LOGITS: usize = 1 << 20;

/// Minimum number of elements of a row for each block of argmax.
const PIECE: usize = 4096;

/// Maximum number of threads of a block of argmax. Several blocks of a multiprocessor hide each other's first
/// loads and last barriers.
const ARGMAX_THREADS: usize = 256;

/// Maximum number of threads of a row that one block has: as many as a block can have.
const MAX_THREADS: usize = 1024;

/// Writes the index of the largest element of every row of `x` (f32), of equal ones the first, a NaN before
/// all.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn argmax(gpu: &Arc<Gpu>, x: Mat<'_>, out: ViewMut<'_, u32>) -> Result<()> {
    check("argmax", &x, out.len(), x.rows)?;
    if x.rows == 0 {
        return Ok(());
    }
    // Rows are split, so that the whole device reads them, and several blocks for each multiprocessor end at
    // about the same time.
    let blocks = 8 * gpu.properties().multiprocessors;
    let splits = x.width.div_ceil(PIECE).min(blocks.div_ceil(x.rows)).max(1);
    let threads = threads_for(x.width.div_ceil(splits)).min(ARGMAX_THREADS);
    let launch = Launch::new("argmax", "argmax", 0, threads).grid([splits, x.rows, 1]);
    let args = Args::new().ptr(x.ptr).long(x.stride).int(x.width);
    if splits == 1 {
        // SAFETY: a block for each row, which writes its token.
        return unsafe { launch.enqueue(gpu, args.ptr(0).view_mut(&out)) };
    }
    // Within the lock, so that no other kernel is enqueued between the two.
    gpu.scratch(|scratch| {
        let partial = scratch.region(gpu, Purpose::Sampling, x.rows * splits * 8)?;
        // SAFETY: a block for each part of each row; its index in `partial` is below the size that was
        // requested.
        unsafe { launch.enqueue(gpu, args.ptr(partial).view_mut(&out)) }?;
        let args = Args::new().ptr(partial).int(splits).view_mut(&out);
        // SAFETY: a block for each row.
        unsafe { Launch::new("argmax", "argmax_combine", x.rows, 32).enqueue(gpu, args) }
    })
}

/// Finds the `k` largest of every row of `x` (f32), largest first, of equal ones the first, a NaN before all:
/// `values` f32 `[R, k]`, `ids` `[R, k]`. `k` is at most [`MOST_TOP_K`], and not more than a row has.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn top_k(
    gpu: &Arc<Gpu>,
    x: Mat<'_>,
    k: usize,
    values: MatMut<'_>,
    ids: ViewMut<'_, u32>,
) -> Result<()> {
    const OP: &str = "top_k";
    check(OP, &x, ids.len(), x.rows * k)?;
    if k > MOST_TOP_K || k > x.width {
        return Err(Error::shape(OP, format!("{k} of {}, of at most {MOST_TOP_K}", x.width)));
    }
    if (values.dtype, values.rows, values.width) != (Float::F32, x.rows, k) {
        let why = format!("values are f32 [{}, {k}], not {values:?}", x.rows);
        return Err(Error::shape(OP, why));
    }
    if k == 0 {
        return Ok(());
    }
    let args = Args::new()
        .ptr(x.ptr)
        .long(x.stride)
        .int(x.width)
        .int(k)
        .ptr(values.ptr)
        .long(values.stride)
        .view_mut(&ids);
    // SAFETY: a block for each row; it writes `k` of each.
    unsafe { Launch::new("top_k", "top_k", x.rows, threads_for(x.width)).enqueue(gpu, args) }
}

/// Samples a token for every row of logits (f32 `[R, V]`, `V` at most 2^20), by the row's own parameters:
/// `out[R]`.
///
/// The stages are those of [`SampleRow`], in this order: temperature, top-k, top-p (of what top-k left),
/// min-p, and a draw that walks the kept tokens in the order of their ids. Of equally likely tokens the lower
/// ids are kept first. NaN and -infinity are never chosen, +infinity counts as the largest finite number;
/// where no token is left the result is [`NO_TOKEN`]. A token whose probability is less than 2^-44 of the
/// most likely one's is not drawn.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn sample(
    gpu: &Arc<Gpu>,
    logits: Mat<'_>,
    rows: View<'_, SampleRow>,
    out: ViewMut<'_, u32>,
) -> Result<()> {
    const OP: &str = "sample";
    check(OP, &logits, out.len(), logits.rows)?;
    if rows.len() != logits.rows {
        let why = format!("{} rows of logits, rules for {}", logits.rows, rows.len());
        return Err(Error::shape(OP, why));
    }
    if logits.width > MOST_LOGITS {
        let why = format!("rows have {} logits, but the maximum is {MOST_LOGITS}", logits.width);
        return Err(Error::shape(OP, why));
    }
    let args =
        Args::new().ptr(logits.ptr).long(logits.stride).int(logits.width).view(rows).view_mut(&out);
    let threads = threads_for(logits.width);
    // SAFETY: a block for each row; it reads that row and its rules and writes one token.
    unsafe { Launch::new("sample", "sample", logits.rows, threads).enqueue(gpu, args) }
}

fn check(op: &'static str, x: &Mat<'_>, out: usize, expected: usize) -> Result<()> {
    if x.dtype != Float::F32 {
        return Err(Error::shape(op, "logits are f32"));
    }
    if out != expected {
        return Err(Error::shape(op, format!("{expected} tokens into {out}")));
    }
    if x.width == 0 && x.rows > 0 {
        return Err(Error::shape(op, "rows must have at least one element"));
    }
    Ok(())
}

/// Number of threads for a row: four elements for each, and at least two warps (`draw` divides a row among
/// warps). No result depends on it.
fn threads_for(width: usize) -> usize {
    (width.div_ceil(4).div_ceil(32) * 32).clamp(64, MAX_THREADS)
}
