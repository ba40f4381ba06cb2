//! Picking rows: token ids to embeddings, and the rows of a batch whose logits are requested.

use crate::{
    DType, Element, Error, Index, Layout, OpKind, Result, Runtime, TensorMut, TensorRef, Weight,
    Work, bf16, f16,
};

/// `out[t, :] = table[tokens[t], :]` for a table `[V, H]` and `out`: f32 `[T, H]`.
///
/// The table is a [`Weight`] because most small models tie it to the output head: one matrix,
/// stored once, serves both. The head reads all of it for every token, so it is packed for the
/// head; reading a row from that order costs about a microsecond.
///
/// # Errors
/// [`Error::OutOfRange`] for a token the table does not have, before anything is written;
/// [`Error::ShapeMismatch`], [`Error::UnexpectedDType`] or [`Error::UnsupportedLayout`].
pub fn embedding<'a>(
    rt: &Runtime,
    table: &Weight,
    tokens: impl Into<Index<'a, u32>>,
    out: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding";
    let index = tokens.into();
    let tokens = index.host;
    let _timed = rt.time(|| {
        let row = table.bytes().checked_div(table.n()).unwrap_or(0);
        (OpKind::Embedding, Work::moved(row * tokens.len()))
    });
    let layout = *out.layout();
    let (n, len) = out.row_shape::<f32>(OP)?;
    if len != table.k() {
        let why = "the output's rows must be as long as the table's";
        return Err(Error::ShapeMismatch { op: OP, why, lhs: layout, rhs: table.layout()? });
    }
    check_indices(OP, "token id", tokens, n, table.n(), layout)?;
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::embedding::embedding(OP, gpu, table, index, out);
    }
    let mut rows = out.rows_mut::<f32>(OP)?;
    table.on_host(OP)?;
    let (len, stride) = (rows.len, rows.stride);
    let start = Start(rows.as_mut_ptr());
    rt.pool().run(tokens.len(), &|t, _worker| {
        // SAFETY: row `t` lies within the view, and only this chunk writes it.
        let out = unsafe { std::slice::from_raw_parts_mut(start.at(t * stride), len) };
        let read = table.row(tokens[t] as usize, out);
        debug_assert!(read.is_ok(), "ids and row length were checked above");
    });
    Ok(())
}

/// `out[r, :] = x[rows[r], :]` for `x`: `[T, H]` and `out`: `[R, H]` of the same dtype (f32, bf16
/// or f16). A forward pass uses it to keep only the rows whose logits are requested.
///
/// # Errors
/// As [`embedding`].
pub fn gather_rows<'a>(
    rt: &Runtime,
    x: TensorRef<'_>,
    rows: impl Into<Index<'a, u32>>,
    out: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "gather_rows";
    let _timed = rt.time(|| (OpKind::Elementwise, Work::default()));
    let index = rows.into();
    if x.dtype() != out.dtype() {
        return Err(Error::UnexpectedDType {
            op: OP,
            expected: "an output of the input's dtype",
            got: out.dtype(),
            layout: *out.layout(),
        });
    }
    match x.dtype() {
        DType::F32 => gather::<f32>(rt, OP, x, index, out),
        DType::BF16 => gather::<bf16>(rt, OP, x, index, out),
        DType::F16 => gather::<f16>(rt, OP, x, index, out),
        got => Err(Error::UnexpectedDType {
            op: OP,
            expected: "F32, BF16 or F16",
            got,
            layout: *x.layout(),
        }),
    }
}

fn gather<T: Element>(
    rt: &Runtime,
    op: &'static str,
    x: TensorRef<'_>,
    index: Index<'_, u32>,
    out: TensorMut<'_>,
) -> Result<()> {
    let (from, to, rows) = (*x.layout(), *out.layout(), index.host);
    let ((x_n, x_len), (n, len)) = (x.row_shape::<T>(op)?, out.row_shape::<T>(op)?);
    if x_len != len {
        let why = "the output's rows must be as long as the input's";
        return Err(Error::ShapeMismatch { op, why, lhs: from, rhs: to });
    }
    check_indices(op, "row", rows, n, x_n, to)?;
    if let Some(gpu) = rt.gpu() {
        return crate::gpu::embedding::gather_rows(op, gpu, x, index, out);
    }
    let (x, mut out) = (x.rows::<T>(op)?, out.rows_mut::<T>(op)?);
    let (len, stride) = (out.len, out.stride);
    let start = Start(out.as_mut_ptr());
    rt.pool().run(rows.len(), &|r, _worker| {
        // exercise l1.rows
        if len > 0 {
            // SAFETY: row `r` lies within the view, and only this chunk writes it.
            let out = unsafe { std::slice::from_raw_parts_mut(start.at(r * stride), len) };
            out.copy_from_slice(x.row(rows[r] as usize));
        }
        // end of exercise
    });
    Ok(())
}

/// Checks that there is one index for each row of the output, each below `limit`.
/// The error names the first one that is not.
fn check_indices(
    op: &'static str,
    what: &'static str,
    indices: &[u32],
    rows: usize,
    limit: usize,
    out: Layout,
) -> Result<()> {
    // exercise l1.rows
    if indices.len() != rows {
        let (why, lhs) = ("the output must have one row for each index", out);
        return Err(Error::ShapeMismatch {
            op,
            why,
            lhs,
            rhs: Layout::contiguous(&[indices.len()])?,
        });
    }
    match indices.iter().find(|i| **i as usize >= limit) {
        Some(i) => Err(Error::OutOfRange { op, what, index: i64::from(*i), limit }),
        None => Ok(()),
    }
    // end of exercise
}

/// Start of an output whose rows are written by several threads.
struct Start<T>(*mut T);

// SAFETY: only a pointer; each row is written by one chunk.
unsafe impl<T> Sync for Start<T> {}

impl<T> Start<T> {
    /// # Safety
    /// The row must lie within the allocation.
    unsafe fn at(&self, i: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(i) }
    }
}
