//! Gated activations: the middle of a transformer's MLP.
//!
//! ```text
//! silu_mul:  out = silu(gate) * up      silu(x) = x / (1 + e^-x)
//! gelu_mul:  out = gelu(gate) * up      gelu(x) = x * Phi(x), Phi the normal distribution
//! ```
//!
//! Shazeer, "GLU Variants Improve Transformer" (2020): SwiGLU is the first (Llama, Mistral, Qwen),
//! GEGLU the second. GELU is Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), whose
//! tanh form approximates the exact one to about 5e-4; a checkpoint says which it was trained with.

use std::ops::Range;

use kernels::ops::Activation;

use super::rows::{Dst, Src, for_rows, not_f32_or_bf16, same_dims};
use crate::cpu::lanes::{Narrow, dispatch, exp, mul_add};
use crate::{DType, OpKind, Result, Runtime, TensorMut, TensorRef, Work, bf16};

/// Form of GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gelu {
    /// `x Phi(x)` through the error function (`gelu` in a config.json).
    Erf,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))` (`gelu_pytorch_tanh`, `gelu_new`).
    Tanh,
}

/// `sqrt(2 / pi)`.
const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044715;

/// Scalar reference of [`silu_mul`], element by element.
pub fn silu_mul_reference(gate: &[f32], up: &[f32], out: &mut [f32]) {
    // exercise l1.gated
    for i in 0..out.len() {
        out[i] = gate[i] / (1.0 + (-gate[i]).exp()) * up[i];
    }
    // end of exercise
}

/// Scalar reference of [`gelu_mul`], element by element (in f64: Rust has no error function, so `Phi` is
/// integrated by Simpson's rule from 0 to `x`).
pub fn gelu_mul_reference(kind: Gelu, gate: &[f32], up: &[f32], out: &mut [f32]) {
    // exercise l1.gated
    let phi = |x: f64| {
        let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (steps, x) = (2000, x.clamp(-12.0, 12.0));
        let h = x / steps as f64;
        let inner: f64 =
            (1..steps).map(|i| density(i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        0.5 + h / 3.0 * (density(0.0) + inner + density(x))
    };
    for i in 0..out.len() {
        let x = f64::from(gate[i]);
        let factor = match kind {
            Gelu::Erf => phi(x),
            Gelu::Tanh => {
                let c = (2.0 / std::f64::consts::PI).sqrt();
                0.5 * (1.0 + (c * (x + f64::from(CUBIC) * x * x * x)).tanh())
            }
        };
        out[i] = (x * factor) as f32 * up[i];
    }
    // end of exercise
}

/// `out = silu(gate) * up` for `gate`, `up`: f32 `[.., I]` and `out` of the same shape, f32 or
/// bf16. Gate and up may be two halves of one packed `[T, 2 I]` buffer; on CUDA they must be.
///
/// `silu(-inf)` is NaN, as `-inf / inf` is in torch; every finite input has a finite result.
///
/// # Errors
/// [`ShapeMismatch`](crate::Error::ShapeMismatch), [`UnexpectedDType`](crate::Error::UnexpectedDType)
/// or [`UnsupportedLayout`](crate::Error::UnsupportedLayout).
pub fn silu_mul(
    rt: &Runtime,
    gate: TensorRef<'_>,
    up: TensorRef<'_>,
    out: TensorMut<'_>,
) -> Result<()> {
    gated(rt, "silu_mul", None, gate, up, out)
}

/// `out = gelu(gate) * up`; shapes and types as for [`silu_mul`].
///
/// # Errors
/// As [`silu_mul`].
pub fn gelu_mul(
    rt: &Runtime,
    kind: Gelu,
    gate: TensorRef<'_>,
    up: TensorRef<'_>,
    out: TensorMut<'_>,
) -> Result<()> {
    gated(rt, "gelu_mul", Some(kind), gate, up, out)
}

fn gated(
    rt: &Runtime,
    op: &'static str,
    gelu: Option<Gelu>,
    gate: TensorRef<'_>,
    up: TensorRef<'_>,
    out: TensorMut<'_>,
) -> Result<()> {
    fn run<O: Narrow>(
        rt: &Runtime,
        gelu: Option<Gelu>,
        gate: &Src<'_, f32>,
        up: &Src<'_, f32>,
        out: &Dst<'_, O>,
    ) {
        let rows_fn = match gelu {
            None => silu_rows::<O>,
            Some(Gelu::Erf) => gelu_erf_rows::<O>,
            Some(Gelu::Tanh) => gelu_tanh_rows::<O>,
        };
        for_rows(rt, out.n(), out.len(), |rows| rows_fn(rt.isa(), gate, up, out, rows));
    }
    let _timed = rt.time(|| (OpKind::Elementwise, Work::default()));
    same_dims(op, gate.layout(), up.layout())?;
    same_dims(op, gate.layout(), out.layout())?;
    if let Some(gpu) = rt.gpu() {
        let activation = match gelu {
            None => Activation::Silu,
            Some(Gelu::Erf) => Activation::GeluErf,
            Some(Gelu::Tanh) => Activation::GeluTanh,
        };
        return crate::gpu::gated::gated(op, gpu, activation, gate, up, out);
    }
    let (gate, up) = (Src::new(op, gate)?, Src::new(op, up)?);
    match out.dtype() {
        DType::F32 => run(rt, gelu, &gate, &up, &Dst::<f32>::new(op, out)?),
        DType::BF16 => run(rt, gelu, &gate, &up, &Dst::<bf16>::new(op, out)?),
        _ => return not_f32_or_bf16(op, &out),
    }
    Ok(())
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<const FMA: bool>(x: f32) -> f32 {
    // exercise l1.gated
    x / (1.0 + exp::<FMA>(-x))
    // end of exercise
}

/// GELU by tanh: `(1 + tanh(u)) / 2` is the logistic function of `2 u`, so one exponential does it
/// and no digits cancel on the negative side.
#[inline(always)]
pub(crate) fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    // exercise l1.gated
    let cubed = x * x * x;
    let u = SQRT_2_OVER_PI * mul_add::<FMA>(cubed, CUBIC, x);
    x / (1.0 + exp::<FMA>(-2.0 * u))
    // end of exercise
}

#[inline(always)]
pub(crate) fn gelu_erf<const FMA: bool>(x: f32) -> f32 {
    // exercise l1.gated
    x * normal_cdf::<FMA>(x)
    // end of exercise
}

/// The normal distribution function `Phi(x)`, within 5e-6 of its value for `|x| < 9` (1e-6 for
/// `|x| < 3`), the far negative tail included.
///
/// `Phi(-|x|) = t e^(P(t) - x^2 / 2)` with `t = 1 / (1 + 0.4 |x|)`: what the Gaussian leaves over is
/// so flat in `t` that a polynomial of degree 8 follows it within 1e-7. Its coefficients are a
/// Chebyshev fit over `|x| <= 14.5`. The form goes back to Hastings, "Approximations for Digital
/// Computers" (1955).
#[inline(always)]
fn normal_cdf<const FMA: bool>(x: f32) -> f32 {
    const P: [f32; 9] = [
        -1.835_116,
        0.997_038_6,
        0.372_546_75,
        -0.183_216_22,
        0.546_496_8,
        -1.757_927_5,
        1.954_479,
        -0.978_611_8,
        0.191_163_22,
    ];
    let t = 1.0 / mul_add::<FMA>(x.abs(), 0.4, 1.0);
    let mut p = P[8];
    for i in (0..8).rev() {
        p = mul_add::<FMA>(p, t, P[i]);
    }
    let tail = t * exp::<FMA>(mul_add::<FMA>(-0.5 * x, x, p));
    if x > 0.0 { 1.0 - tail } else { tail }
}

dispatch! {
    fn silu_rows<const FMA: bool, O: Narrow>(
        gate: &Src<'_, f32>,
        up: &Src<'_, f32>,
        out: &Dst<'_, O>,
        rows: Range<usize>,
    ) {
        gate_rows(gate, up, out, rows, silu::<FMA>);
    }

    fn gelu_tanh_rows<const FMA: bool, O: Narrow>(
        gate: &Src<'_, f32>,
        up: &Src<'_, f32>,
        out: &Dst<'_, O>,
        rows: Range<usize>,
    ) {
        gate_rows(gate, up, out, rows, gelu_tanh::<FMA>);
    }

    fn gelu_erf_rows<const FMA: bool, O: Narrow>(
        gate: &Src<'_, f32>,
        up: &Src<'_, f32>,
        out: &Dst<'_, O>,
        rows: Range<usize>,
    ) {
        gate_rows(gate, up, out, rows, gelu_erf::<FMA>);
    }
}

#[inline(always)]
fn gate_rows<O: Narrow>(
    gate: &Src<'_, f32>,
    up: &Src<'_, f32>,
    out: &Dst<'_, O>,
    rows: Range<usize>,
    activation: impl Fn(f32) -> f32,
) {
    // exercise l1.gated
    for i in rows {
        // SAFETY: `for_rows` gives every row to one call.
        let out = unsafe { out.row(i) };
        for ((o, g), u) in out.iter_mut().zip(gate.row(i)).zip(up.row(i)) {
            *o = O::narrow(activation(*g) * u);
        }
    }
    // end of exercise
}
