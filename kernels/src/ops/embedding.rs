//! Rows of a table by their indices.

use std::sync::Arc;

use super::rows::{Rows, fits, tiles, typed, whole};
use crate::error::{Error, Result};
use crate::weights::Matrix;
use crate::{Args, Float, Gpu, Launch, Mat, MatMut, Nvfp4, View, Weights};

/// `out[i] = weight[ids[i]]`: `weight` `[V, H]`, bf16 or NVFP4, `out` f32 `[T, H]`. Where the weight has factors, a row
/// is multiplied by its factor. An id beyond `V` gives zeros.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn embedding<'a>(
    gpu: &Arc<Gpu>,
    weight: impl Into<Weights<'a>>,
    ids: View<'_, u32>,
    mut out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding";
    let weight = weight.into();
    typed(OP, "out", out.dtype, Float::F32)?;
    match weight.matrix {
        Matrix::Dense(table) => {
            typed(OP, "the weight", table.dtype, Float::Bf16)?;
            pick(gpu, OP, OP, table, ids, out.reborrow())?;
        }
        Matrix::Nvfp4(table) => pick_nvfp4(gpu, OP, table, ids, out.reborrow())?,
    }
    if weight.factors.is_none() {
        return Ok(());
    }
    let tiles = out.width.div_ceil(256);
    let args = Args::new().ptr(weight.factors_ptr()).view(ids).ptr(out.ptr).int(weight.rows());
    let args = args.int(out.width).int(tiles).long(out.stride);
    // SAFETY: a thread scales one element of `out`, by the factor of a row that there is.
    unsafe { Launch::new("nvfp4", "scale_rows", out.rows * tiles, 256).enqueue(gpu, args) }
}

fn pick_nvfp4(
    gpu: &Arc<Gpu>,
    op: &'static str,
    table: Nvfp4<'_>,
    ids: View<'_, u32>,
    out: MatMut<'_>,
) -> Result<()> {
    check(op, table.width, ids, Rows::from(&out))?;
    let tiles = (table.width / 8).div_ceil(128);
    let args = Args::new().ptr(table.ptr).view(ids).ptr(out.ptr).int(table.rows);
    let args = args.int(table.width).int(tiles).long(out.stride);
    // SAFETY: a thread writes eight elements of a row of `out`, from those of a row that there is.
    unsafe { Launch::new("nvfp4", "embedding_nvfp4", out.rows * tiles, 128).enqueue(gpu, args) }
}

/// `out[i] = x[rows[i]]`: `x` and `out` have one type, and bits are copied. A row beyond those of `x` gives
/// zeros. `out` and `x` do not overlap.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn gather_rows(gpu: &Arc<Gpu>, x: Mat<'_>, rows: View<'_, u32>, out: MatMut<'_>) -> Result<()> {
    const OP: &str = "gather_rows";
    typed(OP, "out", out.dtype, x.dtype)?;
    let name = match x.dtype {
        Float::F32 => "gather_rows_f32",
        Float::Bf16 => "gather_rows_bf16",
    };
    pick(gpu, OP, name, x, rows, out)
}

fn pick(
    gpu: &Arc<Gpu>,
    op: &'static str,
    name: &'static str,
    table: Mat<'_>,
    numbers: View<'_, u32>,
    out: MatMut<'_>,
) -> Result<()> {
    let (table, out) = (Rows::from(&table), Rows::from(&out));
    fits(op, table)?;
    check(op, table.width, numbers, out)?;
    let (threads, tiles) = tiles(out.width);
    let args = Args::new().ptr(table.ptr).view(numbers).ptr(out.ptr).int(table.rows).int(tiles);
    let args = args.long(out.width).long(table.stride).long(out.stride).int(whole([table, out]));
    // SAFETY: a block writes elements of one row of `out`, below its width, and reads the same of a row
    // of the table whose number is below those it has.
    unsafe { Launch::new("embedding", name, out.rows * tiles, threads).enqueue(gpu, args) }
}

/// Checks that there is a number for each row of the output, which is as wide as the table.
fn check(op: &'static str, width: usize, numbers: View<'_, u32>, out: Rows) -> Result<()> {
    fits(op, out)?;
    if out.width != width {
        let why = format!("rows of {width} elements into rows of {}", out.width);
        return Err(Error::shape(op, why));
    }
    if out.rows != numbers.len() {
        let why = format!("{} numbers of rows for {} rows", numbers.len(), out.rows);
        return Err(Error::shape(op, why));
    }
    Ok(())
}
