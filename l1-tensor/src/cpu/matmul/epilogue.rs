//! Epilogues: from the sums in registers to the outputs in memory.

use half::bf16;

use crate::ops::{gelu_erf, gelu_tanh, silu};
use crate::weight::{Factors, PANEL, RowOrder};

use super::Job;
use super::tile::{Dot, LANES, prefetch};

/// Operation on `y = sum * factor + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum After {
    /// `out = y`.
    Store,
    /// `out = out + y`.
    Add,
    /// `out = out + factor * y`.
    AddScaled(f32),
    /// `out = silu(gate) * up`.
    SiluMul,
    /// `out = gelu(gate) * up`, GELU by its tanh form.
    GeluTanhMul,
    /// `out = gelu(gate) * up`, GELU by the error function.
    GeluMul,
}

impl After {
    /// Whether it folds a gate and an up into one output.
    pub(crate) fn folds(self) -> bool {
        matches!(self, After::SiluMul | After::GeluTanhMul | After::GeluMul)
    }
}

/// Destination of the outputs: rows of f32 or bf16, `stride` elements apart.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    /// The first element, by its type.
    pub(crate) data: OutData,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
}

/// The first element of the output.
#[derive(Clone, Copy)]
pub(crate) enum OutData {
    /// Stored as summed.
    F32(*mut f32),
    /// Rounded to nearest even.
    Bf16(*mut bf16),
}

/// Finishes the 32 sums of row `row` and panel `panel`.
///
/// # Safety
/// `job.out` must be valid for this row, and no other thread may touch this row's outputs of this
/// panel meanwhile.
#[inline(always)]
pub(super) unsafe fn finish<const FMA: bool, D: Dot>(
    job: &Job<'_, D::X>,
    row: usize,
    panel: usize,
    sums: &[f32; PANEL],
) {
    let (first, second) = sums.split_at(LANES);
    let (first, second) = (lanes(first), lanes(second));
    // Each vector starts at this output, and holds this many before its padding.
    let ((col0, len0), (col1, len1)) = match job.order {
        RowOrder::Plain => {
            let col = panel * PANEL;
            let left = job.n - col;
            ((col, left.min(LANES)), (col + LANES, left.saturating_sub(LANES).min(LANES)))
        }
        RowOrder::GateUp => {
            let (col, half) = (panel * LANES, job.n / 2);
            let len = (half - col).min(LANES);
            ((col, len), (half + col, len))
        }
    };
    let y0 = biased(job, scaled(job, first, col0, len0), col0, len0);
    let y1 = biased(job, scaled(job, second, col1, len1), col1, len1);
    let folded = match job.after {
        After::SiluMul => fold(y0, y1, |gate, up| silu::<FMA>(gate) * up),
        After::GeluTanhMul => fold(y0, y1, |gate, up| gelu_tanh::<FMA>(gate) * up),
        After::GeluMul => fold(y0, y1, |gate, up| gelu_erf::<FMA>(gate) * up),
        After::Store | After::Add | After::AddScaled(_) => y0,
    };
    // SAFETY: the caller's promise; columns and lengths are those of the weight's outputs, which
    // the output has room for, and belong to this panel alone.
    unsafe {
        write::<D>(job, row, col0, len0, folded);
        if !job.after.folds() {
            write::<D>(job, row, col1, len1, y1);
        }
    }
}

/// Prefetches the lines of the output that a tile is about to write. A tile multiplies for a
/// microsecond and then stores all its outputs at once: without this it would wait for every line
/// (a seventh of the whole time, measured on Zen 5).
#[inline(always)]
pub(super) fn fetch_output<X>(job: &Job<'_, X>, row: usize, rows: usize, panel: usize) {
    let width = if job.after.folds() { LANES } else { PANEL };
    for row in row..row + rows {
        let at = row * job.out.stride + panel * width;
        match job.out.data {
            OutData::F32(p) => {
                prefetch(p.wrapping_add(at).cast());
                prefetch(p.wrapping_add(at + width - LANES).cast());
            }
            OutData::Bf16(p) => prefetch(p.wrapping_add(at).cast()),
        }
    }
}

/// Computes `f` of each gate and up. The compiler turns a plain loop over sixteen into one vector.
#[inline(always)]
fn fold(gate: [f32; LANES], up: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(gate[i], up[i]);
    }
    out
}

#[inline(always)]
fn lanes(v: &[f32]) -> [f32; LANES] {
    v.as_chunks().0[0]
}

/// Sums times the factors of their rows: multiplied and rounded before the bias is added.
#[inline(always)]
fn scaled<X>(job: &Job<'_, X>, y: [f32; LANES], col: usize, len: usize) -> [f32; LANES] {
    match job.factors {
        None => y,
        Some(Factors::All(factor)) => y.map(|y| y * factor),
        Some(Factors::Rows(rows)) => {
            let mut factors = [1.0; LANES];
            factors[..len].copy_from_slice(&rows[col.min(rows.len())..][..len]);
            std::array::from_fn(|i| y[i] * factors[i])
        }
    }
}

#[inline(always)]
fn biased<X>(job: &Job<'_, X>, y: [f32; LANES], col: usize, len: usize) -> [f32; LANES] {
    let Some(bias) = job.bias else { return y };
    let mut out = y;
    if len == LANES {
        let bias = &bias[col..][..LANES];
        for i in 0..LANES {
            out[i] += bias[i];
        }
    } else {
        for (y, b) in out.iter_mut().zip(&bias[col.min(bias.len())..][..len]) {
            *y += b;
        }
    }
    out
}

/// Writes `len` values from `(row, col)` on, or adds them to the old values. Only f32 outputs are
/// ever added to.
///
/// # Safety
/// No other thread may access these elements.
#[inline(always)]
unsafe fn write<D: Dot>(job: &Job<'_, D::X>, row: usize, col: usize, len: usize, y: [f32; LANES]) {
    let at = row * job.out.stride + col;
    match job.out.data {
        OutData::F32(p) => {
            // SAFETY: the caller's promise.
            let out = unsafe { std::slice::from_raw_parts_mut(p.add(at), len) };
            match out.as_chunks_mut::<LANES>() {
                ([whole], []) => *whole = combine(job.after, *whole, y),
                _ => {
                    let mut padded = [0.0; LANES];
                    padded[..len].copy_from_slice(out);
                    out.copy_from_slice(&combine(job.after, padded, y)[..len]);
                }
            }
        }
        OutData::Bf16(p) => {
            // SAFETY: the caller's promise; this processor runs `D`'s instruction set.
            let (out, y) = unsafe { (std::slice::from_raw_parts_mut(p.add(at), len), D::round(y)) };
            match out.as_chunks_mut::<LANES>() {
                ([whole], []) => *whole = y,
                _ => out.copy_from_slice(&y[..len]),
            }
        }
    }
}

/// New value in place of `old`. Arrays by value and a plain loop, as in [`fold`]: with slices the
/// compiler falls back to single elements, and storing costs more than a gate does.
#[inline(always)]
fn combine(after: After, old: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
    // exercise l1.linear
    let mut out = y;
    match after {
        After::Add => {
            for i in 0..LANES {
                out[i] = old[i] + y[i];
            }
        }
        After::AddScaled(factor) => {
            for i in 0..LANES {
                out[i] = old[i] + factor * y[i];
            }
        }
        _ => {}
    }
    out
    // end of exercise
}
