//! Normalisation of rows.

use std::sync::Arc;

use super::rows::{Rows, THREADS, fits, row_vector, same_shape, typed, vector, whole};
use crate::error::Result;
use crate::{Args, Float, Gpu, HeadsMut, Launch, Mat, MatMut, View};

const FILE: &str = "norm";

/// Number of quads of a row that a thread keeps: `HELD` and `HELD_OF_A_HEAD` in `norm.cu`.
const HELD: usize = 4;
const HELD_OF_A_HEAD: usize = 1;

/// Number of threads of a block across a row, and of rows of a block. The width alone decides both, and with
/// them the order of a row's sum: the same row gives the same bits in any batch.
fn team(width: usize, held: usize) -> [usize; 2] {
    let wanted = width.div_ceil(4 * held).max(1);
    if wanted <= 32 {
        let across = wanted.next_power_of_two();
        return [across, THREADS / across];
    }
    [wanted.next_multiple_of(32).min(1024), 1]
}

fn launch(name: &'static str, rows: usize, width: usize, held: usize) -> Launch {
    let [across, down] = team(width, held);
    let blocks = if width == 0 { 0 } else { rows.div_ceil(down) };
    Launch { block: [across, down, 1], ..Launch::new(FILE, name, blocks, THREADS) }
}

/// The kernel for this type of output.
fn by_output(out: Float, [f32, bf16]: [&'static str; 2]) -> &'static str {
    match out {
        Float::F32 => f32,
        Float::Bf16 => bf16,
    }
}

/// `out = x / sqrt(mean(x^2) + eps) * weight`, row by row: `x` f32, `out` f32 or bf16.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), or the driver's.
pub fn rms_norm(
    gpu: &Arc<Gpu>,
    x: Mat<'_>,
    weight: View<'_, f32>,
    eps: f32,
    out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "rms_norm";
    let (x, out) = (Rows::from(&x), Rows::from(&out));
    typed(OP, "x", x.dtype, Float::F32)?;
    same_shape(OP, ("x", x), ("out", out))?;
    row_vector(OP, "the weight", weight, x.width)?;
    let name = by_output(out.dtype, ["rms_norm_f32", "rms_norm_bf16"]);
    let args = Args::new().ptr(x.ptr).view(weight).ptr(out.ptr).int(x.rows).int(x.width);
    let args = args.long(x.stride).long(out.stride).float(eps);
    let args = args.int(whole([x, out, vector(weight)]));
    // SAFETY: the threads of a row read elements of that row and of the weight, below their width, and
    // write the same of `out`; rows beyond the last do nothing.
    unsafe { launch(name, x.rows, x.width, HELD).enqueue(gpu, args) }
}

/// `residual += x`, then `out = rms_norm(residual)`: the residual stream is read and written once. `residual`
/// and `x` f32, `out` f32 or bf16. The bits are those of [`add_in_place`](super::add_in_place), then
/// [`rms_norm`].
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), or the driver's.
pub fn add_rms_norm(
    gpu: &Arc<Gpu>,
    residual: MatMut<'_>,
    x: Mat<'_>,
    weight: View<'_, f32>,
    eps: f32,
    out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "add_rms_norm";
    let (residual, x, out) = (Rows::from(&residual), Rows::from(&x), Rows::from(&out));
    typed(OP, "the residual", residual.dtype, Float::F32)?;
    typed(OP, "x", x.dtype, Float::F32)?;
    same_shape(OP, ("the residual", residual), ("x", x))?;
    same_shape(OP, ("the residual", residual), ("out", out))?;
    row_vector(OP, "the weight", weight, x.width)?;
    let name = by_output(out.dtype, ["add_rms_norm_f32", "add_rms_norm_bf16"]);
    let args = Args::new().ptr(residual.ptr).ptr(x.ptr).view(weight).ptr(out.ptr);
    let args = args.int(x.rows).int(x.width).long(residual.stride).long(x.stride);
    let args = args.long(out.stride).float(eps).int(whole([residual, x, out, vector(weight)]));
    // SAFETY: as in `rms_norm`; `residual` has the same shape.
    unsafe { launch(name, x.rows, x.width, HELD).enqueue(gpu, args) }
}

/// [`rms_norm`] of every head, in place, f32: the query and key norms of Qwen3.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), or the driver's.
pub fn rms_norm_heads(
    gpu: &Arc<Gpu>,
    x: HeadsMut<'_>,
    weight: View<'_, f32>,
    eps: f32,
) -> Result<()> {
    const OP: &str = "rms_norm_heads";
    typed(OP, "x", x.dtype, Float::F32)?;
    row_vector(OP, "the weight", weight, x.dim)?;
    let token = Rows::from(&x);
    let heads = Rows { rows: x.tokens * x.heads, width: x.dim, ..token };
    fits(OP, heads)?;
    // Tokens are `stride` apart and heads `dim`: both must be multiples of four, or there is only one.
    let all_whole = whole([token, Rows { stride: x.dim, ..heads }, vector(weight)]);
    let args = Args::new().ptr(x.ptr).view(weight).int(x.tokens).int(x.heads).int(x.dim);
    let args = args.long(x.stride).float(eps).int(all_whole);
    // SAFETY: the threads of a row read and write elements of one head of one token, and read the same of the
    // weight; rows beyond the last do nothing.
    unsafe { launch(OP, heads.rows, x.dim, HELD_OF_A_HEAD).enqueue(gpu, args) }
}

/// Layer norm, with a bias or without: `x` f32, `out` f32 or bf16. The variance is taken around the mean, in
/// a second pass.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), or the driver's.
pub fn layer_norm(
    gpu: &Arc<Gpu>,
    x: Mat<'_>,
    weight: View<'_, f32>,
    bias: Option<View<'_, f32>>,
    eps: f32,
    out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "layer_norm";
    let (x, out) = (Rows::from(&x), Rows::from(&out));
    typed(OP, "x", x.dtype, Float::F32)?;
    same_shape(OP, ("x", x), ("out", out))?;
    row_vector(OP, "the weight", weight, x.width)?;
    if let Some(bias) = bias {
        row_vector(OP, "the bias", bias, x.width)?;
    }
    let name = by_output(out.dtype, ["layer_norm_f32", "layer_norm_bf16"]);
    let args = Args::new().ptr(x.ptr).view(weight).ptr(bias.map_or(0, |b| b.ptr())).ptr(out.ptr);
    let args = args.int(x.rows).int(x.width).long(x.stride).long(out.stride).float(eps);
    let args = args.int(whole([x, out, vector(weight), vector(bias.unwrap_or(weight))]));
    // SAFETY: as in `rms_norm`; a bias has as many elements as the weight.
    unsafe { launch(name, x.rows, x.width, HELD).enqueue(gpu, args) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_threads_for_all_it_holds_and_shares_warps_only_in_powers_of_two() {
        for width in (1..3000).chain([4096, 8192, 16384]) {
            for held in [HELD, HELD_OF_A_HEAD] {
                let [across, down] = team(width, held);
                assert!(across * down <= 1024 && (across * down) % 32 == 0);
                assert!(across == 1024 || across * 4 * held >= width, "{width}");
                let shares = across <= 32 && across.is_power_of_two();
                assert!(shares || (across.is_multiple_of(32) && down == 1), "{width}");
            }
        }
    }
}
