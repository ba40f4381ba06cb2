//! Matmuls: `x W^T`.
//!
//! Kernels in [`Arithmetic::Fast`]:
//!
//! | activations | tokens | |
//! |---|---|---|
//! | bf16 | up to 16 | `gemv.cu`: as fast as weights can be read |
//! | bf16 | more | cuBLASLt; `gemm.cu` where it is missing |
//! | f32 | up to 8 | `gemv_f32` |
//! | f32 | more | `gemm_f32` |
//!
//! [`Arithmetic::BatchInvariant`] always uses `gemm.cu`, where the sum of an element has one order for any
//! number of tokens.

use std::sync::Arc;

use super::{Activation, Arithmetic, add_bias, gated};
use crate::error::{Error, Result};
use crate::scratch::{Purpose, alone};
use crate::{Args, Float, Gpu, Launch, Mat, MatMut, View};

/// Use of the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accumulate {
    /// `out = y`.
    Store,
    /// `out += scale * y`; f32.
    Add {
        /// Factor of the product.
        scale: f32,
    },
}

/// Maximum number of tokens for the gemv kernel.
const FEW: usize = 16;

/// The same for f32 activations.
const FEW_F32: usize = 8;

/// `out = x W^T`: `x` `[T, K]` f32 or bf16, `weight` bf16 `[N, K]`, `out` `[T, N]` f32, or bf16 where nothing
/// is added. Sums are f32. Rows of `x` and `weight` may have a stride beyond their width; a bf16 operand is
/// read fastest where its rows begin at multiples of 16 bytes and `K` is a multiple of 8.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn linear(
    gpu: &Arc<Gpu>,
    x: Mat<'_>,
    weight: Mat<'_>,
    accumulate: Accumulate,
    arithmetic: Arithmetic,
    out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "linear";
    check(OP, &x, &weight)?;
    if (out.rows, out.width) != (x.rows, weight.rows) {
        let (t, n) = (x.rows, weight.rows);
        return Err(Error::shape(OP, format!("[{t}, {n}] into [{}, {}]", out.rows, out.width)));
    }
    let add = match accumulate {
        Accumulate::Store => None,
        Accumulate::Add { scale } => Some(scale),
    };
    if add.is_some() && out.dtype != Float::F32 {
        return Err(Error::shape(OP, "a product can be added to an f32 output only"));
    }
    if out.rows == 0 || out.width == 0 {
        return Ok(());
    }
    let launch = match (x.dtype, arithmetic) {
        (Float::Bf16, Arithmetic::Fast) if x.rows <= FEW => gemv(x.rows, weight.rows),
        (Float::Bf16, Arithmetic::Fast) => {
            // A sum without terms: the library is not called for it.
            if x.width > 0 && gpu.blas.linear(gpu, x, weight, add, &out)? {
                return Ok(());
            }
            gemm(x.rows, weight.rows, gpu.properties().multiprocessors)
        }
        (Float::Bf16, Arithmetic::BatchInvariant) => {
            gemm(x.rows, weight.rows, gpu.properties().multiprocessors)
        }
        (Float::F32, Arithmetic::Fast) if x.rows <= FEW_F32 => {
            Launch::new("gemv", "gemv_f32", weight.rows.div_ceil(8), 256)
        }
        (Float::F32, _) => {
            let grid = [weight.rows.div_ceil(64), x.rows.div_ceil(64), 1];
            Launch::new("gemm", "gemm_f32", 0, 256).grid(grid)
        }
    };
    let mut args = operands(&x, &weight);
    if x.dtype == Float::Bf16 {
        args = args.int(usize::from(by_16_bytes(&x) && by_16_bytes(&weight)));
    }
    let args = args
        .ptr(out.ptr)
        .long(out.stride)
        .int(usize::from(out.dtype == Float::Bf16))
        .int(usize::from(add.is_some()))
        .float(add.unwrap_or(1.0));
    // SAFETY: the shapes were checked above; the kernels stay within them.
    unsafe { launch.enqueue(gpu, args) }
}

