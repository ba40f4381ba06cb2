//! Rows by their numbers.

use std::sync::Arc;

use kernels::{Gpu, ops};

use super::indices::Numbers;
use super::views::{mat, mat_mut, mat_mut_of};
use crate::{Index, Result, TensorMut, TensorRef, Weight};

pub(crate) fn embedding(
    op: &'static str,
    gpu: &Arc<Gpu>,
    table: &Weight,
    tokens: Index<'_, u32>,
    out: TensorMut<'_>,
) -> Result<()> {
    let table = table.on_cuda(op, gpu)?;
    let out = mat_mut_of::<f32>(op, gpu, out)?;
    let tokens = Numbers::of(op, gpu, tokens)?;
    Ok(ops::embedding(gpu, table, tokens.view(), out)?)
}

pub(crate) fn gather_rows(
    op: &'static str,
    gpu: &Arc<Gpu>,
    x: TensorRef<'_>,
    rows: Index<'_, u32>,
    out: TensorMut<'_>,
) -> Result<()> {
    let (x, out) = (mat(op, gpu, x)?, mat_mut(op, gpu, out)?);
    let rows = Numbers::of(op, gpu, rows)?;
    Ok(ops::gather_rows(gpu, x, rows.view(), out)?)
}
