//! Gated activations.

use std::sync::Arc;

use super::rows::{Rows, fits, tiles, typed, whole};
use crate::error::{Error, Result};
use crate::{Args, Float, Gpu, Launch, Mat, MatMut};

/// Activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
}

impl Activation {
    fn kernel(self, out: Float) -> &'static str {
        match (self, out) {
            (Activation::Silu, Float::F32) => "silu_f32",
            (Activation::Silu, Float::Bf16) => "silu_bf16",
            (Activation::GeluTanh, Float::F32) => "gelu_tanh_f32",
            (Activation::GeluTanh, Float::Bf16) => "gelu_tanh_bf16",
            (Activation::GeluErf, Float::F32) => "gelu_erf_f32",
            (Activation::GeluErf, Float::Bf16) => "gelu_erf_bf16",
        }
    }
}

/// `out = activation(gate) * up`, where `gate_up` `[T, 2 I]` f32 has the gates first and `out` `[T, I]` is
/// f32 or bf16. The two do not overlap.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn gated(
    gpu: &Arc<Gpu>,
    activation: Activation,
    gate_up: Mat<'_>,
    out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "gated";
    let (from, out) = (Rows::from(&gate_up), Rows::from(&out));
    typed(OP, "gate_up", from.dtype, Float::F32)?;
    fits(OP, from)?;
    if (from.rows, from.width) != (out.rows, 2 * out.width) {
        let why = format!(
            "gate_up is [{}, {}] and out [{}, {}]; they must be [T, 2 I] and [T, I]",
            from.rows, from.width, out.rows, out.width
        );
        return Err(Error::shape(OP, why));
    }
    // The ups begin where the gates end: both are aligned if `out.width` is a multiple of four.
    let gates = Rows { width: out.width, ..from };
    let (threads, tiles) = tiles(out.width);
    let args = Args::new().ptr(from.ptr).ptr(out.ptr).int(tiles).long(out.width);
    let args = args.long(from.stride).long(out.stride).int(whole([gates, out]));
    let launch = Launch::new(OP, activation.kernel(out.dtype), out.rows * tiles, threads);
    // SAFETY: a block writes elements of one row of `out`, below its width, and reads the same of the
    // gates and of the ups, of which a row of `gate_up` has as many each.
    unsafe { launch.enqueue(gpu, args) }
}
