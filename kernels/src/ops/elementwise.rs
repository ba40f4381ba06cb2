//! Element-wise ops.

use std::sync::Arc;

use super::rows::{Rows, flattened, row_vector, same_shape, tiles, typed, vector, whole};
use crate::error::Result;
use crate::{Args, Float, Gpu, Launch, Mat, MatMut, View};

const FILE: &str = "elementwise";

/// Rows of width 0 have no tiles, and the kernels divide by the number of tiles.
fn launch(name: &'static str, rows: Rows) -> (Launch, usize) {
    let (threads, tiles) = tiles(rows.width);
    (Launch::new(FILE, name, rows.rows * tiles, threads), tiles)
}

/// `x += y`: both f32, of one shape.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), or the driver's.
pub fn add_in_place(gpu: &Arc<Gpu>, x: MatMut<'_>, y: Mat<'_>) -> Result<()> {
    const OP: &str = "add_in_place";
    let both = [Rows::from(&x), Rows::from(&y)];
    typed(OP, "x", x.dtype, Float::F32)?;
    typed(OP, "y", y.dtype, Float::F32)?;
    same_shape(OP, ("x", both[0]), ("y", both[1]))?;
    let [x, y] = flattened(both);
    let (launch, tiles) = launch(OP, x);
    let args = Args::new().ptr(x.ptr).ptr(y.ptr).int(tiles).long(x.width);
    let args = args.long(x.stride).long(y.stride).int(whole([x, y]));
    // SAFETY: a block writes elements of one row of `x` and reads the same of `y`, below their width.
    unsafe { launch.enqueue(gpu, args) }
}

/// `x *= by`: f32.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), or the driver's.
pub fn scale_in_place(gpu: &Arc<Gpu>, x: MatMut<'_>, by: f32) -> Result<()> {
    const OP: &str = "scale_in_place";
    typed(OP, "x", x.dtype, Float::F32)?;
    let [x] = flattened([Rows::from(&x)]);
    let (launch, tiles) = launch(OP, x);
    let args = Args::new().ptr(x.ptr).float(by).int(tiles).long(x.width).long(x.stride);
    // SAFETY: a block reads and writes elements of one row of `x`, below its width.
    unsafe { launch.enqueue(gpu, args.int(whole([x]))) }
}

/// `out = x`, rounded to nearest even where `out` is bf16 and `x` is not. Any two types, one shape; between
/// equal types bits are copied. `out` and `x` do not overlap.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), or the driver's.
pub fn convert(gpu: &Arc<Gpu>, x: Mat<'_>, out: MatMut<'_>) -> Result<()> {
    let name = match (x.dtype, out.dtype) {
        (Float::F32, Float::F32) => "convert_f32_f32",
        (Float::F32, Float::Bf16) => "convert_f32_bf16",
        (Float::Bf16, Float::F32) => "convert_bf16_f32",
        (Float::Bf16, Float::Bf16) => "convert_bf16_bf16",
    };
    let both = [Rows::from(&x), Rows::from(&out)];
    same_shape("convert", ("x", both[0]), ("out", both[1]))?;
    let [x, out] = flattened(both);
    let (launch, tiles) = launch(name, x);
    let args = Args::new().ptr(x.ptr).ptr(out.ptr).int(tiles).long(x.width);
    let args = args.long(x.stride).long(out.stride).int(whole([x, out]));
    // SAFETY: a block writes elements of one row of `out` and reads the same of `x`, below their width;
    // the kernel is that of both types.
    unsafe { launch.enqueue(gpu, args) }
}

/// `x[r, c] += bias[c]`: f32.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), or the driver's.
pub fn add_bias(gpu: &Arc<Gpu>, x: MatMut<'_>, bias: View<'_, f32>) -> Result<()> {
    const OP: &str = "add_bias";
    let x = Rows::from(&x);
    typed(OP, "x", x.dtype, Float::F32)?;
    row_vector(OP, "the bias", bias, x.width)?;
    let (launch, tiles) = launch(OP, x);
    let args = Args::new().ptr(x.ptr).view(bias).int(tiles).long(x.width);
    let args = args.long(x.stride).int(whole([x, vector(bias)]));
    // SAFETY: a block writes elements of one row of `x` and reads the same of the bias, which has as many.
    unsafe { launch.enqueue(gpu, args) }
}
