//! Rotary position embedding: turn pairs of elements of queries and keys by an angle that grows
//! with the position, so that their dot product depends on the distance between the two.
//!
//! ```text
//! h = rotary_dim / 2,  pair (i, i + h):
//!   y[i]     = x[i]     cos[t, i] - x[i + h] sin[t, i]
//!   y[i + h] = x[i + h] cos[t, i] + x[i]     sin[t, i]
//! ```
//!
//! Su et al., "RoFormer" (2021), with the pairing that GPT-NeoX introduced ("rotate half").
//! Elements beyond `rotary_dim` stay as they are (partial rotary). [`RopeTable`](super::RopeTable)
//! makes the angles.

use std::ops::Range;

use super::rows::{Dst, Src, for_rows, same_dims};
use crate::cpu::lanes::dispatch;
use crate::{Error, OpKind, Result, Runtime, TensorMut, TensorRef, Work};

/// Scalar reference of [`rope`], for one head `x: [D]` of one token, with `cos`, `sin`: `[rotary_dim / 2]`.
pub fn rope_reference(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    // exercise l1.rope
    let half = cos.len();
    for i in 0..half {
        let (a, b) = (x[i], x[i + half]);
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
    // end of exercise
}

/// Turns every head of `x: [T, heads, D]` (f32, in place, any strides before the last) by its token's `cos`
/// and `sin`: f32 `[T, rotary_dim / 2]`, computed once per step for all layers.
///
/// Products are rounded one by one, as in torch; so every instruction set gives the bits of
/// [`rope_reference`].
///
/// # Errors
/// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`UnexpectedDType`](crate::Error::UnexpectedDType)
/// or [`UnsupportedLayout`](crate::Error::UnsupportedLayout).
pub fn rope(rt: &Runtime, x: TensorMut<'_>, cos: TensorRef<'_>, sin: TensorRef<'_>) -> Result<()> {
    const OP: &str = "rope";
    let _timed = rt.time(|| (OpKind::Rope, Work::default()));
    same_dims(OP, cos.layout(), sin.layout())?;
    let &[tokens, heads, d] = x.dims() else {
        let why = "needs [tokens, heads, head_dim]";
        return Err(Error::UnsupportedLayout { op: OP, why, layout: *x.layout() });
    };
    if cos.dims().len() != 2 || cos.dims()[0] != tokens || cos.dims()[1] > d / 2 {
        let why = "cos and sin must be [tokens, rotary_dim / 2] with rotary_dim <= head_dim";
        return Err(Error::ShapeMismatch { op: OP, why, lhs: *x.layout(), rhs: *cos.layout() });
    }
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::rope::rope(OP, gpu, x, cos, sin);
    }
    let (cos, sin) = (Src::new(OP, cos)?, Src::new(OP, sin)?);
    let x = Dst::<f32>::new(OP, x)?;
    for_rows(rt, tokens, heads * d, |t| turn_tokens(rt.isa(), &x, &cos, &sin, heads, t));
    Ok(())
}

dispatch! {
    fn turn_tokens<const FMA: bool>(
        x: &Dst<'_, f32>,
        cos: &Src<'_, f32>,
        sin: &Src<'_, f32>,
        heads: usize,
        tokens: Range<usize>,
    ) {
        for t in tokens {
            let (cos, sin) = (cos.row(t), sin.row(t));
            for head in t * heads..(t + 1) * heads {
                // SAFETY: `for_rows` gives every token to one call, and a head to one token.
                let x = unsafe { x.row(head) };
                // exercise l1.rope
                let (lo, rest) = x.split_at_mut(cos.len());
                for (((a, b), c), s) in lo.iter_mut().zip(rest).zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
                }
                // end of exercise
            }
        }
    }
}
