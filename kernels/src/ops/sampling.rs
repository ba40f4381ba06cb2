//! From logits to tokens.
//!
//! What a row gets depends on that row alone: the kernels compare and add integers, which have one
//! maximum and one sum in any order.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::scratch::Purpose;
use crate::{Args, Float, Gpu, Launch, Mat, MatMut, Pod, View, ViewMut};

/// How a row wants its token: laid out as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct SampleRow {
    /// Logits are divided by this; 0 takes the likeliest, of equal ones the first.
    pub temperature: f32,
    /// Keep the fewest of the likeliest tokens with at least this probability together; 1 is off.
    pub top_p: f32,
    /// Keep tokens at least this many times as likely as the likeliest; 0 is off.
    pub min_p: f32,
    /// A uniform random number, at least 0 and below 1.
    pub uniform: f32,
    /// Keep so many of the likeliest; 0 is off.
    pub top_k: i32,
}

// SAFETY: five numbers of four bytes, no padding.
unsafe impl Pod for SampleRow {}

/// The token of a row where nothing can be drawn: every logit is NaN or -infinity.
pub const NO_TOKEN: u32 = u32::MAX;

/// What [`top_k`] finds, at most.
pub const MOST_TOP_K: usize = 64;

/// So many shares of 44 bits after the point have a sum of 64 bits.
const MOST_LOGITS: usize = 1 << 20;

/// A block of argmax has this much of a row, or more.
const PIECE: usize = 4096;

/// The largest of every row of `x` (f32), the first of equal ones, a NaN before all.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn argmax(gpu: &Arc<Gpu>, x: Mat<'_>, out: ViewMut<'_, u32>) -> Result<()> {
    check("argmax", &x, out.len(), x.rows)?;
    if x.rows == 0 {
        return Ok(());
    }
    // Few rows are split, so that the whole device reads them.
    let blocks = 2 * gpu.properties().multiprocessors;
    let splits = x.width.div_ceil(PIECE).min(blocks.div_ceil(x.rows)).max(1);
    let threads = threads_for(x.width.div_ceil(splits));
    let launch = Launch::new("argmax", "argmax", 0, threads).grid([splits, x.rows, 1]);
    let args = Args::new().ptr(x.ptr).long(x.stride).int(x.width);
    if splits == 1 {
        // SAFETY: a block for each row, which writes its token.
        return unsafe { launch.enqueue(gpu, args.ptr(0).view_mut(&out)) };
    }
    // Within the lock, so that nobody else's kernel comes between the two.
    gpu.scratch(|scratch| {
        let partial = scratch.region(gpu, Purpose::Sampling, x.rows * splits * 8)?;
        // SAFETY: a block for each part of each row, whose place in `partial` is within what was asked for.
        unsafe { launch.enqueue(gpu, args.ptr(partial).view_mut(&out)) }?;
        let args = Args::new().ptr(partial).int(splits).view_mut(&out);
        // SAFETY: a block for each row.
        unsafe { Launch::new("argmax", "argmax_combine", x.rows, 32).enqueue(gpu, args) }
    })
}

/// The `k` largest of every row of `x` (f32), largest first, of equal ones the first, a NaN before all:
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

/// A token for every row of logits (f32 `[R, V]`, `V` at most 2^20), by its own rules: `out[R]`.
///
/// The stages are those of [`SampleRow`], in this order: temperature, top-k, top-p (of what top-k left),
/// min-p, and a draw that walks the kept tokens in the order of their ids. Of tokens that are equally
/// likely the lower ids are kept first. NaN and -infinity are never chosen, +infinity counts as the
/// largest finite number; where nothing is left the token is [`NO_TOKEN`]. A token whose probability is
/// less than 2^-44 of the likeliest one's is not drawn.
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
        let why = format!("rows of {}, but at most {MOST_LOGITS} can be summed up", logits.width);
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
        return Err(Error::shape(op, "rows of nothing"));
    }
    Ok(())
}

/// Threads for a row: warps enough to read it, at least two (`draw` divides a row among warps) and at
/// most sixteen (`sample` has too many registers for more). No result depends on it.
fn threads_for(width: usize) -> usize {
    (width.div_ceil(4).div_ceil(32) * 32).clamp(64, 512)
}
