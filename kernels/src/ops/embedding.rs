//! Rows of a table by their indices.

use std::sync::Arc;

use super::rows::{Rows, fits, tiles, typed, whole};
use crate::error::{Error, Result};
use crate::{Args, Float, Gpu, Launch, Mat, MatMut, View};

/// `out[i] = weight[ids[i]]`: `weight` bf16 `[V, H]`, `out` f32 `[T, H]`. An id beyond `V` gives zeros.
///
/// # Errors
/// [`Error::Shape`], or the driver's.
pub fn embedding(
    gpu: &Arc<Gpu>,
    weight: Mat<'_>,
    ids: View<'_, u32>,
    out: MatMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding";
    typed(OP, "the weight", weight.dtype, Float::Bf16)?;
    typed(OP, "out", out.dtype, Float::F32)?;
    pick(gpu, OP, OP, weight, ids, out)
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
    fits(op, out)?;
    if out.width != table.width {
        let why = format!("rows of {} elements into rows of {}", table.width, out.width);
        return Err(Error::shape(op, why));
    }
    if out.rows != numbers.len() {
        let why = format!("{} numbers of rows for {} rows", numbers.len(), out.rows);
        return Err(Error::shape(op, why));
    }
    let (threads, tiles) = tiles(out.width);
    let args = Args::new().ptr(table.ptr).view(numbers).ptr(out.ptr).int(table.rows).int(tiles);
    let args = args.long(out.width).long(table.stride).long(out.stride).int(whole([table, out]));
    // SAFETY: a block writes elements of one row of `out`, below its width, and reads the same of a row
    // of the table whose number is below those it has.
    unsafe { Launch::new("embedding", name, out.rows * tiles, threads).enqueue(gpu, args) }
}
