//! What happens to a sum on its way from the registers to memory.

use half::bf16;

use crate::cpu::lanes::round_bf16;
use crate::ops::{gelu_erf, gelu_tanh, silu};
use crate::weight::{PANEL, RowOrder};

use super::Job;
use super::tile::LANES;

/// What to do with `y = sum + bias`.
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

/// Where the outputs go: rows of f32 or bf16, `stride` elements apart.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    /// The first element, in the type it is stored as.
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

/// Finish the 32 sums that row `row` has with panel `panel`.
///
/// # Safety
/// `job.out` must be valid for this row, and no other thread may touch this row's outputs of this
/// panel meanwhile.
#[inline(always)]
pub(super) unsafe fn finish<const FMA: bool, X>(
    job: &Job<'_, X>,
    row: usize,
    panel: usize,
    sums: &[f32; PANEL],
) {
    let (first, second) = sums.split_at(LANES);
    let (first, second) = (lanes(first), lanes(second));
    // Each vector starts at this output, and holds so many before its padding.
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
    let y0 = biased(job, first, col0, len0);
    let y1 = biased(job, second, col1, len1);
    // SAFETY: the caller's promise; columns and lengths are those of the weight's outputs, which
    // the output has room for, and belong to this panel alone.
    unsafe {
        match job.after {
            After::Store => {
                write(job.out, row, col0, len0, |i, _| y0[i]);
                write(job.out, row, col1, len1, |i, _| y1[i]);
            }
            After::Add => {
                write(job.out, row, col0, len0, |i, old| old + y0[i]);
                write(job.out, row, col1, len1, |i, old| old + y1[i]);
            }
            After::AddScaled(factor) => {
                write(job.out, row, col0, len0, |i, old| old + factor * y0[i]);
                write(job.out, row, col1, len1, |i, old| old + factor * y1[i]);
            }
            After::SiluMul => write(job.out, row, col0, len0, |i, _| silu::<FMA>(y0[i]) * y1[i]),
            After::GeluTanhMul => {
                write(job.out, row, col0, len0, |i, _| gelu_tanh::<FMA>(y0[i]) * y1[i]);
            }
            After::GeluMul => {
                write(job.out, row, col0, len0, |i, _| gelu_erf::<FMA>(y0[i]) * y1[i]);
            }
        }
    }
}

#[inline(always)]
fn lanes(v: &[f32]) -> [f32; LANES] {
    std::array::from_fn(|i| v[i])
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

/// `out[row][col + i] = f(i, old value)` for `i < len`. Only f32 outputs have an old value; a
/// rounded one is never added to.
///
/// # Safety
/// `len` elements from `(row, col)` on must be this thread's to write.
#[inline(always)]
unsafe fn write(out: Out, row: usize, col: usize, len: usize, f: impl Fn(usize, f32) -> f32) {
    let at = row * out.stride + col;
    // SAFETY: the caller's promise, for every slice made here.
    unsafe {
        match out.data {
            OutData::F32(p) if len == LANES => {
                let out = &mut *p.add(at).cast::<[f32; LANES]>();
                let old = *out;
                *out = std::array::from_fn(|i| f(i, old[i]));
            }
            OutData::F32(p) => {
                for i in 0..len {
                    let p = p.add(at + i);
                    *p = f(i, *p);
                }
            }
            OutData::Bf16(p) if len == LANES => {
                let y: [f32; LANES] = std::array::from_fn(|i| f(i, 0.0));
                *p.add(at).cast::<[bf16; LANES]>() = y.map(|v| round_bf16(v));
            }
            OutData::Bf16(p) => {
                for i in 0..len {
                    *p.add(at + i) = round_bf16(f(i, 0.0));
                }
            }
        }
    }
}
