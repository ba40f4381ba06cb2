//! Rotary position embedding.

use std::sync::Arc;

use super::rows::{Rows, THREADS, fits, typed, whole};
use crate::error::{Error, Result};
use crate::{Args, Float, Gpu, HeadsMut, Launch, Mat, MatMut, View};

const FILE: &str = "rope";

/// `cos[t, i] = scaling * cos(positions[t] * inv_freq[i])`, and sin: f32 `[T, rotary_dim / 2]`. As in
/// transformers, the product is rounded to f32 before the cosine is taken.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn rope_angles(
    gpu: &Arc<Gpu>,
    positions: View<'_, i32>,
    inv_freq: View<'_, f32>,
    scaling: f32,
    cos: MatMut<'_>,
    sin: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "rope_angles";
    let (tokens, half) = (positions.len(), inv_freq.len());
    for (name, m) in [("cos", &cos), ("sin", &sin)] {
        typed(OP, name, m.dtype, Float::F32)?;
        fits(OP, m.into())?;
        if (m.rows, m.width) != (tokens, half) {
            let why = format!(
                "{name} is [{}, {}] for {tokens} positions and {half} frequencies",
                m.rows, m.width
            );
            return Err(Error::shape(OP, why));
        }
    }
    let args = Args::new().view(positions).view(inv_freq).float(scaling).ptr(cos.ptr).ptr(sin.ptr);
    let args = args.int(tokens).int(half).long(cos.stride).long(sin.stride);
    let launch = Launch::new(FILE, OP, (tokens * half).div_ceil(THREADS), THREADS);
    // SAFETY: a thread writes one element of `cos` and the same of `sin`, whose row and column are
    // those of a position and of a frequency.
    unsafe { launch.enqueue(gpu, args) }
}

/// Turns the first `rotary_dim` elements of every head by its token's angles, in place; pairs are `(i, i +
/// rotary_dim / 2)`, and `cos` and `sin` are `[T, rotary_dim / 2]`. All are f32. Products are rounded one by
/// one, so the bits are those of a scalar loop.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn rope(gpu: &Arc<Gpu>, x: HeadsMut<'_>, cos: Mat<'_>, sin: Mat<'_>) -> Result<()> {
    const OP: &str = "rope";
    let half = cos.width;
    typed(OP, "x", x.dtype, Float::F32)?;
    for (name, m) in [("cos", &cos), ("sin", &sin)] {
        typed(OP, name, m.dtype, Float::F32)?;
        if (m.rows, m.width) != (x.tokens, half) || 2 * half > x.dim {
            let why = format!(
                "{name} is [{}, {}] for {} tokens with heads of {}; they must be \
                 [tokens, rotary_dim / 2] with rotary_dim <= head_dim",
                m.rows, m.width, x.tokens, x.dim
            );
            return Err(Error::shape(OP, why));
        }
    }
    let (rows, angles) = (Rows::from(&x), [Rows::from(&cos), Rows::from(&sin)]);
    fits(OP, rows)?;
    // Parts that must be whole quads: the first halves, the second halves behind them, and one head behind
    // the other.
    let first = Rows { width: half, ..rows };
    let head = Rows { width: x.dim, ..rows };
    let all_whole = whole([first, head, angles[0], angles[1]]);
    let across = half.div_ceil(4).min(THREADS);
    if across == 0 || x.heads == 0 {
        return Ok(());
    }
    let down = x.heads.min(THREADS / across);
    let args = Args::new().ptr(x.ptr).ptr(cos.ptr).ptr(sin.ptr).int(x.heads).int(x.dim).int(half);
    let args = args.long(x.stride).long(cos.stride).long(sin.stride).int(all_whole);
    let launch = Launch { block: [across, down, 1], ..Launch::new(FILE, OP, x.tokens, THREADS) };
    // SAFETY: a block turns elements of one token's heads, below 2 * half <= dim of each, by the same
    // token's angles.
    unsafe { launch.enqueue(gpu, args) }
}