/// Gate and up projection in one: `out = activation(gate) * up`. `weight` (bf16 `[2 I, K]`) has the rows of
/// the gates first, then those of the ups; `bias` (`[2 I]`), in the same order, is added to both before the
/// activation. `x` `[T, K]` f32 or bf16, `out` `[T, I]` f32 or bf16.
///
/// For few tokens one kernel does both. For more, the product goes to scratch and is folded there, in chunks
/// of tokens for which the scratch is at most 128 MiB (a chunk is 256 to 4096 tokens).
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn linear_gated(
    gpu: &Arc<Gpu>,
    activation: Activation,
    x: Mat<'_>,
    weight: Mat<'_>,
    bias: Option<View<'_, f32>>,
    arithmetic: Arithmetic,
    mut out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "linear_gated";
    check(OP, &x, &weight)?;
    let half = weight.rows / 2;
    if !weight.rows.is_multiple_of(2) || (out.rows, out.width) != (x.rows, half) {
        let (t, n) = (x.rows, weight.rows);
        let why = format!("[{t}, {n}] folded into [{}, {}]", out.rows, out.width);
        return Err(Error::shape(OP, why));
    }
    if let Some(bias) = bias.filter(|bias| bias.len() != weight.rows) {
        let why = format!("a bias of {} for {} rows", bias.len(), weight.rows);
        return Err(Error::shape(OP, why));
    }
    if out.rows == 0 || out.width == 0 {
        return Ok(());
    }
    if x.dtype == Float::Bf16 && arithmetic == Arithmetic::Fast && x.rows <= FEW {
        let name = if x.rows <= 8 { "gemv_gated_8" } else { "gemv_gated_16" };
        let args = operands(&x, &weight)
            .int(usize::from(by_16_bytes(&x) && by_16_bytes(&weight)))
            .ptr(bias.map_or(0, |bias| bias.ptr()))
            .int(match activation {
                Activation::Silu => 0,
                Activation::GeluTanh => 1,
                Activation::GeluErf => 2,
            })
            .ptr(out.ptr)
            .long(out.stride)
            .int(usize::from(out.dtype == Float::Bf16));
        // SAFETY: the shapes were checked above; the kernel stays within them.
        return unsafe { Launch::new("gemv", name, half.div_ceil(8), 256).enqueue(gpu, args) };
    }
    let at_once = x.rows.min(folded_at_once(weight.rows));
    let bytes = at_once * weight.rows * Float::F32.size();
    let at = gpu.scratch(|scratch| scratch.region(gpu, Purpose::GateUp, bytes))?;
    // All that is enqueued from here on uses this memory in order.
    let _alone = alone();
    for first in (0..x.rows).step_by(at_once) {
        let rows = at_once.min(x.rows - first);
        let (mut x, mut out) = (x, out.reborrow());
        x.ptr += (first * x.stride * x.dtype.size()) as u64;
        out.ptr += (first * out.stride * out.dtype.size()) as u64;
        (x.rows, out.rows) = (rows, rows);
        let mut gate_up = MatMut::at(at, Float::F32, rows, weight.rows);
        linear(gpu, x, weight, Accumulate::Store, arithmetic, gate_up.reborrow())?;
        if let Some(bias) = bias {
            add_bias(gpu, gate_up.reborrow(), bias)?;
        }
        gated(gpu, activation, gate_up.as_mat(), out)?;
    }
    Ok(())
}

/// Number of tokens whose gates and ups (so many together) are in scratch at the same time: whole tiles of
/// them.
fn folded_at_once(width: usize) -> usize {
    let tokens = (128 << 20) / (width * Float::F32.size());
    tokens.clamp(256, 4096) / 128 * 128
}

fn check(op: &'static str, x: &Mat<'_>, weight: &Mat<'_>) -> Result<()> {
    if weight.dtype != Float::Bf16 {
        return Err(Error::shape(op, "weights are bf16"));
    }
    if x.width != weight.width {
        let why = format!("rows of {} and weights of {}", x.width, weight.width);
        return Err(Error::shape(op, why));
    }
    Ok(())
}

/// Whether every row can be read 16 bytes at a time.
fn by_16_bytes(m: &Mat<'_>) -> bool {
    let whole = |elements: usize| elements.is_multiple_of(8);
    m.ptr.is_multiple_of(16) && whole(m.width) && (m.rows <= 1 || whole(m.stride))
}

fn operands(x: &Mat<'_>, weight: &Mat<'_>) -> Args {
    Args::new()
        .ptr(x.ptr)
        .long(x.stride)
        .int(x.rows)
        .ptr(weight.ptr)
        .long(weight.stride)
        .int(weight.rows)
        .int(weight.width)
}

fn gemv(tokens: usize, rows: usize) -> Launch {
    let name = if tokens <= 8 { "gemv_8" } else { "gemv_16" };
    Launch::new("gemv", name, rows.div_ceil(16), 256)
}

/// Tile for a shape. It decides the time, but no bit of the result.
fn gemm(tokens: usize, rows: usize, multiprocessors: usize) -> Launch {
    let tiles = |m: usize, n: usize| tokens.div_ceil(m) * rows.div_ceil(n);
    let launch = |name, m, n, threads, shared| {
        Launch::new("gemm", name, tiles(m, n), threads).shared(shared)
    };
    if tokens <= 16 {
        launch("gemm_narrow", 16, 32, 64, 6 * (16 + 32) * 64 * 2)
    } else if tokens <= 64 || tiles(128, 128) < multiprocessors {
        // First enough blocks for the device, then large ones.
        launch("gemm_medium", 64, 64, 128, 4 * (64 + 64) * 32 * 2)
    } else {
        launch("gemm_large", 128, 128, 256, 4 * (128 + 128) * 32 * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::{folded_at_once, gemm};

    #[test]
    fn scratch_for_folding_has_a_limit() {
        assert_eq!([2, 6144, 24_576, 1 << 20].map(folded_at_once), [4096, 4096, 1280, 256]);
    }

    #[test]
    fn the_tile_fits_the_tokens_and_fills_the_device() {
        let name = |tokens, rows| gemm(tokens, rows, 132).name;
        assert_eq!(name(1, 4096), "gemm_narrow");
        assert_eq!(name(17, 4096), "gemm_medium");
        assert_eq!(name(512, 4096), "gemm_medium");
        assert_eq!(name(8192, 4096), "gemm_large");
        assert_eq!(gemm(130, 300, 1).grid, [2 * 3, 1, 1]);
    }
}
